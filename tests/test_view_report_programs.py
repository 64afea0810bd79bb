"""The report of a program's run: measures, roles, policies, and conversations with their sub-episodes."""

import json
import math
import random
from pathlib import Path

import plotly.graph_objects as go
import pytest

from report_pages import Page, build
from report_programs import CONFIG, play, text_of
from sparring.core import (
    EpisodeRequest,
)
from sparring.evaluation.results import MeasureResult, write_evaluation
from sparring.view.chart_list import chart_sections
from sparring.view.charts import COLOURS
from sparring.view.report.figures import figure_sections
from sparring.view.whole_run import load_run


def propose(count: int) -> list[EpisodeRequest]:
    examples = [{"question": f"{number} + 6", "ground_truth": str(number + 6)} for number in range(30)]
    return [EpisodeRequest("propose", {"examples": examples}, {"group": "p0"}) for _ in range(count)]


def write_program_run(run_dir: Path, steps: int = 30) -> Path:
    """Make the directory of a run with two policies: proposals, with solvers in their sub-episodes."""
    rng = random.Random(0)
    run_dir.mkdir(parents=True)
    (run_dir / "config.toml").write_text(CONFIG)
    with (run_dir / "metrics.jsonl").open("w") as file:
        for step in range(1, steps + 1):
            file.write(json.dumps(metrics_line(step, rng)) + "\n")
    for step in range(0, steps + 1, 10):
        learned = 1 - math.exp(-step / 15)
        right = [float(rng.random() < 0.2 + 0.4 * learned) for _ in range(300)]
        distances = [abs(rng.gauss(0, 0.4 - 0.2 * learned)) for _ in range(64)]
        write_evaluation(run_dir / "evaluation", step, "exact", MeasureResult("exact match", right))
        write_evaluation(
            run_dir / "evaluation", step, "dist", MeasureResult("distance from target", distances)
        )
    play(run_dir, [1, steps // 2, steps], propose(8))
    return run_dir


def metrics_line(step: int, rng: random.Random) -> dict[str, float]:
    learned = 1 - math.exp(-step / 15)
    solved = 0.2 + 0.4 * learned + rng.gauss(0, 0.03)
    line = {
        "step": step,
        "wall_time": 1.7e9 + 9.3 * step,
        "accounts/finished": 288.0 * step,
        "accounts/failed": float(step // 10),
        "accounts/retried": 2.0 * (step // 10),
        "program/reward/Proposer": 0.1 + 0.5 * learned + rng.gauss(0, 0.05),
        "program/reward/Solver": solved,
        "program/metric/solve/exact_match/Solver": solved,
        "program/metric/propose/pass_rate/Proposer": 0.3 + 0.2 * learned,
        "program/metric/propose/valid/Proposer": 0.7 + 0.3 * learned,
        "program/metric/propose/solvers/Proposer": 8.0,
        "time/games_per_second": 60 + rng.gauss(0, 4),
        "time/play_seconds": 4.2 + rng.gauss(0, 0.3),
        "time/learn_seconds": 3.1 + rng.gauss(0, 0.2),
    }
    for index, policy in enumerate(("proposer", "solver")):
        line[f"learner/{policy}/loss"] = rng.gauss(0.02 * index, 0.01)
        line[f"learner/{policy}/grad_norm"] = 0.4 + abs(rng.gauss(0.2 * index, 0.1))
        line[f"learner/{policy}/mismatch"] = 10 ** rng.uniform(-5.5, -4.5)
        line[f"model-pool/{policy}/mu"] = 25 + (3 * index - 1.5) * learned
        line[f"model-pool/{policy}/sigma"] = 1 + 7 * math.exp(-step / 4)
    return line


def charts_of(run_dir: Path) -> dict[str, list[str]]:
    """Return the names of the lines of every chart, by title."""
    sections = chart_sections(load_run(run_dir))
    return {chart.title: [line.name for line in chart.lines] for made in sections.values() for chart in made}


def test_a_complete_run_shows_program_measures_charts_and_conversations(tmp_path):
    html = build(write_program_run(tmp_path / "two-policies"))
    text = text_of(html)
    for expected in (
        "smollm2-135m is trained on the program proposer_solver , roles Proposer, Solver",
        "policies proposer, solver",
        "Episodes 8,640 3 failed, 6 retried",
        "Before and after",
        "The program's measures updates 0 → 30",
        "exact match 300 items",
        "Ratings of the policies",
        "Episodes per second",
        "18 of 24 episodes in the log",
        "Update 15",
        "8 sub-episodes with mean reward",
        "Shared beginning of every prompt of Solver in solve (1 message)",
        "group p0, policy version 0",
        "Update 15 played by policy version 0",
    ):
        assert expected in text, expected
    assert "Game" not in text
    assert Page(html).open == []
    assert html.count('<details class="game"') == 18
    assert html.count('<details class="child"') == 18 * 8


def test_plotly_accepts_every_chart(tmp_path):
    sections = figure_sections(load_run(write_program_run(tmp_path / "run")))
    figures = [figure for made in sections.values() for figure in made]
    assert figures
    for figure in figures:
        go.Figure(data=figure.traces, layout=figure.layout)


def test_charts_have_a_line_for_each_role_policy_and_reward_function(tmp_path):
    charts = charts_of(write_program_run(tmp_path / "run"))
    assert charts["Reward by role"] == ["Proposer", "Solver"]
    assert charts["Loss"] == charts["Gradient norm"] == ["proposer", "solver"]
    assert charts["Ratings of the policies"] == ["proposer", "solver"]
    assert charts["Metrics of propose"] == ["pass_rate, Proposer", "valid, Proposer"]
    assert charts["propose: solvers, Proposer"] == [""], "the title names it"
    assert charts["Metrics of solve"] == ["exact_match, Solver"]
    assert charts["exact match"] == [""]


def test_a_policy_keeps_its_colour_if_another_lacks_the_metric(tmp_path):
    lines = {"step": 1, "learner/a/loss": 1.0, "learner/b/loss": 1.0, "learner/b/grad_norm": 1.0}
    (tmp_path / "config.toml").write_text(CONFIG)
    (tmp_path / "metrics.jsonl").write_text(json.dumps(lines) + "\n")
    (loss, gradient) = chart_sections(load_run(tmp_path))["Learning"]
    assert [line.colour for line in loss.lines] == [0, 1]
    assert [line.colour for line in gradient.lines] == [1]
    (_, figure) = figure_sections(load_run(tmp_path))["Learning"]
    assert figure.traces[0]["line"]["color"] == COLOURS[1]


def test_a_single_policy_has_the_charts_of_games_and_policies_that_never_met_have_no_ratings(tmp_path):
    (tmp_path / "config.toml").write_text(CONFIG)
    lines = [
        {
            "step": step,
            "learner/loss": 0.1 * step,
            "program/reward/Solver": 0.5,
            "model-pool/a/mu": 25.0,
            "model-pool/a/sigma": 8.3,
            "model-pool/b/mu": 25.0,
            "model-pool/b/sigma": 8.3,
        }
        for step in (1, 2)
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert charts_of(tmp_path) == {"Reward of Solver": [""], "Loss": [""]}


def test_several_measures_of_a_learner_are_labelled_by_policy(tmp_path):
    names = ("mismatch", "stale_mismatch")
    line = {"step": 1} | {f"learner/{policy}/{name}": 1.0 for policy in "ab" for name in names}
    (tmp_path / "config.toml").write_text(CONFIG)
    (tmp_path / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    assert charts_of(tmp_path)["Log-probability mismatch"] == [
        "a: mismatch",
        "a: stale mismatch",
        "b: mismatch",
        "b: stale mismatch",
    ]


def test_measures_have_their_intervals_in_the_table_and_as_bands(tmp_path):
    (tmp_path / "config.toml").write_text(CONFIG)
    directory = tmp_path / "evaluation"
    for step, right, distances in ((0, 10, [0.5, 0.5, 0.4]), (20, 60, [0.1, 0.0, 0.2])):
        share = MeasureResult("exact match", [1.0] * right + [0.0] * (100 - right))
        write_evaluation(directory, step, "exact match", share)
        write_evaluation(directory, step, "distance", MeasureResult("distance", distances))
    write_evaluation(directory, 20, "nothing", MeasureResult("nothing", []))
    html = build(tmp_path)
    assert '<b>10.0%</b> <span class="muted">5.5 to 17.4</span>' in html
    assert '<b>60.0%</b> <span class="muted">50.2 to 69.1</span>' in html
    assert '<b>0.467</b> <span class="muted">0.401 to 0.532</span>' in html
    assert '<div class="range-ends"><span>-0.1</span><span>0.6</span></div>' in html
    assert "nothing" not in text_of(html)
    ((figure, _),) = figure_sections(load_run(tmp_path)).values()
    band, line = figure.traces
    assert line["y"] == [0.1, 0.6]
    assert band["y"] == pytest.approx([0.1744, 0.6906, 0.5020, 0.0552], abs=1e-4)


def test_measures_that_were_taken_at_other_times_say_themselves_how_answers_were_drawn(tmp_path):
    (tmp_path / "config.toml").write_text(CONFIG)
    for name, steps, drawn in (("early", (0, 10), {}), ("late", (0, 20), {"Solver": "top_p 0.9"})):
        for step in steps:
            write_evaluation(tmp_path / "evaluation", step, name, MeasureResult(name, [0.0, 1.0], drawn))
    text = text_of(build(tmp_path))
    assert "updates 0 → 20; Solver: top_p 0.9 late" in text
    assert "updates 0 → 10 early" in text


def test_a_mean_whose_values_were_once_all_zero_is_not_a_share(tmp_path):
    (tmp_path / "config.toml").write_text(CONFIG)
    write_evaluation(tmp_path / "evaluation", 0, "score", MeasureResult("score", [0.0, 0.0]))
    write_evaluation(tmp_path / "evaluation", 9, "score", MeasureResult("score", [3.0, 5.0]))
    text = text_of(build(tmp_path))
    assert "0 → 4" in text
    assert "50%" not in text


def test_a_program_is_recognised_by_its_metrics_without_a_configuration(tmp_path):
    play(tmp_path, [1], [EpisodeRequest("debate", {"topic": "Parks"})])
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "program/reward/Aff": 1.0}\n')
    assert "Parks Aff +1" in text_of(build(tmp_path))
