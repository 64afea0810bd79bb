"""Short runs of recipes."""

import math

from safetensors.torch import load_file

from game_runs import SMALL, metrics_of
from sparring.config import load_config

OVER_LEGAL_ANSWERS = ("all_actions", "magnet", "neurd")


# A tiny model finds the legal answers by the regulariser; only then do rewards differ.
KUHN = {
    "learning.steps": "40",
    "learning.learning_rate": "0.01",
    "lora.rank": "4",
    "run.save_every": "40",
    "evaluation.every": "40",
}


FINDS_ANSWERS = {
    "learning.algorithm.regulariser": "uniform",
    "learning.algorithm.regulariser_weight": "1.0",
    "learning.algorithm.regulariser_weight_end": "0.1",
}


def kuhn(model, name, **changes):
    own = {} if name in OVER_LEGAL_ANSWERS else FINDS_ANSWERS
    return load_config("quickstart", SMALL | {"model.name": str(model)} | KUHN | own | changes, name)


def adapter(path, step):
    return load_file(path / "checkpoints" / f"step-{step:06d}" / "adapter_model.safetensors")


def assert_trained(path, steps):
    """Check that every update was made, rewards taught something, figures are numbers, the adapter moved."""
    lines = metrics_of(path)
    assert [line["step"] for line in lines] == list(range(1, steps + 1))
    assert all(math.isfinite(line["learner/loss"]) for line in lines)
    if "learner/value_loss" in lines[0]:
        assert max(line["learner/value_loss"] for line in lines) > 0
    else:
        # Missing where the tree of games has found values.
        assert min(line.get("answers/zero_advantage_share", 0.0) for line in lines) < 1
    first, last = adapter(path, 0), adapter(path, steps)
    assert any((first[name] != last[name]).any() for name in first)
