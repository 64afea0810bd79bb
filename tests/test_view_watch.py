"""The live view: drawing a run at any size."""

import asyncio
import threading
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from run_files import nash
from sparring.core import Rollout
from sparring.core.confidence_intervals import wilson_interval
from sparring.core.text import number_text
from sparring.evaluation.results import write_evaluation
from sparring.population.standings import Standing
from sparring.run.run_directory import RunDirectory
from sparring.view import metrics
from sparring.view.cards import card_of
from sparring.view.charts import Chart, Line
from sparring.view.episodes import LoggedEpisode
from sparring.view.metrics import Series
from sparring.view.population import Population
from sparring.view.run_view import RunView
from sparring.view.source import RunDirectorySource
from sparring.view.tables import Cell, Table
from sparring.view.watch import panels
from sparring.view.watch.header import header
from sparring.view.watch.plot import draw_chart
from sparring.view.watch.terminal_interface import DARK, LIGHT, VIEWS, TerminalInterface
from sparring.view.watch.text import card_text, table_text
from watch_screens import look, words_on
from watched_runs import append, read_all, run_of, said, text_of, write_log

SIZES = [(80, 24), (200, 60)]
ENGINE = {"tok_s": 4812.3, "running": 118, "queued": 14, "idle_share": 0.04}
ACTORS = {
    "Learner": {"step": 41, "state": "learning", "seconds": 3.2},
    "Engine-0": ENGINE,
    "Buffer": {"steps": 900, "games": 380},
    "Collector-0": {"in_flight": 256, "evaluating": 16},
}


def lines_of(panel, view, *, width=80) -> list[str]:
    """Return the lines of a panel without the spaces between its columns."""
    shown = text_of(panel(view), width).splitlines()
    assert all(len(line) <= width for line in shown)
    return [" ".join(line.split()) for line in shown]


def test_a_programs_extras_may_contain_anything(tmp_path):
    run = run_of(tmp_path / "run")
    extras = {"turns": 7, "final_rewards": "none", "game_info": [1], "transcript": {"a": 1}, "winner": "Aff"}
    step = {"role_id": "Aff", "prompt": [{"role": "user", "content": "why?"}], "completion": []}
    write_log(
        run, 1, [{"episode_type": "debate", "extras": extras, "steps": [step], "rewards": {"Aff": 1.0}}]
    )
    text = text_of(card_text(card_of(read_all(run).game)), 60)
    for expected in ("debate", "Aff +1", "why?", "winner: Aff"):
        assert expected in text


def test_a_narrow_screen_wraps_cells_and_loses_none_of_their_words():
    groups = [
        ("kuhn_poker", "8 games", [["Games ended by an invalid move", "100.0% 67.6 to 100.0", "45.6%"]]),
        ("exact", "", [["NashConv", Cell("0.6906", badge="cannot be played", tone="warn"), "1.0"]]),
    ]
    shown = text_of(table_text(Table(("", "Before", "After"), groups)), 36)
    assert max(map(len, shown.splitlines())) <= 36
    assert {"invalid", "move", "67.6", "45.6%", "0.6906", "cannot", "played", "1.0"} <= {*shown.split()}
    heads, *lines = shown.splitlines()
    for value in ("45.6%", "1.0"):
        assert any(line.find(value) == heads.index("After") for line in lines), "columns are aligned"


def game_extras(text: str) -> dict:
    turn = {"pid": 0, "kind": "model", "model": "random", "observation": text, "text": text, "action": text}
    return {
        "turns": [{**turn, "well_formed": True, "invalid": True}],
        "final_rewards": {0: 1.0},
        "game_info": {0: {"reason": text}},
        "num_turns": 1,
        "invalid_pid": 0,
        "raised": None,
        "truncated": False,
        "action_seq": [text],
    }


@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=300), width=st.integers(20, 120))
def test_any_text_fits_and_contains_no_control_characters(text, width):
    game = LoggedEpisode(1, 0, Rollout(episode_type="game", extras=game_extras(text)))
    transcript = [{"author": "Solver", "text": text}]
    talk = LoggedEpisode(1, 1, Rollout(episode_type="solve", extras={"transcript": transcript}))
    for one in (game, talk):
        shown = text_of(card_text(card_of(one)), width)
        assert not any(ord(char) < 32 for char in shown.replace("\n", ""))


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


def test_ratings_are_shown_with_their_uncertainty(games_run):
    view = read_all(games_run)
    lines = lines_of(panels.ratings_panel, view)
    assert len(lines) == 1 + len(view.ratings())
    best = view.ratings()[0]
    assert lines[1].split()[:3] == [best.uid, f"{best.mu:.1f}", f"{2 * best.sigma:.1f}"]
    assert lines[0] == "rating ± 2σ games drawn"
    assert "No model has been rated" in lines_of(panels.ratings_panel, RunView(""))[0]


@pytest.mark.parametrize("width", [40, 80, 196])
def test_the_heat_map_fits_and_counts_the_models_that_do_not(width):
    uids = ["fixed-random", *(f"ckpt-{number}" for number in range(40))]
    pairs = {pair: Standing(wilson_interval(3, 4), 4) for pair in combinations(uids, 2)}
    moment = Population(policies=(), frozen=tuple(uids), pairs=pairs, ratings={}, cycles=(), step=7)
    view = RunView("", moments=[moment])
    lines = lines_of(panels.population_panel, view, width=width)
    assert lines[1].split()[:3] == ["fixed-random", "·", "75"]
    shown = sum(line.startswith(("ckpt", "fixed")) for line in lines)
    assert f"{41 - shown} older copies do not fit" in " ".join(lines)


def test_before_anybody_has_met_there_are_no_matches_to_show():
    early = Population(policies=(), frozen=(), pairs={}, ratings={}, cycles=(), step=3)
    assert "No matches between models" in lines_of(panels.population_panel, RunView("", moments=[early]))[0]


def test_the_figures_of_the_last_update_are_named_and_rounded():
    latest = {
        "time/games_per_second": 812.345,
        "accounts/started": 24.0,
        "overlap/staleness_1": 0.2,
        "learner/a/packed_tokens": 300.0,
        "learner/b/packed_tokens": 200.0,
    }
    series = {name: Series([7.0], [value]) for name, value in latest.items()}
    series["accounts/failed"] = Series([6.0], [3.0])  # not in the last update
    view = RunView("run", series=series, latest={"step": 7, **latest})
    assert lines_of(panels.last_update_panel, view) == [
        "games per second 812",
        "started 24",
        "staleness 1 20%",
        "packed tokens 500",
    ]


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


EXPECTED = {
    "overview": ("Run", "Updates", "Evaluation", "Before"),
    "curves": ("update",),
    "ratings": ("rating", "±"),
    "population": ("default", "random", "rating"),
    "rates": ("━",),
    "game": ("seat 0",),
}


@pytest.mark.parametrize(("size", "colours", "theme"), [(SIZES[0], "15;0", DARK), (SIZES[1], "0;15", LIGHT)])
async def test_every_view_is_there_at_every_size(games_run, monkeypatch, size, colours, theme):
    monkeypatch.setenv("COLORFGBG", colours)
    app = TerminalInterface(RunDirectorySource(games_run))
    async with app.run_test(size=size) as pilot:
        await look(app, pilot)
        assert app.theme == theme
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
        "overview": "Episodes",
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
        assert app.theme == LIGHT
        await pilot.press("t")
        assert app.theme == DARK
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


class Still:
    """A source whose view the test sets."""

    def __init__(self, **fields) -> None:
        self.view = RunView("run", **fields)

    def read(self) -> RunView:
        return self.view


async def test_actors_come_first_with_their_activity_and_go():
    source = Still(actors=ACTORS)
    app = TerminalInterface(source)
    async with app.run_test(size=(80, 24)) as pilot:
        await look(app, pilot)
        text = words_on(app)
        assert text.index("Actors") < text.index("Run")
        for expected in ("4,812", "96%", "update 41, learning for 3.2 s", "900 answers, 380 games"):
            assert expected in text
        source.view = RunView("run")
        await look(app, pilot)
        assert "Actors" not in words_on(app)


def test_engines_are_rows_of_numbers_and_several_are_summed_up():
    slow = {"tok_s": 1000, "running": 2, "queued": 0, "idle_share": 0.54}
    view = RunView("run", actors={"Engine-10": slow, "Engine-2": ENGINE})
    rows = lines_of(panels.actors_panel, view)
    assert rows[0] == "tokens/s running queued busy"
    assert rows[1] == "2 engines 5,812 120 14 71%"
    assert rows[2] == "Engine-2 4,812 118 14 96%"
    assert rows[3].startswith("Engine-10 ")


def test_silent_actors_are_marked_and_unknown_fields_are_shown():
    silent = {"silent_seconds": 44}
    load = {"checkpoints": 12, "mode": "mirror", "odd": float("nan"), "on": True}
    actors = {"Engine-0": ENGINE | silent, "Learner": {"state": "waiting"} | silent, "ModelPool": load}
    rows = lines_of(panels.actors_panel, RunView("run", actors=actors))
    assert rows[1].endswith("96% silent for 44 s")
    assert rows[2] == "Learner waiting silent for 44 s"
    assert rows[3] == "ModelPool checkpoints 12, mode mirror, odd nan, on True"


def test_a_large_cluster_is_abbreviated():
    actors = {f"Engine-{number}": ENGINE for number in range(60)}
    rows = lines_of(panels.actors_panel, RunView("run", actors=actors))
    assert len(rows) <= panels.MOST_ROWS + 3
    assert rows[-1] == f"and {60 - panels.MOST_ROWS} more"


def run_with_nash_conv(path, *masses):
    """A run that measured NashConv after each step, given the environment and the mass on legal answers."""
    run = run_of(path, step=len(masses), wall_time=1.0)
    for step, (env_id, mass) in enumerate(masses):
        write_evaluation(run / "evaluation", step, env_id, nash(1.08, mass=mass, env_id=env_id))
    return run


def test_the_warnings_are_of_the_last_step(tmp_path):
    run = run_of(tmp_path / "run", step=1, wall_time=1.0, **{"answers/zero_advantage_share": 1.0})
    assert "every advantage is 0" in lines_of(panels.warnings_panel, read_all(run))[0]
    append(run, {"step": 2, "wall_time": 2.0, "answers/zero_advantage_share": 0.5})
    assert panels.warnings_panel(read_all(run)) is None


def test_a_nash_conv_of_a_policy_that_cannot_be_played_is_marked_and_warned_of_if_it_is_the_last(tmp_path):
    once = read_all(run_with_nash_conv(tmp_path / "once", ("kuhn_poker", 1e-9), ("kuhn_poker", 0.9)))
    shown = " ".join(lines_of(panels.evaluation_panel, once))
    assert "1.0800 cannot be played 1.0800 Probability" in shown
    assert panels.warnings_panel(once) is None
    masses = ("kuhn_poker", 0.9), ("leduc_poker", 0.5), ("kuhn_poker", 0.00012)
    run = run_with_nash_conv(tmp_path / "now", *masses)
    append(run, {"step": 4, "wall_time": 2.0, "answers/zero_advantage_share": 1.0})
    warned = " ".join(lines_of(panels.warnings_panel, read_all(run), width=60))
    assert warned.startswith("! every advantage is 0")
    assert warned.endswith("(and 1 more, see sparring doctor)")


async def test_the_overview_shows_a_warning_only_where_there_is_one(tmp_path):
    run = run_with_nash_conv(tmp_path / "run", ("kuhn_poker", 1e-9))
    app = TerminalInterface(RunDirectorySource(run))
    async with app.run_test(size=(120, 40)) as pilot:
        await look(app, pilot)
        assert "is of a policy that cannot be played: 0.00% of its" in words_on(app)
        write_evaluation(run / "evaluation", 1, "kuhn_poker", nash(0.5))
        await look(app, pilot)
        assert "! " not in words_on(app)
