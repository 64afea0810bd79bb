"""Check which model families can be trained: tiny random models make two updates of Kuhn poker in float32.

    python benchmarks/model_families.py [FAMILY ...]

Each family takes the path of ``sparring train``: it is loaded and checked, the embedded engine plays with it,
the learner trains it on prefix trees, and the result is published and played with again. The first update
gives the adapter an effect, and the second update's games are played with it. The mismatch is the larger of
the two updates': the mean difference, in nats, between the log-probabilities with which the engine sampled
and those that the learner computes. A family that cannot be trained must be rejected with a one-line error.
"""

import io
import sys
import tempfile
import warnings
from pathlib import Path

from rich.console import Console
from transformers.utils import logging as transformers_logging

from measuring import pin_one_thread, print_table
from sparring.collection import read_metrics
from sparring.config import load_config
from sparring.core import SparringError
from sparring.run.single_process import train

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from family_models import FAMILIES, family_model

LARGEST_MISMATCH = 1e-4
SETTINGS = {
    "model.dtype": "float32",
    "model.threads": "1",
    "lora.rank": "4",
    "inference.max_tokens": "4",
    "collection.games_per_step": "16",
    "learning.steps": "2",
    "learning.learning_rate": "0.01",
    "learning.learning_rate_end": "0.01",
    "learning.warmup_steps": "0",
    "evaluation.games": "2",
    "evaluation.every": "0",
    "evaluation.nash_conv": "false",
    "evaluation.opponents": "['random']",
}


def outcome(family: str, directory: Path) -> tuple[float | None, str]:
    """Train a family; returns its largest mismatch, or ``None`` and the error that rejects it."""
    model = family_model(family)
    config = load_config("quickstart", SETTINGS | {"model.name": str(model)})
    run = directory / model.name
    printed = Console(file=io.StringIO(), width=10_000)
    try:
        train(config, run, printed)
    except SparringError as error:
        return None, str(error).replace(str(model), model.name)
    metrics = read_metrics(run / "metrics.jsonl")
    updates = [line["learner/mismatch"] for line in metrics if "learner/mismatch" in line]
    if len(updates) != 2:
        return None, f"{len(updates)} updates were made"
    return max(updates), ""


def main() -> None:
    """Print a row for each family."""
    pin_one_thread()
    warnings.simplefilter("ignore")
    transformers_logging.disable_progress_bar()
    rows, wrong = [], []
    with tempfile.TemporaryDirectory() as folder:
        for family in sys.argv[1:] or FAMILIES:
            mismatch, refusal = outcome(family, Path(folder))
            if mismatch is None:
                rows.append([family, "", refusal])
            else:
                rows.append([family, f"{mismatch:.1e}", ""])
            if (mismatch is None and "\n" in refusal) or (mismatch or 0.0) > LARGEST_MISMATCH:
                wrong.append(family)
    print_table(["family", "trained with a mismatch of", "rejected"], rows)
    trained = sum(1 for row in rows if row[1])
    print(f"{trained} trained, {len(rows) - trained} rejected in one line, {len(wrong)} wrong: {wrong}")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
