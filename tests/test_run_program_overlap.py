"""Programs whose next step is played while their policies learn."""

import shutil

import torch

from game_runs import cut_back, metrics_of, resumed
from program_runs import OPPONENTS, adapter, configure, run
from sparring.collection.rollout_log import RolloutLog

OVERLAP = OPPONENTS | {"collection__max_staleness": "1"}


def test_every_step_is_played_and_learned_once_and_evaluations_are_kept_apart(model, tmp_path):
    said = run(configure(model, tmp_path, **OVERLAP), tmp_path / "run")
    lines = metrics_of(tmp_path / "run")
    assert [line["step"] for line in lines] == [1, 2, 3, 4]
    assert lines[-1]["accounts/started"] == lines[-1]["accounts/finished"] == 48
    assert "48 started = 48 finished + 0 failed" in said
    log = RolloutLog(tmp_path / "run" / "rollouts")
    for step in (1, 2, 3, 4):
        assert {rollout.meta["step"] for rollout in log.read(step)} == {step}
    evaluated = sorted((tmp_path / "run" / "evaluation").glob("*.jsonl"))
    assert len(evaluated) == 3
    for path in evaluated:
        assert len(path.read_text().splitlines()) == 9, (
            "three episodes with two children each, none of training"
        )


def test_a_run_is_resumed_without_the_step_that_was_in_progress(model, tmp_path):
    config = configure(model, tmp_path, **OVERLAP)
    run(config, tmp_path / "whole")
    shutil.copytree(tmp_path / "whole", tmp_path / "cut")
    cut_back(tmp_path / "cut", to=2)
    resumed(tmp_path / "cut")
    for policy in ("hider", "seeker"):
        once, again = adapter(tmp_path / "whole", 4, policy), adapter(tmp_path / "cut", 4, policy)
        assert once.keys() == again.keys() != set()
        assert all(torch.allclose(once[name], again[name], atol=1e-5) for name in once)
    ids = [
        [rollout.id for _, rollout in RolloutLog(tmp_path / name / "rollouts")] for name in ("whole", "cut")
    ]
    assert ids[0] == ids[1]
