"""A run ends early when its evaluations no longer find a better policy."""

import json

import pytest
from rich.console import Console

from game_runs import configure, run
from run_files import nash
from sparring.config.population import EvaluationSettings
from sparring.core import InputError
from sparring.evaluation import MatchResult, read_evaluation, write_evaluation
from sparring.evaluation.results import evaluated_steps
from sparring.run.best import has_settled
from sparring.run.checks import check_config
from sparring.run.single_process import resume


def write(directory, step, mean, games=100, opponent="random"):
    """Write an evaluation whose rewards have this mean and the standard deviation 1: +-0.196."""
    squares = (games - 1) + games * mean * mean
    match = MatchResult(
        env_id="kuhn_poker",
        num_players=2,
        model="m",
        opponent=opponent,
        seed=0,
        requested_games=games,
        games=games,
        reward_sum=games * mean,
        reward_squares=squares,
    )
    write_evaluation(directory, step, f"kuhn_poker-{opponent}", match)


def rule(patience, every=1):
    return EvaluationSettings(patience=patience, every=every)


@pytest.mark.parametrize(
    ("means", "settled"),
    [
        ([0.0, 0.1, 0.15], True),  # within the interval
        ([0.0, 0.1, 0.2], False),  # small steps add up
        ([0.0, 0.3, 0.3], False),
        ([0.0, 0.3, 0.3, 0.2], True),
        ([0.0, -0.5], False),  # too few
        ([0.0, -0.5, 0.0], True),
    ],
)
def test_it_has_settled_when_no_recent_evaluation_is_better_beyond_chance(means, settled, tmp_path):
    for step, mean in enumerate(means):
        write(tmp_path, 5 * step, mean)
    assert has_settled(tmp_path, rule(2, every=5)) == settled
    assert not has_settled(tmp_path, rule(0))


def test_the_evaluation_of_a_last_update_that_was_not_due_does_not_count(tmp_path):
    """So a run that was made longer, here after updates 6 and 7, settles no sooner."""
    for step in (0, 5, 6, 7):
        write(tmp_path, step, 0.0)
    assert not has_settled(tmp_path, rule(2, every=5))
    write(tmp_path, 10, 0.0)
    assert has_settled(tmp_path, rule(2, every=5))


def test_one_match_that_is_better_is_enough(tmp_path):
    for step, mean in enumerate([0.0, 0.1, 0.5]):
        write(tmp_path, step, 0.0)
        write(tmp_path, step, mean, opponent="base")
    assert not has_settled(tmp_path, rule(2))
    assert not has_settled(tmp_path / "none", rule(2))


def test_a_match_of_which_one_game_was_finished_says_nothing(tmp_path):
    for step, (mean, games) in enumerate([(0.0, 100), (0.0, 100), (1.0, 1)]):
        write(tmp_path, step, mean, games)
    assert not has_settled(tmp_path, rule(2))
    write(tmp_path, 3, 0.0)
    assert has_settled(tmp_path, rule(2))


def test_an_evaluation_without_matches_says_nothing(tmp_path):
    for step in range(5):
        write_evaluation(tmp_path, step, "kuhn_poker-nash-conv", nash(0.1))
    assert not has_settled(tmp_path, rule(2))


def test_a_run_ends_when_it_has_settled_is_measured_with_all_games_and_not_continued(model, tmp_path):
    changes = {"evaluation__every": "1", "evaluation__patience": "2", "learning__steps": "20"}
    still = {"learning__learning_rate": "1e-9", "learning__learning_rate_end": "1e-9"}
    games = {"evaluation__games": "24", "evaluation__games_during": "4"}
    path = tmp_path / "run"
    said = run(configure(model, **changes, **still, **games, run__save_every="20"), path)
    steps = evaluated_steps(path / "evaluation")
    assert 2 <= steps[-1] < 10, "a policy that does not change is not better for long"
    assert f"settled after update {steps[-1]} of 20: 2 evaluations found no better policy" in said
    assert (path / "report.html").exists()
    played = [
        read_evaluation(path / "evaluation" / f"step-{step:06d}-kuhn_poker-random.json")[1].games
        for step in steps
    ]
    assert played == [24, *[4] * (len(steps) - 2), 24]
    state = json.loads((path / "checkpoints" / f"step-{steps[-1]:06d}" / "state.json").read_text())
    rated = state["source"]["pool"]["matches"]["average"]["fixed-random"]["games"]
    assert rated == sum(played), "the last 24 games begin with the 4 that found the run settled"
    lines = (path / "metrics.jsonl").read_text()
    resume(path, Console(quiet=True))
    assert (path / "metrics.jsonl").read_text() == lines


def test_patience_without_evaluations_is_refused(model):
    with pytest.raises(
        InputError, match=r"evaluation\.patience: has no effect, because evaluation\.every is 0"
    ):
        check_config(configure(model, evaluation__every="0", evaluation__patience="2"))
