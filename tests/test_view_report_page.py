"""The report: complete, partial and empty run directories, hostile text, and figures that Plotly accepts."""

import json
import random
import re

import plotly.graph_objects as go
import pytest

from report_pages import CONFIG, RULES, Page, build, line, make_rollout, write_run
from run_files import match
from sparring.core import InputError
from sparring.evaluation.results import GameRecord, MeasureResult, write_evaluation
from sparring.view.cards import card_of
from sparring.view.report import build_report
from sparring.view.report.cards import shared_beginning
from sparring.view.report.figures import figure_sections
from sparring.view.report.page import report_html
from sparring.view.whole_run import load_run


def test_a_complete_run_gives_every_section_charts_and_games(tmp_path):
    page = Page(build(write_run(tmp_path / "quickstart-1")))
    text = " ".join(page.text)
    for expected in (
        "quickstart-1",
        "smollm2-135m",
        "Before and after",
        "NashConv",
        "Ratings of the pool",
        "Seconds per phase",
        "Log-probability mismatch",
        "What it plays",
        "19 of 24 games",
        "Update 30",
        "malformed",
        "seat 1, random",
        "final transformed",
        "mean log-prob",
    ):
        assert expected in text, expected
    assert page.open == []
    assert len([tag for tag, attrs in page.elements if attrs.get("class") == "chart"]) == 21


def test_strength_comes_before_all_other_charts_and_those_before_games(tmp_path):
    run = write_run(tmp_path / "run")
    (run / "config.toml").write_text(CONFIG + "[learning]\nsteps = 200\n")
    log = (run / "rollouts" / "step-000001.jsonl").read_text()
    (run / "evaluation" / "step-000000-kuhn_poker-random.jsonl").write_text(log)
    text = "\n".join(Page(build(run)).text)
    titles = ["Updates\n60\nof 200", "Before and after", "Strength", "Learning", "What it plays"]
    titles += ["Games of the first and the last evaluation", "19 of 24 games in the log"]
    places = [text.index(f"\n{title}") for title in titles]
    assert places == sorted(places)


def test_the_page_loads_nothing_from_anywhere(tmp_path):
    page = Page(build(write_run(tmp_path / "run", steps=10)))
    names = {"src", "href", "data", "action"}
    assert [(tag, attrs) for tag, attrs in page.elements if names & set(attrs)] == []


def test_plotly_is_in_the_page_once_and_the_page_stays_small(tmp_path):
    html = build_report(write_run(tmp_path / "run")).read_text(encoding="utf-8")
    assert html.count("plotly.js v") == 1
    assert len(html.encode()) < 6_500_000


def test_plotly_accepts_every_chart(tmp_path):
    sections = figure_sections(load_run(write_run(tmp_path / "run")))
    figures = [figure for made in sections.values() for figure in made]
    assert len(figures) == 21
    for figure in figures:
        go.Figure(data=figure.traces, layout=figure.layout)


def test_an_empty_directory_gives_a_page_that_says_so(tmp_path):
    text = " ".join(Page(build(tmp_path)).text)
    assert tmp_path.name in text
    assert "Nothing has been recorded yet" in text
    assert "Strength" not in text


def test_a_run_that_has_only_metrics_gives_their_charts(tmp_path):
    (tmp_path / "metrics.jsonl").write_text(
        '{"step": 1, "wall_time": 5.0, "learner/loss": 0.5}\n{"step": 2, "le'
    )
    page = Page(build(tmp_path))
    assert [attrs["id"] for _, attrs in page.elements if attrs.get("class") == "chart"] == ["chart-0"]
    assert "Loss" in " ".join(page.text)
    assert "Before and after" not in " ".join(page.text)


def test_a_single_evaluation_has_no_before_column(tmp_path):
    write_evaluation(tmp_path / "evaluation", 7, "random", match(60, 100, env_id="a"))
    html = build(tmp_path)
    assert "100 games, update 7<" in html
    assert '<td>Win rate</td><td></td><td><b>60.0%</b> <span class="muted">50.2 to 69.1</span></td>' in html
    assert "var(--before)" not in html.partition("<main>")[2]


def test_a_game_that_all_win_or_lose_together_is_judged_by_its_mean_reward(tmp_path):
    for step, reward in ((0, -1.0), (4, 0.5)):
        result = match(0, 0)
        for number in range(10):
            result.add(GameRecord(number % 2, reward, "draw", None, False, 1, 0))
        write_evaluation(tmp_path / "evaluation", step, "random", result)
    html = build(tmp_path)
    text = " ".join(" ".join(Page(html).text).split())
    assert "Mean reward against random -1 → 0.5 kuhn_poker" in text
    assert "Mean reward in evaluation matches" in text
    assert "<td>Mean reward</td><td><b>-1</b>" in html
    assert "in rate" not in text, "neither a win rate nor a tile of wins"


def test_a_figure_that_is_no_longer_measured_has_no_value_after(tmp_path):
    write_evaluation(tmp_path / "evaluation", 0, "a", MeasureResult("old", [0.5, 0.2]))
    for step in (0, 4):
        write_evaluation(tmp_path / "evaluation", step, "b", MeasureResult("score", [float(step)] * 2))
    html = build(tmp_path)
    assert '<td>old <span class="muted">2 items</span></td><td><b>0.35</b> ' in html
    assert re.search(r"<td>old .*?</td><td><b>.*?</td><td></td>", html)


def test_damaged_and_unrelated_files_are_skipped(tmp_path):
    run_dir = write_run(tmp_path / "run", steps=10)
    (run_dir / "config.toml").write_text("not = [toml")
    (run_dir / "evaluation" / "step-000005-broken.json").write_text('{"step": 5, "ki')
    (run_dir / "evaluation" / "step-000006-other.json").write_text('{"kind": "tournament"}')
    with (run_dir / "rollouts" / "step-000001.jsonl").open("a") as file:
        file.write('{"rollout": 3}\n{"rollo')
    text = " ".join(Page(build(run_dir)).text)
    assert "not = [toml" in text
    assert "Before and after" in text


def test_a_path_that_is_not_a_run_directory_is_an_input_error(tmp_path):
    with pytest.raises(InputError, match="not a run directory"):
        build_report(tmp_path / "missing")


def test_the_shared_beginning_of_prompts_is_shown_once(tmp_path):
    html = report_html(load_run(write_run(tmp_path / "run", steps=10)))
    assert html.count(RULES[2]["content"]) == 1
    assert "seat 0 and seat 1 in kuhn_poker (4 messages)" in html


def test_a_shared_beginning_ends_where_prompts_part_and_before_the_last_message():
    parting = [[*RULES[:2], {"role": "user", "content": str(number)}, *RULES[:1]] for number in range(3)]
    assert shared_beginning(parting) == RULES[:2]
    assert shared_beginning([RULES, RULES]) == RULES[:3]
    assert shared_beginning([RULES[:1], RULES[:1]]) == shared_beginning([RULES]) == []
    assert shared_beginning([[], RULES]) == []


def test_turns_are_matched_with_their_model_calls(tmp_path):
    games = load_run(write_run(tmp_path / "run", steps=10)).episodes
    against_script = next(game for game in games if len(game.rollout.steps) == 2)
    calls = [turn.step for turn in card_of(against_script).turns]
    assert [step and step.info["extracted_action"] for step in calls] == ["check", None, "call"]
    against_script.rollout.extras["turns"][0]["kind"] = "script"  # as in a random opening
    assert [turn.step is not None for turn in card_of(against_script).turns] == [False, False, True]


@pytest.mark.parametrize("max_staleness", [1, 3])
def test_reward_stages_come_from_a_batch_as_far_as_the_staleness_allows(tmp_path, max_staleness):
    run = write_run(tmp_path / "run", steps=20)
    batches = [(number, run / "batches" / f"batch-{number:06d}.jsonl.gz") for number in (20, 10, 1)]
    for number, path in batches:
        path.rename(path.with_name(f"batch-{number + 4:06d}.jsonl.gz"))
    config = run / "config.toml"
    config.write_text(f"{config.read_text()}\n[collection]\nmax_staleness = {max_staleness}\n")
    found = ["reward_stages" in one.rollout.steps[0].info for one in load_run(run).episodes]
    assert any(found) == (max_staleness == 3)


def test_reward_stages_come_from_the_batch_of_the_games_step(tmp_path):
    games = load_run(write_run(tmp_path / "run", steps=10)).episodes
    first = games[0].rollout.steps
    assert first[0].info["reward_stages"]["final_transformed"] == 1.9
    assert first[0].advantage == 0.83
    assert "reward_stages" not in first[2].info


def test_games_are_taken_from_the_first_middle_and_last_step_with_an_invalid_move(tmp_path):
    run_dir = tmp_path / "run"
    (run_dir / "rollouts").mkdir(parents=True)
    rng = random.Random(1)
    for step in range(1, 10):
        rollouts = [make_rollout(step, number, rng, invalid=(step, number) == (3, 1)) for number in range(20)]
        content = "".join(json.dumps(line(rollout, step)) + "\n" for rollout in rollouts)
        (run_dir / "rollouts" / f"step-{step:06d}.jsonl").write_text(content)
    run = load_run(run_dir)
    assert run.episodes_in_log == 180
    assert sorted({game.step for game in run.episodes}) == [1, 3, 5, 9]
    invalid = [one for one in run.episodes if ("invalid move", "bad") in card_of(one).marks]
    assert [(one.step, one.index) for one in invalid] == [(3, 1)]
    assert len(run.episodes) == 19


def test_very_long_games_and_answers_are_cut_with_a_note(tmp_path):
    run = load_run(write_run(tmp_path / "run", steps=10))
    del run.episodes[1:]
    extras = run.episodes[0].rollout.extras
    text, observation = "a" * 10_000, "\n".join(f"line {number}" for number in range(500))
    extras["turns"] = [extras["turns"][0] | {"text": text, "observation": observation}] * 100
    html = report_html(run)
    assert "20 more turns are not shown" in html
    assert "[4,000 more characters]" in html
    assert len(html.partition("<main>")[2].partition("</main>")[0]) < 80 * 15_000
