"""``sparring export --rldoctor``: the lines that it writes. tests/with_parquet lets rl-doctor read them."""

import json

import pytest

from sparring.commands.export_rldoctor import export_rldoctor
from sparring.core import InputError
from sparring.evaluation.results import MeasureResult, write_evaluation


@pytest.fixture
def run(tmp_path):
    """A run of a program that was evaluated before its first update."""
    path = tmp_path / "run"
    path.mkdir()
    (path / "config.toml").write_text('[program]\ntype = "python"\npath = "a.py:A"\n')
    write_evaluation(path / "evaluation", 0, "right", MeasureResult("right", [1.0, 0.0]))
    return path


def test_what_is_evaluated_before_the_first_update_has_a_line_and_is_no_update(run, tmp_path):
    metrics = [{"step": step, "answers/tokens": 7.0} for step in (1, 2)]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in metrics))
    out = tmp_path / "for-it.jsonl"
    assert export_rldoctor(str(run), out) == 2
    assert [json.loads(line) for line in out.read_text().splitlines()] == [
        {"step": 0, "eval_score": 0.5},
        {"step": 1, "response_len_mean": 7.0},
        {"step": 2, "response_len_mean": 7.0},
    ]


def test_a_run_that_was_only_evaluated_is_refused(run, tmp_path):
    out = tmp_path / "for-it.jsonl"
    with pytest.raises(InputError, match="has no update of sparring train"):
        export_rldoctor(str(run), out)
    assert not out.exists()
