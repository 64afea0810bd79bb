"""The live view: reading a growing, damaged or finished run, and showing it."""

import asyncio
import json
import math
import shutil
import threading
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from textual.geometry import Size

from selfplay.read.run_data import load_run
from selfplay.watch import metrics
from selfplay.watch.charts import Chart, Line, evaluation_figures, learning_charts, rate_charts
from selfplay.watch.header import header
from selfplay.watch.metrics import MAX_POINTS, MetricsTail
from selfplay.watch.panels import accounts_panel, run_panel
from selfplay.watch.plot import draw_chart, number_text, sparkline
from selfplay.watch.run_view import Meeting, RunView, Series
from selfplay.watch.source import RunDirectorySource
from selfplay.watch.tables import game_text, heat_map, ratings_table
from selfplay.watch.terminal_interface import VIEWS, TerminalInterface
from selfplay.watch.themes import DARK, LIGHT
from test_runtime_local import model  # noqa: F401 - a fixture
from watched_runs import append, read_all, run_of, said, train_games, train_program, write_log

SIZES = [(80, 24), (200, 60)]


@pytest.fixture(scope="session")
def games(model, tmp_path_factory) -> Path:  # noqa: F811
    return train_games(model, tmp_path_factory.mktemp("watched") / "games")


@pytest.fixture(scope="session")
def program(model, tmp_path_factory) -> Path:  # noqa: F811
    return train_program(model, tmp_path_factory.mktemp("watched") / "program")


# Reading


def test_a_finished_run_of_games_is_read_whole(games):
    before = sorted((path, path.stat().st_mtime_ns) for path in games.rglob("*"))
    view = read_all(games)
    assert (view.name, view.step, view.total_steps, view.unit) == ("games", 3, 3, "games")
    assert view.is_finished
    assert view.plays() == ["kuhn_poker"]
    assert {evaluation.step for evaluation in view.evaluations} == {0, 1, 2, 3}
    assert view.meetings_step == 3
    assert view.meetings["fixed-random"]["default"].games > 0
    assert {"fixed-random", "ckpt-3"} <= {rating.uid for rating in view.ratings()}
    assert [rating.mu for rating in view.ratings()] == sorted([r.mu for r in view.ratings()], reverse=True)
    assert set(view.phases()) == {"play", "learn", "evaluate", "the rest"}
    assert view.game is not None
    assert view.game.step == 3
    assert view.game.turns[0].seat in (0, 1)
    assert (view.damaged_lines, view.trouble) == (0, "")
    after = sorted((path, path.stat().st_mtime_ns) for path in games.rglob("*"))
    assert before == after


def test_a_programs_run_is_read_with_its_policies_and_sub_episodes(program):
    view = read_all(program)
    assert (view.step, view.unit, view.is_program) == (3, "episodes", True)
    assert view.plays()[0].endswith(":HideAndSeek")
    assert {rating.uid for rating in view.ratings()} == {"hider", "seeker"}
    assert view.game is not None
    assert view.game.title == "hide"
    assert [part.title for part in view.game.parts] == ["seek", "seek"]
    assert [turn.speaker for turn in view.game.turns] == ["environment", "Hider"]


def test_the_view_does_not_depend_on_the_size_of_a_piece(games, monkeypatch):
    whole = read_all(games)
    monkeypatch.setattr(metrics, "CHUNK_BYTES", 100)
    source = RunDirectorySource(games)
    shares = [source.read().share_read for _ in range(3)]
    assert shares[0] < shares[1] < shares[2] == 1
    assert source.read() == whole


def test_a_run_that_has_just_started_is_empty(tmp_path):
    view = read_all(run_of(tmp_path / "run"))
    assert (view.step, view.total_steps, view.series, view.game) == (0, 100, {}, None)
    assert "not started" in header(view, 0.0, 80).plain


def test_a_growing_file_is_followed(tmp_path):
    run = run_of(tmp_path / "run", step=1, wall_time=10.0, **{"learner/loss": 0.5})
    source = RunDirectorySource(run)
    assert source.read().series["learner/loss"] == Series([1], [0.5])
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 2, "learner/')
        file.flush()
        assert source.read().step == 1
        file.write('loss": 0.25}\n')
    view = source.read()
    assert view.series["learner/loss"] == Series([1, 2], [0.5, 0.25])
    assert (view.damaged_lines, view.share_read) == (0, 1)


def test_the_view_of_a_resumed_run_drops_the_lines_that_were_cut_off(tmp_path):
    run = run_of(tmp_path / "run")
    for step in range(1, 6):
        append(run, {"step": step, "wall_time": step, "x": 0.0})
    source = RunDirectorySource(run)
    assert source.read().step == 5
    file = run / "metrics.jsonl"
    kept = file.read_text().splitlines(keepends=True)[:2]
    file.write_text("".join(kept))
    for step in range(3, 20):
        append(run, {"step": step, "wall_time": 100 + step, "x": 1.0})
    view = source.read()
    assert view.series["x"] == Series(list(range(1, 20)), [0.0] * 2 + [1.0] * 17)


@given(
    lines=st.lists(
        st.one_of(st.integers(1, 9), st.sampled_from(["{", "[]", "", '{"x": 1}', "\x00", "null"]))
    ),
    cuts=st.lists(st.integers(0, 200), max_size=4),
)
@settings(max_examples=60, deadline=None)
def test_only_damaged_lines_are_lost_however_the_file_grows(tmp_path_factory, lines, cuts):
    text = "".join(
        (line if isinstance(line, str) else json.dumps({"step": line, "x": line})) + "\n" for line in lines
    ).encode()
    path = tmp_path_factory.mktemp("tail") / "metrics.jsonl"
    tail = MetricsTail(path)
    places = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    with path.open("wb") as file:
        for start, end in zip(places, [*places[1:], len(text)], strict=True):
            file.write(text[start:end])
            file.flush()
            tail.read()
    good = [line for line in lines if isinstance(line, int)]
    assert tail.series().get("x", Series()).values == good
    assert tail.damaged == sum(isinstance(line, str) and line != "" for line in lines)


def test_a_long_series_is_thinned_and_keeps_both_ends(tmp_path):
    path = tmp_path / "metrics.jsonl"
    count = 3 * MAX_POINTS
    path.write_text("".join(f'{{"step":{step},"x":{step}}}\n' for step in range(1, count + 1)))
    tail = MetricsTail(path)
    while tail.share_read < 1 or not tail.latest:
        tail.read()
    one = tail.series()["x"]
    assert one.steps == one.values == sorted(set(one.steps))
    assert len(one.steps) <= MAX_POINTS
    assert one.steps[0] == 1
    assert one.steps[-100:] == list(range(count - 99, count + 1))


def test_values_that_are_not_numbers_are_left_out(tmp_path):
    run = run_of(tmp_path / "run", step=1, a=None, b="text", c=2)
    assert set(read_all(run).series) == {"step", "c"}


def test_other_damaged_files_are_left_out(games, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(games, run)
    (run / "config.toml").write_text("[[envs]")
    for path in (run / "evaluation").iterdir():
        path.write_text("{")
    for path in run.glob("checkpoints/*/state.json"):
        path.write_bytes(b"\xff\x00")
    for path in (run / "rollouts").iterdir():
        path.write_text('{"rollout": 3}\n\n{"rollout": {"id": [')
    view = read_all(run)
    assert (view.config, view.evaluations, view.meetings, view.game) == ({}, [], {}, None)
    assert view.step == 3
    assert view.trouble == ""


def test_changed_and_deleted_evaluations_are_noticed(tmp_path):
    run = run_of(tmp_path / "run")
    (run / "evaluation").mkdir()
    source = RunDirectorySource(run)
    assert source.read().evaluations == []

    def write(step, mean):
        values = {"step": step, "kind": "measure", "name": "exact", "mean": mean, "is_share": True}
        scratch = run / "evaluation" / "scratch.tmp"
        scratch.write_text(json.dumps(values))
        scratch.replace(run / "evaluation" / f"step-{step:06d}-exact.json")

    write(0, 0.25)
    write(10, 0.5)
    assert [one.mean for one in source.read().evaluations] == [0.25, 0.5]
    (run / "evaluation" / "step-000010-exact.json").unlink()
    assert [one.mean for one in source.read().evaluations] == [0.25]
    write(10, 0.75)
    assert [one.mean for one in source.read().evaluations] == [0.25, 0.75]


def test_a_deleted_run_is_reported_and_the_last_view_stays(games, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(games, run)
    source = RunDirectorySource(run)
    assert source.read().step == 3
    shutil.rmtree(run)
    view = source.read()
    assert view.step == 3
    assert "run cannot be read (No such file or directory)" in view.trouble
    assert "unreachable" in header(view, 0.0, 80).plain


# The game


def test_the_last_game_is_the_last_complete_one_that_did_not_fail(tmp_path):
    run = run_of(tmp_path / "run")
    failed = said("third", meta={"error": "it broke"})
    write_log(run, 4, [said("first"), said("second"), said("child", meta={"parent_id": "second"}), failed])
    game = read_all(run).game
    assert game is not None
    assert [turn.text for turn in game.turns] == ["second"]
    assert [part.turns[0].text for part in game.parts] == ["child"]
    write_log(run, 5, [failed])
    text = game_text(read_all(run).game, 60).plain
    assert "third" in text
    assert "it broke" in text


def test_a_damaged_newest_log_keeps_the_previous_game(tmp_path):
    run = run_of(tmp_path / "run")
    write_log(run, 1, [said("hello")])
    source = RunDirectorySource(run)
    first = source.read().game
    (run / "rollouts" / "step-000002.jsonl").write_text("{\n")
    assert source.read().game == first is not None


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
    from selfplay.watch.last_game import ReadableGame, Spoken

    game = ReadableGame(1, "solve", [Spoken("Solver", text, 0, heard=text)])
    content = game_text(game, width)
    assert all(line.cell_length <= width for line in content.split("\n"))
    assert not any(ord(char) < 32 for char in content.plain.replace("\n", ""))


# Charts and tables


def titles(charts):
    return [chart.title for chart in charts]


def test_games_have_curves_of_strength_learning_and_rates(games):
    view = read_all(games)
    assert {"Won in evaluation", "NashConv", "Reward by seat", "Loss", "Log-probability mismatch"} <= set(
        titles(learning_charts(view))
    )
    assert {"Games with an invalid move", "Well-formed answers", "Distinct action n-grams"} <= set(
        titles(rate_charts(view))
    )
    names = {one.name for one in evaluation_figures(view)}
    assert {"against random", "invalid, random", "against optimal", "NashConv"} <= names


def test_programs_have_a_line_for_each_role_and_policy(program):
    view = read_all(program)
    charts = {chart.title: chart for chart in [*learning_charts(view), *rate_charts(view)]}
    assert [line.name for line in charts["Reward by role"].lines] == ["Hider", "Seeker"]
    assert [line.name for line in charts["Loss"].lines] == ["hider", "seeker"]
    assert [line.name for line in charts["hide: share_of_odd_letters"].lines] == ["Hider"]


NUMBERS = (
    st.floats(-1e12, 1e12)
    | st.sampled_from([5e-324, 1e-120, 1e12 + 1])
    | st.floats(-1, 1)
    | st.integers(-5, 5).map(float)
)


@given(
    values=st.lists(st.lists(NUMBERS, min_size=1, max_size=20), min_size=1, max_size=3),
    percent=st.booleans(),
    width=st.integers(1, 120),
    height=st.integers(0, 30),
)
@settings(max_examples=60, deadline=None)
def test_a_chart_fills_its_area_whatever_the_values(values, percent, width, height):
    lines = [Line(f"line {i}", list(map(float, range(len(one)))), one) for i, one in enumerate(values)]
    drawn = draw_chart(Chart("chart", lines, percent, (0.0,)), width, height).plain.split("\n")
    assert len(drawn) <= max(1, height)
    if width >= 60 and height >= 6:
        assert len(drawn) == height
        assert max(map(len, drawn)) == width


def test_a_rising_line_rises():
    drawn = draw_chart(Chart("", [Line("", [1.0, 2.0], [0.0, 1.0])]), 24, 6).plain.split("\n")
    dots = [[i for i, char in enumerate(line) if "\u2800" < char <= "\u28ff"] for line in drawn[1:-1]]
    assert all(dots)
    assert [min(row) for row in dots] == sorted((min(row) for row in dots), reverse=True)
    assert drawn[1].startswith("1.0┤")
    assert drawn[-2].startswith("0.0┤")
    assert drawn[-1].startswith("   └1")


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


def test_ratings_are_shown_with_their_uncertainty(games):
    view = read_all(games)
    lines = ratings_table(view, Size(76, 20)).plain.split("\n")
    assert len(lines) == 1 + len(view.ratings())
    best = view.ratings()[0]
    assert lines[1].split()[:3] == [best.uid, f"{best.mu:.1f}", f"{2 * best.sigma:.1f}"]
    assert all(line.count("●") == 1 and len(line) <= 76 for line in lines[1:])
    assert "No model has been rated" in ratings_table(RunView(""), Size(76, 20)).plain


@pytest.mark.parametrize("size", [Size(76, 20), Size(196, 56), Size(30, 8)])
def test_the_heat_map_fits_and_counts_the_models_that_do_not(size):
    uids = [f"ckpt-{number}" for number in range(40)] + ["fixed-random"]
    meetings = {uid: {other: Meeting(4, 3, 0) for other in uids if other != uid} for uid in uids}
    text = heat_map(RunView("", meetings=meetings, meetings_step=7), size).plain
    lines = text.split("\n")
    assert len(lines) <= size.height
    assert all(len(line.rstrip()) <= size.width for line in lines[:-3])
    assert lines[1].split()[:2] == ["fixed-random", "·"]
    assert lines[1].split()[2] == "75"
    shown = sum(line.startswith(("ckpt", "fixed")) for line in lines)
    assert f"{41 - shown} more do not fit" in text


def test_games_against_oneself_are_not_a_match():
    view = RunView("", meetings={"ckpt-0": {"ckpt-0": Meeting(10)}})
    assert "No matches between models" in heat_map(view, Size(80, 20)).plain


def test_accounts_add_up(games):
    view = read_all(games)
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


def test_pauses_of_a_resumed_run_do_not_count_as_its_speed():
    times = [0.0, 10.0, 20.0, 9000.0, 9010.0]
    view = RunView("", {"learning": {"steps": 7}}, {"wall_time": Series([1, 2, 3, 4, 5], times)}, {"step": 5})
    assert view.seconds_left() == pytest.approx(20.0)
    assert math.isclose(sum(view.step_seconds()), 30.0)


# The screen


def words_on(app: TerminalInterface) -> str:
    """Return all text on the screen, line by line."""
    root = ElementTree.fromstring(app.export_screenshot())
    lines: dict[float, list[tuple[float, str]]] = {}
    for element in root.iter("{http://www.w3.org/2000/svg}text"):
        place = float(element.get("x", "0")), element.text or ""
        lines.setdefault(float(element.get("y", "0")), []).append(place)
    rows = ("".join(text for _, text in sorted(found)) for _, found in sorted(lines.items()))
    return "\n".join(rows).replace("\xa0", " ")


async def look(app, pilot):
    await app.workers.wait_for_complete()
    await app.look()
    await pilot.pause()
    await pilot.pause()


EXPECTED = {
    "overview": ("Speed", "Time of the last step", "Evaluation", "Accounts", "Work of the last step"),
    "curves": ("step",),
    "ratings": ("rating", "±"),
    "matches": (),
    "rates": ("━",),
    "game": ("seat 0",),
}


@pytest.mark.parametrize(("size", "light"), [(SIZES[0], False), (SIZES[1], True)])
async def test_every_view_is_there_at_every_size(games, size, light):
    app = TerminalInterface(RunDirectorySource(games), light=light)
    async with app.run_test(size=size) as pilot:
        await look(app, pilot)
        assert app.theme == (LIGHT if light else DARK).name
        for number, name in enumerate(VIEWS, start=1):
            await pilot.press(str(number))
            await pilot.pause()
            assert app.current().id == name
            text = words_on(app)
            for expected in ("games", "finished", "step 3 of 3", "1 Overview", "q Quit", *EXPECTED[name]):
                assert expected in text, f"{name} lacks {expected}"


async def test_every_view_of_a_programs_run_is_there(program):
    app = TerminalInterface(RunDirectorySource(program))
    expected = {
        "overview": "episodes",
        "curves": "Reward by role",
        "ratings": "seeker",
        "game": "Last episode",
    }
    expected |= {"matches": "No matches between models", "rates": "share_of_odd_letters"}
    async with app.run_test(size=(80, 24)) as pilot:
        await look(app, pilot)
        for number, name in enumerate(VIEWS, start=1):
            await pilot.press(str(number))
            await pilot.pause()
            assert expected[name] in words_on(app)


async def test_a_run_can_be_watched_from_its_start(tmp_path):
    run = run_of(tmp_path / "run", steps=2)
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
        assert "step 1 of 2" in words_on(app)
        append(run, {"step": 2, "wall_time": 2.0, "learner/loss": 0.25, "learner/grad_norm": 1.0})
        await look(app, pilot)
        assert "Gradient norm" in words_on(app)
        assert "finished" in words_on(app)


async def test_a_long_file_is_read_in_pieces_without_waiting(tmp_path, monkeypatch):
    monkeypatch.setattr(metrics, "CHUNK_BYTES", 200)
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
        assert "step 100 of 100" in words_on(app)


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
        assert "newer game, step 2" in words_on(app)
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


async def test_keys_switch_the_theme_and_quit(games):
    app = TerminalInterface(RunDirectorySource(games))
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


def test_an_evaluation_is_part_of_the_time_of_its_own_step_alone(tmp_path):
    run = run_of(tmp_path / "run", step=1, wall_time=1.0, **{"time/play_seconds": 1.0})
    append(run, {"step": 2, "wall_time": 9.0, "time/play_seconds": 2.0, "time/evaluation_seconds": 5.0})
    assert read_all(run).phases() == {"evaluate": 5.0, "play": 2.0, "the rest": 1.0}
    append(run, {"step": 3, "wall_time": 12.0, "time/play_seconds": 2.0})
    assert read_all(run).phases() == {"play": 2.0, "the rest": 1.0}


def test_the_time_so_far_includes_the_first_step_and_evaluation_as_in_the_report(tmp_path):
    first = {"time/play_seconds": 100.0, "time/learn_seconds": 40.0, "time/evaluation_seconds": 60.0}
    run = run_of(tmp_path / "run", step=1, wall_time=1000.0, **first)
    assert "time so far     3 min 20 s" in run_panel(read_all(run), Size(60, 10)).plain
    append(run, {"step": 2, "wall_time": 1100.0, "time/play_seconds": 90.0, "time/save_seconds": 5.0})
    view = read_all(run)
    assert "time so far     5 min 0 s" in run_panel(view, Size(60, 10)).plain
    assert view.seconds() == load_run(run).seconds() == 300.0


def test_answers_have_curves_by_role(tmp_path):
    names = ("zero_advantage_share", "cut_share", "tokens", "entropy_estimate")
    metrics = {f"answers/{name}/{role}": 0.5 for name in names for role in ("Judge", "Solver")}
    view = read_all(run_of(tmp_path / "run", step=1, wall_time=1.0, **metrics))
    lines = {chart.title: [line.name for line in chart.lines] for chart in learning_charts(view)}
    assert lines["Answers without advantage"] == ["Judge", "Solver"]
    lines = {chart.title: [line.name for line in chart.lines] for chart in rate_charts(view)}
    for title in ("Answers cut at the token limit", "Tokens of an answer", "Entropy of sampling, estimated"):
        assert lines[title] == ["Judge", "Solver"]
