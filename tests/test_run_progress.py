"""The progress that is shown during slow work, in a terminal and when the output goes to a file."""

import io
import re
import shlex
from pathlib import Path

from rich.console import Console

from sparring.core.text import shell_command
from sparring.run import progress_views
from sparring.run.progress import RunProgress, TimeEstimate, print_stopped
from sparring.run.progress_views import BarsView, LinesView, view_of, working

FIGURES = {"answers/zero_advantage_share": 1.0, "answers/cut_share": 1.0, "answers/tokens": 16.0}
FIGURES |= {"learner/legal_mass": 1.0, "answers/entropy_estimate": 4.25, "learner/mismatch": 1e-7}


def terminal(width=80):
    return Console(file=io.StringIO(), width=width, height=24, force_terminal=True, color_system=None)


def drawn(view: BarsView, width=80):
    """Return the lines that the view would draw now."""
    console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    for part in view.get_renderables():
        console.print(part)
    return console.file.getvalue().splitlines()


def written(console):
    return console.file.getvalue().splitlines()


def to_file():
    return Console(file=io.StringIO(), width=80)


def a_long_run():
    """Return a view at update 1234 of 12345 with as much text as possible."""
    view = BarsView(terminal(), "episodes", 1536, steps=12345)
    view.updated(1234, "no advantage 100%, cut 100%, tokens 1024, legal 100%, entropy 4.2, mismatch 1e-07")
    view.count(1024, 1536)
    view.doing("TicTacToe-v0-train: 1000 games against " + "somebody with a long name " * 3)
    return view


def test_bars_fit_into_80_columns():
    updates, episodes, *below = drawn(a_long_run())
    for bar, count in ((updates, "1234/12345"), (episodes, "1024/1536")):
        assert re.fullmatch(rf"\w+ +━+╺?━+ +{count} +\d:\d\d:\d\d +(\d:\d\d:\d\d|-:--:--)", bar.strip()), bar
    assert len(below) == 2


def test_every_line_leaves_space_for_an_echoed_interrupt():
    assert all(len(line) <= 76 for line in drawn(a_long_run()))


def test_a_count_without_a_total_has_no_question_mark():
    view = BarsView(terminal(), "episodes", None, steps=3)
    view.count(12, None)
    assert re.search(r"\b12 ", drawn(view)[1])
    assert "?" not in "".join(drawn(view))


def test_only_the_number_of_updates_remains_on_the_screen():
    console = terminal()
    with RunProgress(console, 3, "games", 64) as progress:
        progress.updated(3, FIGURES)
        progress.say("evaluating the trained model")
        progress.evaluated(3, {"win against random": "50%"}, 1.0)
    last = console.file.getvalue().split("\x1b[2K")[-1]
    assert "3/3" in last
    assert "0/64" not in last
    assert "evaluating" not in last


def test_in_a_file_the_start_of_each_activity_is_a_line_but_not_that_of_learning():
    console = to_file()
    with RunProgress(console, 3, "games", 64) as progress:
        progress.say("evaluating the untrained model")
        progress.say("evaluating the untrained model")
        progress.evaluated(0, {"win against random": "50%"}, 1.0)
        progress.updated(0, {})
        progress.learning()
        progress.updated(1, FIGURES)
    assert written(console) == [
        "evaluating the untrained model",
        "update    0: win against random 50% (1 s)",
        "update    1/3: no advantage 100%, cut 100%, tokens 16, legal 100%, entropy 4.2, mismatch 1e-07",
    ]


def test_the_line_of_an_update_says_how_many_values_come_from_the_tree_if_there_is_one():
    console = to_file()
    with RunProgress(console, 3, "games", 64) as progress:
        progress.updated(1, {**FIGURES, "learner/tree_share": 0.85})
    assert ", legal 100%, tree 85%, entropy" in written(console)[0]


def test_an_evaluation_without_figures_has_no_line():
    console = to_file()
    with RunProgress(console, 3, "games", 64) as progress:
        progress.evaluated(0, {}, 0.0)
    assert written(console) == []


def test_in_a_terminal_learning_is_shown_until_the_update_is_done():
    view = BarsView(terminal(), "games", 8, steps=3)
    view.passing("learning")
    assert drawn(view)[-1] == "learning"
    view.updated(1, "legal 100%")
    assert drawn(view)[-1] == "legal 100%"


def test_counts_are_printed_every_five_seconds_at_first_and_every_minute_later(monkeypatch):
    now = 1000.0
    monkeypatch.setattr(progress_views, "monotonic", lambda: now)
    console = to_file()
    view = LinesView(console, "games", 400)
    counted = []
    for second in range(200):
        now = 1000.0 + second
        view.count(second, 400)
        counted.append(len(written(console)))
    assert counted[4] == 0
    assert counted[5] == 1
    assert counted[59] == 11
    assert len(written(console)) == 13
    assert written(console)[0] == "games: 5/400"


def test_where_no_count_moves_a_line_says_for_how_long_it_has_gone_on(monkeypatch):
    now = 1000.0
    monkeypatch.setattr(progress_views, "monotonic", lambda: now)
    console = to_file()
    view = LinesView(console, "games", 8)
    for what, seconds in (("loading a model", 12), ("evaluating", 6)):
        view.doing(what)
        for _ in range(seconds):
            now += 1.0
            view.tell()
    view.count(3, 8)
    for _ in range(5):
        now += 1.0
        view.tell()
    view.passing("learning")
    for _ in range(130):
        now += 1.0
        view.tell()
    assert written(console)[:6] == [
        "loading a model",
        "loading a model: 5 s so far",
        "loading a model: 10 s so far",
        "evaluating",
        "evaluating: 5 s so far",
        "games: 3/8",
    ]
    learning = [line for line in written(console) if line.startswith("learning")]
    assert learning[:2] == ["learning: 4 s so far", "learning: 9 s so far"], (
        "five seconds after the last line"
    )
    assert len(learning) < 12, "after a minute a line comes each minute"


def test_slow_work_is_announced_before_it_is_done():
    console = to_file()
    with working(console, "loading [red]a model"):
        assert written(console) == ["loading [red]a model"]


def test_in_a_terminal_slow_work_is_shown_until_it_is_done():
    console = terminal()
    with working(console, "loading [red]a model"):
        pass
    shown, _, after = console.file.getvalue().partition("loading [red]a model")
    assert shown
    assert after.endswith("\x1b[2K")


def test_progress_is_shown_as_bars_in_a_terminal_and_as_lines_in_a_file():
    assert isinstance(view_of(terminal(), "games", 2), BarsView)
    assert isinstance(view_of(to_file(), "games", 2), LinesView)


def shown(metrics: dict[str, float]) -> str:
    console = Console(file=io.StringIO(), width=200, force_terminal=True, color_system=None)
    with RunProgress(console, 3, "games", 4) as progress:
        progress.updated(1, metrics)
    file = console.file
    assert isinstance(file, io.StringIO)
    return file.getvalue()


def test_a_mismatch_that_was_not_measured_is_reported_as_such():
    measured = {"learner/loss": 0.5, "learner/mismatch": 0.02}
    assert "mismatch 0.02" in shown(measured)
    assert "not measured" not in shown(measured)
    assert "mismatch not measured" in shown({"learner/loss": 0.5})
    stale = {"learner/loss": 0.5, "learner/stale_mismatch": 0.03}
    assert "stale mismatch 0.03, mismatch not measured" in shown(stale)


def test_mismatch_is_not_mentioned_before_the_first_update():
    assert "mismatch" not in shown({})


def test_the_duration_of_a_run_is_told_once_from_its_first_updates_without_evaluations():
    estimate = TimeEstimate(60)
    assert estimate.updated(0, 100.0) is None
    assert estimate.updated(1, 150.0) is None  # slower than the others
    assert estimate.updated(2, 156.0) is None
    estimate.evaluated(30.0)
    assert estimate.updated(3, 192.0) is None
    assert estimate.updated(4, 198.0) == (
        "an update takes about 6.0 s here, so the 56 updates left will take about 5 min 36 s, "
        "without evaluations; often less, as the first ones tend to be slower"
    )
    assert estimate.updated(5, 204.0) is None


def test_a_run_that_ends_before_its_duration_is_known_tells_none():
    estimate = TimeEstimate(4)
    assert [estimate.updated(step, 10.0 * step) for step in range(5)] == [None] * 5


def test_a_continued_run_tells_how_long_the_rest_takes():
    estimate = TimeEstimate(200)
    estimate.updated(150, 0.0)
    estimate.updated(151, 130.0)
    estimate.updated(152, 260.0)
    line = estimate.updated(153, 390.0)
    assert line is not None
    assert "takes about 2 min 10 s here, so the 47 updates left will take about 1 h 41 min" in line


def test_progress_prints_the_duration():
    console = to_file()
    with RunProgress(console, 9, "games", 4) as progress:
        for step in range(6):
            progress.updated(step, {})
    assert sum("updates left will take about" in line for line in written(console)) == 1


def test_a_shell_reads_the_printed_commands_as_they_are_meant():
    run, game = Path("my runs/a"), "connect_four(rows=4,columns=4)"
    assert shlex.split(shell_command("play", run, "--env", game)) == [
        "sparring",
        "play",
        str(run),
        "--env",
        game,
    ]
    console = terminal(width=200)
    print_stopped(console, 1, 2, run)
    commands = [line.split(": ", 1)[1] for line in console.file.getvalue().splitlines()[1:]]
    words = [shlex.split(command) for command in commands]
    assert words == [["sparring", "train", "--resume", str(run)], ["sparring", "report", str(run)]]
