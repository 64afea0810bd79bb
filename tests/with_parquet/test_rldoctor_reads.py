"""What ``sparring export --rldoctor`` writes, read by rl-doctor."""

import json
import math

import pytest
from rl_doctor import diagnose, load_run
from rl_doctor.schema import CANONICAL_FIELDS

from sparring.cli.main import main
from sparring.evaluation.results import MeasureResult, write_evaluation

UPDATES = 120


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A run of a program whose entropy falls, while its groups become equal and its reward stays."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "run"
    path.mkdir()
    (path / "config.toml").write_text('[program]\ntype = "python"\npath = "a.py:A"\n')
    lines = [
        {
            "step": step,
            "program/reward/Player": 0.1,
            "program/equal_group_share": min(1.0, step / 60),
            "program/group_size": 8.0,
            "program/metric/ask/right/Player": 0.1,
            "answers/entropy_estimate": 1.2 * math.exp(-step / 15),
            "answers/tokens": 7.0,
            "answers/cut_share": 0.0,
            "learner/loss": 0.01,
            "learner/grad_norm": 1.0,
            "learner/learning_rate": 1e-4,
        }
        for step in range(1, UPDATES + 1)
    ]
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for update in (0, UPDATES):
        write_evaluation(path / "evaluation", update, "right", MeasureResult("right", [1.0, 0.0]))
    return path


def test_every_field_is_one_that_it_knows_and_it_finds_the_faults(run, tmp_path, capsys):
    assert main(["export", str(run), "for-it.jsonl", "--rldoctor"]) == 0
    assert capsys.readouterr().out.startswith(f"wrote for-it.jsonl: {UPDATES} updates")
    read = load_run("for-it.jsonl")
    assert read.unmapped_keys == []
    line = json.loads((tmp_path / "for-it.jsonl").read_text().splitlines()[5])
    own = {name for name in line if not name.startswith("rewards/")} - {"step"}
    assert own <= set(CANONICAL_FIELDS)
    assert {"reward_mean", "entropy", "zero_var_group_frac", "grad_norm"} <= own
    found = {one.detector for one in diagnose(read).problems}
    assert {"entropy_collapse", "advantage_collapse"} <= found


def test_a_healthy_run_has_no_problem_there_either(run):
    path = run / "metrics.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        line |= {"answers/entropy_estimate": 1.0, "program/equal_group_share": 0.1}
        line["program/reward/Player"] = line["program/metric/ask/right/Player"] = line["step"] / UPDATES
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert main(["export", str(run), "for-it.jsonl", "--rldoctor"]) == 0
    assert diagnose(load_run("for-it.jsonl")).problems == []
