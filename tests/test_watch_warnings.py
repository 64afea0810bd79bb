"""The warnings of the live view: about the last step, and about figures of a policy that cannot be played."""

import json
from pathlib import Path

import pytest
from textual.geometry import Size

from selfplay.read.source import RunDirectorySource
from selfplay.watch.evaluation import evaluation_panel
from selfplay.watch.panels import warnings_panel
from selfplay.watch.terminal_interface import TerminalInterface
from watched_runs import append, read_all, run_of


def run_with_nash_conv(path: Path, *masses: tuple[str, float]) -> Path:
    """A run that measured NashConv after each step, given the environment and the mass on legal answers."""
    run = run_of(path, step=len(masses), wall_time=1.0)
    (run / "evaluation").mkdir()
    for step, (env_id, legal_mass) in enumerate(masses):
        exact = {"step": step, "kind": "nash_conv", "env_id": env_id, "nash_conv": 1.08}
        exact |= {"legal_mass": legal_mass, "is_playable": legal_mass >= 0.1}
        (run / "evaluation" / f"step-{step:06d}-nash.json").write_text(json.dumps(exact))
    return run


def test_the_warnings_are_of_the_last_step(tmp_path):
    run = run_of(tmp_path / "run", step=1, wall_time=1.0, **{"answers/zero_advantage_share": 1.0})
    text = warnings_panel(read_all(run), Size(60, 10)).plain
    assert "every advantage is 0" in text
    assert len(text) <= 60
    append(run, {"step": 2, "wall_time": 2.0, "answers/zero_advantage_share": 0.5})
    assert warnings_panel(read_all(run), Size(60, 10)).plain == ""


def test_a_nash_conv_of_a_policy_that_cannot_be_played_is_marked(tmp_path):
    view = read_all(run_with_nash_conv(tmp_path / "run", ("kuhn_poker", 1e-9), ("kuhn_poker", 0.9)))
    shown = evaluation_panel(view, Size(60, 10)).plain
    assert [line.split()[:3] for line in shown.splitlines()[1:]] == [
        ["NashConv", "1.08!", "1.08"],
        ["!", "cannot", "be"],
    ]
    assert warnings_panel(view, Size(60, 10)).plain == "", "the last one is of a policy that can be played"


def test_a_single_evaluation_is_not_compared_with_itself(tmp_path):
    view = read_all(run_with_nash_conv(tmp_path / "run", ("kuhn_poker", 0.9)))
    head, figure = evaluation_panel(view, Size(60, 10)).plain.splitlines()
    assert head.split() == ["after", "update", "0", "now", "95%", "range"]
    assert figure.split() == ["NashConv", "1.08", "exact"]


@pytest.mark.parametrize("width", [30, 60, 200])
def test_the_warnings_name_the_environments_whose_last_nash_conv_cannot_be_played(tmp_path, width):
    masses = ("kuhn_poker", 0.9), ("leduc_poker", 0.5), ("kuhn_poker", 0.00012)
    run = run_with_nash_conv(tmp_path / "run", *masses)
    shown = warnings_panel(read_all(run), Size(width, 10)).plain
    assert max(map(len, shown.splitlines())) <= width
    whole = " ".join(shown.split())  # on several lines of a narrow terminal
    assert whole.startswith("! the NashConv of kuhn_poker is of a policy that cannot be played: 0.01% of its")
    assert whole.endswith("probability is on legal answers")
    assert "leduc" not in shown
    append(run, {"step": 3, "wall_time": 2.0, "answers/zero_advantage_share": 1.0})
    shown = warnings_panel(read_all(run), Size(200, 10)).plain
    assert "every advantage is 0" in shown
    assert "and 1 more, see the report" in shown


@pytest.mark.parametrize(("legal_mass", "is_shown"), [(1e-9, True), (0.9, False)])
async def test_the_overview_shows_the_warning_only_where_there_is_one(tmp_path, legal_mass, is_shown):
    run = run_with_nash_conv(tmp_path / "run", ("kuhn_poker", legal_mass))
    app = TerminalInterface(RunDirectorySource(run))
    async with app.run_test(size=(120, 40)) as pilot:
        await app.workers.wait_for_complete()
        await pilot.pause()
        assert app.query_one("#warnings").display == is_shown


def test_a_policy_that_can_be_played_has_no_mark(tmp_path):
    view = read_all(run_with_nash_conv(tmp_path / "run", ("kuhn_poker", 0.9), ("kuhn_poker", 0.9)))
    assert "!" not in evaluation_panel(view, Size(60, 10)).plain
