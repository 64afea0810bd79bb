"""Programs whose next step is played while their policies learn."""

import shutil

import pytest
import torch

from game_runs import cut_back, metrics_of, resumed
from program_runs import OPPONENTS, adapter, configure, run
from sparring.collection.rollout_log import RolloutLog

OVERLAP = OPPONENTS | {"collection__max_staleness": "1"}


@pytest.fixture(scope="module")
def finished(model, tmp_path_factory):
    """A run of four updates, and what it printed."""
    path = tmp_path_factory.mktemp("overlap")
    return path / "whole", run(configure(model, path, **OVERLAP), path / "whole")


def test_every_step_is_played_and_learned_once_and_evaluations_are_kept_apart(finished):
    path, said = finished
    lines = metrics_of(path)
    assert [line["step"] for line in lines] == [1, 2, 3, 4]
    assert lines[-1]["accounts/started"] == lines[-1]["accounts/finished"] == 48
    assert "48 started = 48 finished + 0 failed" in said
    log = RolloutLog(path / "rollouts")
    for step in (1, 2, 3, 4):
        assert {rollout.meta["step"] for rollout in log.read(step)} == {step}
    evaluated = sorted((path / "evaluation").glob("*.jsonl"))
    assert len(evaluated) == 3
    for file in evaluated:
        assert len(file.read_text().splitlines()) == 9, (
            "three episodes with two children each, none of training"
        )


def test_a_run_is_resumed_without_the_step_that_was_in_progress(finished, tmp_path):
    whole, _ = finished
    shutil.copytree(whole, tmp_path / "cut")
    cut_back(tmp_path / "cut", to=2)
    resumed(tmp_path / "cut")
    for policy in ("hider", "seeker"):
        once, again = adapter(whole, 4, policy), adapter(tmp_path / "cut", 4, policy)
        assert once.keys() == again.keys() != set()
        assert all(torch.allclose(once[name], again[name], atol=1e-5) for name in once)
    ids = [[one.id for _, one in RolloutLog(path / "rollouts")] for path in (whole, tmp_path / "cut")]
    assert ids[0] == ids[1]
