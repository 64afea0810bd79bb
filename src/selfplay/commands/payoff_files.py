"""The files of payoffs, of a tournament or of a run: ``payoffs.json`` and ``payoffs.csv``."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from selfplay.core.files import write_file
from selfplay.population import PayoffTable

PAYOFFS_JSON, PAYOFFS_CSV = "payoffs.json", "payoffs.csv"


def write_payoffs(
    directory: Path, about: Mapping[str, Any], table: PayoffTable, members: Sequence[str]
) -> None:
    """Write payoffs by seating, and in a game for two the matrix of the members.

    Args:
        directory: where the two files go.
        about: what else is known, JSON-able.
        table: the payoffs.
        members: the members, in the order of the matrix.

    Raises:
        OSError: a file cannot be written.
    """
    content = {**about, "members": list(members), "payoffs": table.rows()}
    if all(len(seating) == 2 for seating, _ in table.items()):
        matrix = table.matrix(members)
        content["matrix"] = {
            "mean": _known(matrix.mean_MM, matrix.known_MM),
            "standard_error": _known(matrix.error_MM, matrix.known_MM),
            "games": matrix.games_MM.tolist(),
        }
    text = json.dumps(content, indent=1, allow_nan=False)
    write_file(directory / PAYOFFS_JSON, f"{text}\n".encode())
    write_file(directory / PAYOFFS_CSV, table.to_csv().encode())


def _known(number_MM: NDArray[np.float64], known_MM: NDArray[np.bool_]) -> list[list[float | None]]:
    """Return numbers as JSON has them: unknown ones are ``None``."""
    return [
        [float(number) if known else None for number, known in zip(*rows, strict=True)]
        for rows in zip(number_MM, known_MM, strict=True)
    ]
