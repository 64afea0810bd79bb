"""What both engines check of a request."""

import math
from collections.abc import Mapping
from typing import TypeVar

from selfplay.core import InputError
from selfplay.core.adapters import TRAINED

Served = TypeVar("Served")


def find_model(served: Mapping[str, Served], name: str | None) -> Served:
    """Return the model that is served under a name, by default that of the trained policy.

    Raises:
        InputError: there is none.
    """
    name = name or TRAINED
    if name not in served:
        names = ", ".join(served) or "nothing yet"
        raise InputError("model", f"the engine does not serve {name}", f"It serves {names}")
    return served[name]


def check_sampling(max_tokens: int, temperature: float, least: int = 1) -> None:
    """Check the limit of an answer, which must be ``least`` tokens or more, and its temperature.

    Raises:
        InputError: one of them is impossible.
    """
    if max_tokens < least:
        raise InputError("max_tokens", f"{max_tokens} leaves no room for an answer", "Give at least 1")
    if not (temperature >= 0 and math.isfinite(temperature)):
        raise InputError("temperature", f"{temperature} is not possible", "Give 0 or more, such as 1")
