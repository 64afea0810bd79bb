"""Figures of evaluations: their names, which way is better, and what a damaged file says."""

import json
import re

import pytest

from run_files import match, nash
from sparring.commands.tables import results_table
from sparring.core import InputError
from sparring.evaluation import write_evaluation
from sparring.evaluation.figures import NO_INTERVAL, FigureName, figure_text, figures_of, read_figures
from sparring.evaluation.results import MeasureResult
from sparring.evaluation.task_result import TaskResult
from sparring.view.source import RunDirectorySource, read_to_end
from sparring.view.tables import before_and_after


def test_every_number_of_a_match_has_a_name_its_interval_and_a_direction():
    figures = {figure.name.name: figure for figure in figures_of(match(3, 10, draws=1))}
    assert list(figures) == [
        "win rate against random",
        "draw rate against random",
        "loss rate against random",
        "games ended by an invalid move against random",
        "invalid moves against random",
        "mean reward against random",
    ]
    won = figures["win rate against random"]
    assert won.interval == match(3, 10, draws=1).win_rate
    assert (won.count, won.counted, won.kind) == (10, "games", "share")
    counted = [figure.counted for figure in figures.values()]
    assert counted == ["games", "games", "games", "games", "moves", "games"]
    assert figures["mean reward against random"].value == pytest.approx(-0.3)
    assert [figure.smaller_is_better for figure in figures.values()] == [
        False,
        False,
        True,
        True,
        True,
        False,
    ]


FEW = [
    match(2, 2),
    MeasureResult("right", [1.0, 1.0]),
    MeasureResult("part", [0.7, 0.7]),
    MeasureResult("once", [0.2]),
    TaskResult(task="sums", model="m", temperature=1.0, max_tokens=8, seed=0, scores=[1.0, 1.0]),
    TaskResult(task="parts", model="m", temperature=1.0, max_tokens=8, seed=0, scores=[0.5, 0.5]),
]
"""Evaluations of so little that all values are equal."""


def in_eval(run):
    table = results_table(FEW)
    return [cell for _, _, rows in table.groups for row in rows for cell in row]


def in_report_and_watch(run):
    table = before_and_after(read_to_end(RunDirectorySource(run)))
    return [cell for _, _, rows in table.groups for row in rows for cell in row]


def in_lines(run):
    return [figure_text(one) for result in FEW for one in figures_of(result)]


@pytest.mark.parametrize("place", [in_eval, in_report_and_watch, in_lines])
def test_a_few_equal_values_are_nowhere_printed_as_certain(place, tmp_path):
    for number, result in enumerate(FEW):
        for update in (0, 1):
            folder = "tasks" if isinstance(result, TaskResult) else "evaluation"
            write_evaluation(tmp_path / folder, update, f"e{number}", result)
    texts = [one if isinstance(one, str) else f"{one.text} ({one.note})" for one in place(tmp_path)]
    intervals = re.findall(r"\((\S+) to (\S+)\)", "\n".join(texts))
    assert len(intervals) >= 5
    assert all(low != high for low, high in intervals)
    assert sum(NO_INTERVAL in text for text in texts) >= 3, "the mean reward, and two measures"


def test_a_game_for_one_player_has_no_opponent_in_its_figures():
    assert figures_of(match(3, 10, opponent=""))[0].name == ("win rate", "kuhn_poker", "")


def test_less_nash_conv_is_better_and_an_unplayable_one_is_marked():
    exact, mass = figures_of(nash(0.5))
    assert (exact.name.name, exact.value, exact.kind) == ("NashConv", 0.5, "exact")
    assert exact.smaller_is_better
    assert not mass.smaller_is_better
    assert exact.is_playable
    assert not figures_of(nash(0.5, mass=0.05))[0].is_playable


def test_a_measure_has_the_programs_own_name_and_none_without_values():
    (figure,) = figures_of(MeasureResult("words a turn", [2.0, 4.0]))
    assert (figure.name, figure.value, figure.kind) == (("words a turn", "", ""), 3.0, "mean")
    assert figures_of(MeasureResult("won by Aff", [1.0, 0.0]))[0].kind == "share"
    assert figures_of(MeasureResult("words a turn", [])) == []


def test_a_name_is_meant_with_and_without_its_environment():
    name = FigureName("NashConv", "kuhn_poker")
    assert name.is_meant_by("NashConv")
    assert name.is_meant_by("NashConv in kuhn_poker")
    assert not name.is_meant_by("NashConv in leduc_poker")
    assert not FigureName("odd letters").is_meant_by("odd letters in ")


def test_the_figures_of_an_update_are_those_of_its_files_only(tmp_path):
    write_evaluation(tmp_path, 2, "random", match(1, 4))
    write_evaluation(tmp_path, 20, "nash-conv", nash(0.5))
    assert [figure.name.name for figure in read_figures(tmp_path, 20)] == ["NashConv", "mass on legal moves"]
    assert read_figures(tmp_path, 3) == []


@pytest.mark.parametrize(
    "change", [{"wins": 11}, {"wins": "3"}, {"games": None}, {"reward_sum": float("nan")}, {"kind": "mtach"}]
)
def test_an_evaluation_with_impossible_numbers_is_damaged(tmp_path, change):
    path = write_evaluation(tmp_path, 2, "random", match(3, 10))
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(InputError, match=r"step-000002-random\.json: is .*damaged"):
        read_figures(tmp_path, 2)
