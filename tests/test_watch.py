"""The live view: drawing a run at any size."""

import asyncio
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from textual.geometry import Size

from selfplay.read import line_tail
from selfplay.read.charts import Chart, Line
from selfplay.read.episodes import LoggedEpisode
from selfplay.read.numbers import number_text
from selfplay.read.population import Meeting, Population
from selfplay.read.rollouts import LoggedRollout
from selfplay.read.run_view import RunView
from selfplay.read.series import Series
from selfplay.read.source import RunDirectorySource
from selfplay.read.whole_run import load_run
from selfplay.training.run_directory import RunDirectory
from selfplay.watch.game import game_text
from selfplay.watch.header import header
from selfplay.watch.panels import accounts_panel, run_panel
from selfplay.watch.plot import draw_chart, sparkline
from selfplay.watch.population import population_panel
from selfplay.watch.tables import ratings_table
from selfplay.watch.terminal_interface import VIEWS, TerminalInterface
from selfplay.watch.themes import DARK, LIGHT
from watch_screens import look, words_on
from watched_runs import append, read_all, run_of, said, write_log

SIZES = [(80, 24), (200, 60)]


def test_a_programs_extras_may_contain_anything(tmp_path):
    run = run_of(tmp_path / "run")
    extras = {"turns": 7, "final_rewards": "none", "game_info": [1], "transcript": {"a": 1}, "winner": "Aff"}
    step = {"role_id": "Aff", "prompt": [{"role": "user", "content": "why?"}], "completion": []}
    write_log(
        run, 1, [{"episode_type": "debate", "extras": extras, "steps": [step], "rewards": {"Aff": 1.0}}]
    )
    text = game_text(read_all(run).game, 60).plain
    for expected in ("debate", "Aff +1", "why?", "winner: Aff"):
        assert expected in text


@given(text=st.text(max_size=300), width=st.integers(20, 120))
@settings(max_examples=60, deadline=None)
def test_any_text_fits_and_contains_no_control_characters(text, width):
    turn = {"pid": 0, "model": "random", "observation": text, "text": text}
    game = LoggedEpisode(1, 0, LoggedRollout("solve", extras={"turns": [turn]}))
    said = {"author": "Solver", "text": text}
    game.children.append(LoggedEpisode(1, 1, LoggedRollout("solve", extras={"transcript": [said]})))
    content = game_text(game, width)
    assert all(line.cell_length <= width for line in content.split("\n"))
    assert not any(ord(char) < 32 for char in content.plain.replace("\n", ""))


NUMBERS = (
    st.floats(-1e12, 1e12)
    | st.sampled_from([5e-324, 1e-120, 1e12 + 1])
    | st.floats(-1, 1)
    | st.integers(-5, 5).map(float)
)


@given(
    values=st.lists(st.lists(NUMBERS, min_size=1, max_size=20), min_size=1, max_size=3),
    axis=st.sampled_from(["plain", "share", "log"]),
    width=st.integers(1, 120),
    height=st.integers(0, 30),
)
@settings(max_examples=60, deadline=None)
def test_a_chart_fills_its_area_whatever_the_values(values, axis, width, height):
    lines = [Line(f"line {i}", list(map(float, range(len(one)))), one) for i, one in enumerate(values)]
    drawn = draw_chart(Chart("chart", lines, axis=axis, bounds=(0.0,)), "update", width, height).plain.split(
        "\n"
    )
    assert len(drawn) <= max(1, height)
    if width >= 60 and height >= 6:
        assert len(drawn) == height
        assert max(map(len, drawn)) == width


def test_a_rising_line_rises():
    drawn = draw_chart(Chart("", [Line("", [1.0, 2.0], [0.0, 1.0])]), "update", 24, 6).plain.split("\n")
    dots = [[i for i, char in enumerate(line) if "\u2800" < char <= "\u28ff"] for line in drawn[1:-1]]
    assert all(dots)
    assert [min(row) for row in dots] == sorted((min(row) for row in dots), reverse=True)
    assert drawn[1].startswith("1.0┤")
    assert drawn[-2].startswith("0.0┤")
    assert drawn[-1].startswith("   └1")


def test_a_logarithmic_axis_is_labelled_in_decades_and_gives_each_the_same_height():
    line = Line("", [1.0, 2.0, 3.0], [1e-6, 1e-5, 1e-4])
    drawn = draw_chart(Chart("", [line], axis="log"), "update", 24, 11).plain.split("\n")[1:-1]
    assert drawn[0].startswith("1e-04┤")
    assert drawn[4].startswith("1e-05┤")
    assert drawn[-1].startswith("1e-06┤")
    rows = [row for row, text in enumerate(drawn) if any("\u2800" < char <= "\u28ff" for char in text)]
    middle = [row for row, text in enumerate(drawn) if "\u2800" < text[14] <= "\u28ff"]
    assert rows == list(range(9))
    assert 4 in middle


@pytest.mark.parametrize(
    ("value", "percent", "text"),
    [
        (0.0, False, "0"),
        (0.0445, False, "0.0445"),
        (1234.0, False, "1,234"),
        (572231.0, False, "572k"),
        (2.5e7, False, "25.0M"),
        (4e-6, False, "4e-06"),
        (0.5125, True, "51%"),
        (0.0012, True, "0.1%"),
        (0.9974, True, "99.7%"),
        (1.0, True, "100%"),
    ],
)
def test_numbers_are_short(value, percent, text):
    assert number_text(value, percent=percent) == text


def test_bars_show_the_last_values():
    assert sparkline([9.0, 1.0, 2.0, 4.0, 8.0], 4) == "▁▂▄█"
    assert sparkline([100.0, 99.0], 8)[1] > "▄", "small changes look small"
    assert sparkline([], 5) == sparkline([1.0], 0) == ""


def test_ratings_are_shown_with_their_uncertainty(games_run):
    view = read_all(games_run)
    lines = ratings_table(view, Size(76, 20)).plain.split("\n")
    assert len(lines) == 1 + len(view.ratings())
    best = view.ratings()[0]
    assert lines[1].split()[:3] == [best.uid, f"{best.mu:.1f}", f"{2 * best.sigma:.1f}"]
    assert lines[0].split()[:5] == ["rating", "±", "2σ", "games", "drawn"]
    drawn = [int(line.split()[4]) for line in lines[1:] if line.split()[0] != "default"]
    assert sum(drawn) == 24, "three updates of eight games"
    assert all(line.count("●") == 1 and len(line) <= 76 for line in lines[1:])
    assert "No model has been rated" in ratings_table(RunView(""), Size(76, 20)).plain


@pytest.mark.parametrize("size", [Size(76, 20), Size(196, 56), Size(30, 8)])
def test_the_heat_map_fits_and_counts_the_models_that_do_not(size):
    uids = [f"ckpt-{number}" for number in range(40)] + ["fixed-random"]
    meetings = {uid: {other: Meeting(4, 3, 0) for other in uids if other != uid} for uid in uids}
    text = population_panel(RunView("", meetings=meetings, meetings_step=7), size).plain
    lines = text.split("\n")
    assert len(lines) <= size.height
    assert all(len(line.rstrip()) <= size.width for line in lines[:-2])
    assert lines[1].split()[:2] == ["fixed-random", "·"]
    assert lines[1].split()[2] == "75"
    shown = sum(line.startswith(("ckpt", "fixed")) for line in lines)
    assert f"{41 - shown} older copies do not fit" in text


def test_games_against_oneself_are_not_a_match():
    view = RunView("", meetings={"ckpt-0": {"ckpt-0": Meeting(10)}})
    assert "No matches between models" in population_panel(view, Size(80, 20)).plain


def test_a_moment_in_which_nobody_has_met_yet_shows_so():
    view = RunView("", moments=[Population(3)])
    assert "No matches between models" in population_panel(view, Size(80, 20)).plain


def test_accounts_add_up(games_run):
    view = read_all(games_run)
    words = accounts_panel(view, Size(60, 10)).plain.split()
    counts = {
        name: int(words[words.index(name) + 1]) for name in ("started", "finished", "failed", "playing")
    }
    assert counts["started"] == counts["finished"] + counts["failed"] + counts["playing"] == 24


@pytest.mark.parametrize(
    ("seconds", "state"), [(5.0, "running"), (70.0, "running"), (700.0, "quiet"), (-30.0, "running")]
)
def test_a_run_is_quiet_after_ten_of_its_steps(seconds, state):
    times = Series([1, 2, 3], [0.0, 10.0, 20.0])
    view = RunView("run", {"learning": {"steps": 9}}, {"wall_time": times}, {"step": 3, "wall_time": 20.0})
    line = header(view, 20.0 + seconds, 80).plain
    assert state in line
    assert ("1 min 0 s left" in line) == (state == "running")
    assert len(line) == 80


@pytest.mark.parametrize(
    ("steps", "total", "trained", "state"),
    [
        (3, 100, True, "quiet"),
        (3, 100, False, "stopped"),
        (0, 100, True, "not started"),
        (0, 100, False, "stopped"),
        (3, 3, False, "finished"),
    ],
)
def test_a_run_that_no_process_trains_is_stopped_unless_it_is_finished(
    steps, total, trained, state, tmp_path
):
    run = run_of(tmp_path / "run", steps=total)
    for step in range(1, steps + 1):
        append(run, {"step": step, "wall_time": float(step)})
    directory = RunDirectory(run)
    directory.lock()
    if not trained:
        directory.unlock()
    assert f" {state} " in header(read_all(run), 1000.0, 80).plain
    directory.unlock()


def test_the_time_so_far_includes_the_first_step_and_evaluation_as_in_the_report(tmp_path):
    first = {"time/play_seconds": 100.0, "time/learn_seconds": 40.0, "time/evaluation_seconds": 60.0}
    run = run_of(tmp_path / "run", step=1, wall_time=1000.0, **first)
    assert "time so far     3 min 20 s" in run_panel(read_all(run), Size(60, 10)).plain
    append(run, {"step": 2, "wall_time": 1100.0, "time/play_seconds": 90.0, "time/save_seconds": 5.0})
    view = read_all(run)
    assert "time so far     5 min 0 s" in run_panel(view, Size(60, 10)).plain
    assert view.seconds() == load_run(run).seconds() == 300.0


EXPECTED = {
    "overview": ("Speed", "Time of the last update", "Evaluation", "Accounts", "Work of the last update"),
    "curves": ("update",),
    "ratings": ("rating", "±"),
    "population": ("default", "random", "rating"),
    "rates": ("━",),
    "game": ("seat 0",),
}


@pytest.mark.parametrize(("size", "light"), [(SIZES[0], False), (SIZES[1], True)])
async def test_every_view_is_there_at_every_size(games_run, size, light):
    app = TerminalInterface(RunDirectorySource(games_run), light=light)
    async with app.run_test(size=size) as pilot:
        await look(app, pilot)
        assert app.theme == (LIGHT if light else DARK).name
        for number, name in enumerate(VIEWS, start=1):
            await pilot.press(str(number))
            await pilot.pause()
            assert app.current().id == name
            text = words_on(app)
            for expected in ("games", "finished", "update 3 of 3", "1 Overview", "q Quit", *EXPECTED[name]):
                assert expected in text, f"{name} lacks {expected}"


async def test_every_view_of_a_programs_run_is_there(program_run):
    app = TerminalInterface(RunDirectorySource(program_run))
    expected = {
        "overview": "episodes",
        "curves": "Reward by role",
        "ratings": "seeker",
        "game": "Last episode",
    }
    expected |= {"population": "seeker", "rates": "Answers cut at the token"}
    async with app.run_test(size=(80, 24)) as pilot:
        await look(app, pilot)
        for number, name in enumerate(VIEWS, start=1):
            await pilot.press(str(number))
            await pilot.pause()
            assert expected[name] in words_on(app)


async def test_a_run_can_be_watched_from_its_start(tmp_path):
    run = run_of(tmp_path / "run", steps=2)
    RunDirectory(run).lock()
    app = TerminalInterface(RunDirectorySource(run))
    async with app.run_test(size=(80, 24)) as pilot:
        await look(app, pilot)
        assert "not started" in words_on(app)
        await pilot.press("2")
        await pilot.pause()
        assert "Nothing has been measured yet." in words_on(app)
        append(run, {"step": 1, "wall_time": 1.0, "learner/loss": 0.5})
        await look(app, pilot)
        assert "Loss" in words_on(app)
        assert "update 1 of 2" in words_on(app)
        append(run, {"step": 2, "wall_time": 2.0, "learner/loss": 0.25, "learner/grad_norm": 1.0})
        await look(app, pilot)
        assert "Gradient norm" in words_on(app)
        assert "finished" in words_on(app)


async def test_a_long_file_is_read_in_pieces_without_waiting(tmp_path, monkeypatch):
    monkeypatch.setattr(line_tail, "CHUNK_BYTES", 200)
    run = run_of(tmp_path / "run")
    for step in range(1, 101):
        append(run, {"step": step, "wall_time": step})
    source = RunDirectorySource(run)
    app = TerminalInterface(source)
    read = threading.Event()

    def notice():
        view = source.read()
        if view.share_read == 1:
            read.set()
        return view

    app.source = type("Noticing", (), {"read": staticmethod(notice)})()
    async with app.run_test() as pilot:
        assert await asyncio.to_thread(read.wait, 30)
        await look(app, pilot)
        assert "update 100 of 100" in words_on(app)


async def test_a_visible_game_stays_until_the_newest_is_requested(tmp_path):
    run = run_of(tmp_path / "run")
    write_log(run, 1, [said("the first")])
    app = TerminalInterface(RunDirectorySource(run))
    async with app.run_test(size=(80, 24)) as pilot:
        await look(app, pilot)
        await pilot.press("6")
        await pilot.pause()
        write_log(run, 2, [said("the second")])
        await look(app, pilot)
        assert "the first" in words_on(app)
        assert "newer game, update 2" in words_on(app)
        await pilot.press("n")
        await pilot.pause()
        assert "the second" in words_on(app)
        assert "newer game" not in words_on(app)
        write_log(run, 3, [said("the third")])
        await pilot.press("1")
        await look(app, pilot)
        await pilot.press("6")
        await pilot.pause()
        assert "the third" in words_on(app)


async def test_keys_switch_the_theme_and_quit(games_run):
    app = TerminalInterface(RunDirectorySource(games_run))
    async with app.run_test() as pilot:
        await look(app, pilot)
        await pilot.press("t")
        assert app.theme == LIGHT.name
        await pilot.press("t")
        assert app.theme == DARK.name
        await pilot.press("q")
    assert app.return_code == 0


async def test_a_slow_source_does_not_block_the_keys():
    asked, answer = threading.Event(), threading.Event()

    class Slow:
        def read(self):
            asked.set()
            answer.wait(30)
            return RunView("slow")

    app = TerminalInterface(Slow())
    async with app.run_test() as pilot:
        assert await asyncio.to_thread(asked.wait, 30)
        await pilot.press("3")
        assert app.current().id == "ratings"
        answer.set()
        await app.workers.wait_for_complete()
        await pilot.pause()
        assert "slow" in words_on(app)
