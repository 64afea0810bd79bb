"""The page of a population: what is logged of a pool, and what the report and the terminal show of it."""

import json
import re
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings

from hostile_text import ACTS_ON_A_TERMINAL, hostile_text
from report_pages import Page, figures_of, heat_map_of
from run_files import nash
from sparring.core.confidence_intervals import wilson_interval
from sparring.evaluation.results import write_evaluation
from sparring.population import ModelPool
from sparring.population.results import DECAY
from sparring.population.standings import standings
from sparring.run.play_source import StandingsLog
from sparring.view.population import MAX_MOMENTS, PopulationTail
from sparring.view.report.page import build_report, report_html
from sparring.view.source import RunDirectorySource
from sparring.view.watch.panels import population_panel
from sparring.view.watch.terminal_interface import TerminalInterface
from sparring.view.whole_run import load_run
from tournaments import few_resamples  # noqa: F401 - a fixture
from watch_screens import look, words_on
from watched_runs import append, read_all, run_of, text_of

MEMBERS = ["default", "ckpt-0", "ckpt-1", "ckpt-2"]
AROUND = [("ckpt-0", "ckpt-1"), ("ckpt-1", "ckpt-2"), ("ckpt-2", "ckpt-0")]


def pool_of(copies: int = 3) -> ModelPool:
    pool = ModelPool("pfsp", max_active_lora=3)
    pool.add_policy()
    for number in range(copies):
        pool.add_checkpoint(None, number)
    return pool


def play(pool: ModelPool, uid: str, other: str, wins: int, games: int) -> None:
    for number in range(games):
        pool.push_game_outcome(uid, other, 1.0 if number < wins else -1.0, [], "rps")


def logged(path: Path, pool: ModelPool, *steps: int) -> StandingsLog:
    log = StandingsLog(path / "standings.jsonl")
    log.continue_after(0)
    for step in steps:
        log.write(step, standings(pool))
    return log


@pytest.fixture
def circle(tmp_path):
    """A run whose copies beat one another in a circle, 140 of 200 games each; it is so after update 2."""
    run = run_of(tmp_path / "run", step=2, wall_time=2.0)
    pool = pool_of()
    play(pool, "default", "ckpt-0", wins=1, games=1)
    log = logged(run, pool, 1)
    for pair in AROUND:
        play(pool, *pair, wins=140, games=200)
    log.write(2, standings(pool))
    return run


def test_the_matrix_has_scores_intervals_and_games_of_every_moment(circle):
    figure = heat_map_of(build_report(circle).read_text())
    cells = figure["traces"][0]
    assert cells["x"] == cells["y"] == MEMBERS
    assert cells["z"][1] == [0.0, None, 0.7, 0.3]
    low, _, high = wilson_interval(140, 200)
    assert cells["customdata"][1][2] == [round(low, 4), round(high, 4), 200]
    assert cells["customdata"][1][3] == [round(1 - high, 4), round(1 - low, 4), 200], "from the other side"
    first, second = figure["layout"]["sliders"][0]["steps"]
    assert (first["label"], second["label"]) == ("1", "2")
    assert first["args"][0]["x"] == [["default", "ckpt-0"]]
    assert second["args"][0]["z"] == [cells["z"]]


def test_a_circle_of_a_few_games_is_no_cycle():
    pool = pool_of()
    for pair in AROUND:
        play(pool, *pair, wins=19, games=19)
    assert standings(pool).cycles == []
    for pair in AROUND:
        play(pool, *pair, wins=1, games=1)
    assert len(standings(pool).cycles) == 1


def test_cycles_are_told_with_their_intervals(circle):
    said = "".join(Page(build_report(circle).read_text()).text)
    beats = [f"{one} beats {other} 70% (63 to 76, 200 games)" for one, other in AROUND]
    assert f"A cycle after update 2: {', '.join(beats)}." in said


def test_ratings_have_intervals_and_are_drawn_over_updates(circle):
    run = load_run(circle)
    ratings = run.moments[-1].ratings
    assert list(ratings) == MEMBERS
    assert all(one.low < one.mid < one.high for one in ratings.values())
    assert ratings["default"].mid > max(ratings[uid].mid for uid in MEMBERS[1:]), "it won its only game"
    page = build_report(circle).read_text()
    over_time = [one for one in figures_of(page) if one["traces"][-1].get("x") == [1, 2]]
    assert [one["traces"][-1]["name"] for one in over_time] == ["default"]
    assert "Ratings of the members" in page


def test_nash_conv_is_shown_with_the_population(circle):
    for step in (1, 2):
        write_evaluation(circle / "evaluation", step, "rps", nash(1 / step, env_id="rps"))
    said = "".join(Page(build_report(circle).read_text()).text)
    assert said.count("The gain of best responses") == 1
    assert said.index("Population") < said.index("The gain of best responses")


def test_a_run_without_copies_has_no_page(tmp_path):
    pool = ModelPool("fixed", max_active_lora=1)
    pool.add_policy()
    pool.add_fixed("random")
    play(pool, "default", "fixed-random", wins=5, games=10)
    run = run_of(tmp_path / "run", step=1, wall_time=1.0)
    logged(run, pool, 1)
    assert "Population</h2>" not in build_report(run).read_text()


def test_frozen_members_that_never_meet_have_no_rows(tmp_path):
    pool = pool_of()
    for uid in MEMBERS[1:]:
        play(pool, "default", uid, wins=5, games=10)
    run = run_of(tmp_path / "run", step=1, wall_time=1.0)
    logged(run, pool, 1)
    figure = heat_map_of(build_report(run).read_text())
    assert figure["traces"][0]["y"] == ["default"]
    assert figure["traces"][0]["x"] == MEMBERS
    assert "sliders" not in figure["layout"], "there is one moment"
    panel = text_of(population_panel(read_all(run)), 100)
    assert sum(line.startswith("ckpt") for line in panel.split("\n")) == 3, "only among the ratings"
    unknown = "Whether the frozen copies beat each other in a circle is not known"
    assert unknown in " ".join(panel.split())
    assert unknown in "".join(Page(build_report(run).read_text()).text)


def test_recent_games_of_a_policy_count_more():
    pool = pool_of()
    play(pool, "default", "ckpt-0", wins=0, games=200)
    play(pool, "default", "ckpt-0", wins=200, games=200)
    one = standings(pool).pairs["default", "ckpt-0"]
    weights = [DECAY**age for age in range(400)]
    assert one.score.mid == pytest.approx(sum(weights[:200]) / sum(weights))
    effective = sum(weights) ** 2 / sum(weight**2 for weight in weights)
    assert one.score == pytest.approx(wilson_interval(one.score.mid * effective, effective))
    assert one.games == 400


def test_all_games_of_frozen_members_count_alike():
    pool = pool_of()
    play(pool, "ckpt-0", "ckpt-1", wins=0, games=200)
    play(pool, "ckpt-0", "ckpt-1", wins=200, games=200)
    assert standings(pool).pairs["ckpt-0", "ckpt-1"].score == wilson_interval(200, 400)


def test_members_that_no_games_connect_have_no_common_ratings():
    pool = pool_of()
    pool.add_policy("average")
    pool.add_fixed("random", active=False)
    play(pool, "default", "ckpt-0", wins=5, games=10)
    play(pool, "default", "ckpt-1", wins=5, games=10)
    play(pool, "average", "fixed-random", wins=5, games=10)
    found = standings(pool)
    assert set(found.ratings) == {"default", "ckpt-0", "ckpt-1"}
    assert {"average", "fixed-random"} < {*found.policies, *found.frozen}


def test_retired_copies_and_earlier_games_of_a_policy_that_starts_again_are_left_out(tmp_path):
    run = run_of(tmp_path / "run")
    pool = pool_of()
    for uid in MEMBERS[1:]:
        play(pool, "default", uid, wins=20, games=40)
    log = logged(run, pool, 1)
    pool.add_checkpoint(None, 3)
    log.write(2, standings(pool))
    (retired,) = [one.uid for one in pool.opponents() if one.retired is not None]
    before, after = PopulationTail(run / "standings.jsonl", whole=True), load_run(run).moments
    before.read()
    assert retired in after[0].members
    assert retired not in after[1].members
    pool.start_again("default")
    log.write(3, standings(pool))
    assert load_run(run).moments[-1].pairs == {}


def test_the_log_of_a_resumed_run_is_that_of_one_that_was_left_alone(tmp_path):
    for name, resumed in (("alone", False), ("resumed", True)):
        (tmp_path / name).mkdir()
        pool = pool_of()
        play(pool, "default", "ckpt-0", wins=3, games=10)
        log = logged(tmp_path / name, pool, 1)
        if resumed:
            state = json.loads(json.dumps(pool.state_dict()))
            play(pool, "default", "ckpt-1", wins=9, games=9)
            log.write(2, standings(pool))
            pool = pool_of(0)
            pool.load_state_dict(state)
            log = StandingsLog(log.path)
            log.continue_after(1)
        play(pool, "ckpt-0", "ckpt-1", wins=1, games=3)
        log.write(2, standings(pool))
        log.write(2, standings(pool))
    alone, resumed = ((tmp_path / name / "standings.jsonl").read_bytes() for name in ("alone", "resumed"))
    assert alone == resumed
    assert alone.count(b"\n") == 2, "an update has one line"
    assert [pair[:2] for pair in json.loads(alone.splitlines()[1])["pairs"]] == [["ckpt-0", "ckpt-1"]]


def test_damaged_lines_are_skipped_and_moments_are_spread_over_a_long_run(tmp_path):
    run = run_of(tmp_path / "run")
    pool = pool_of()
    play(pool, "default", "ckpt-0", wins=3, games=10)
    logged(run, pool, *range(1, 101))
    lines = (run / "standings.jsonl").read_text().splitlines()
    lines[1:1] = ["{", '{"step": 3}', '{"step": 1, "pairs": "x"}']
    (run / "standings.jsonl").write_text("\n".join(lines) + "\n")
    steps = [one.step for one in load_run(run).moments]
    assert len(steps) <= MAX_MOMENTS + 1
    assert steps[0] == 1
    assert steps[-1] == 100
    assert len({later - earlier for earlier, later in pairwise(steps[:-1])}) == 1
    view = read_all(run)
    assert [bool(one.pairs) for one in view.moments] == [False] * (len(steps) - 1) + [True]
    StandingsLog(run / "standings.jsonl").continue_after(50)
    assert load_run(run).moments[-1].step == 50


@pytest.mark.parametrize("width", [60, 120])
def test_the_terminal_shows_the_matrix_the_ratings_and_the_cycles(circle, width):
    append(circle, {"step": 3, "wall_time": 3.0, "model-pool/ckpt-1/drawn": 1234.0})
    lines = text_of(population_panel(read_all(circle)), width).splitlines()
    assert lines[0].split()[-3:] == ["0", "1", "2"]
    (row,) = [line for line in lines[:10] if line.startswith("ckpt-0")]
    assert row.split()[1:] == ["0", "·", "70", "30"]
    assert "ckpt-1 beats ckpt-2 70% (63 to 76, 200 games)" in " ".join(lines)
    (rating,) = [line for line in lines[10:] if re.match(r"ckpt-1 +[\d,]+ ", line)]
    assert re.fullmatch(r"ckpt-1 +[\d,]+ +\d+ to \d+ +1,234", rating.strip())
    assert all(len(line) <= width for line in lines)


async def test_the_terminal_has_a_view_of_the_population(circle):
    app = TerminalInterface(RunDirectorySource(circle))
    async with app.run_test(size=(120, 40)) as pilot:
        await look(app, pilot)
        await pilot.press("4")
        await pilot.pause()
        assert app.current().id == "population"
        assert "A cycle after update 2: ckpt-0 beats ckpt-1" in words_on(app)


def hostile_run(run: Path, text: str) -> None:
    """Write a run in which a member has any name."""
    run_of(run, step=1, wall_time=1.0)
    line = {
        "step": 1,
        "policies": [text],
        "frozen": ["ckpt-0", f"{text}x"],
        "pairs": [[text, "ckpt-0", 0.6, 0.7, 0.8, 40], [f"{text}x", "ckpt-0", 0.6, 0.7, 0.8, 40]],
        "ratings": {text: [900.0, 1000.0, 1100.0], "ckpt-0": [900.0, 1000.0, 1100.0]},
        "cycles": [[text, "ckpt-0", f"{text}x"]],
    }
    (run / "standings.jsonl").write_text(json.dumps(line) + "\n")


@settings(max_examples=12, deadline=None)
@given(text=hostile_text(whole_characters=True, max_pieces=3))
def test_hostile_names_stay_text_on_the_page_and_in_the_terminal(text):
    with TemporaryDirectory() as directory:
        hostile_run(Path(directory) / "run", text)
        run = load_run(Path(directory) / "run")
        view = read_all(Path(directory) / "run")
        hostile_run(Path(directory) / "harmless", "x")
        harmless = Page(report_html(load_run(Path(directory) / "harmless")))
    html = report_html(run)
    page = Page(html)
    assert page.open == []
    assert [tag for tag, _ in page.elements] == [tag for tag, _ in harmless.elements]
    assert not any(name.startswith("on") for _, attributes in page.elements for name in attributes)
    names = heat_map_of(html)["traces"][0]["x"]
    assert not any(re.search("[<>]", name) for name in names)
    for width in (40, 120):
        assert not ACTS_ON_A_TERMINAL.search(text_of(population_panel(view), width))
