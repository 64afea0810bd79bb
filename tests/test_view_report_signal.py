"""The report about the run as a whole: warnings, versions and machine, evaluations, readable axes."""

import json
import re

import pytest

from report_pages import HOSTILE, Page, build
from report_programs import CONFIG, step_of, text_of, write_log
from run_files import match, nash
from sparring.collection.rollout_log import write_rollouts
from sparring.core import Rollout
from sparring.evaluation.results import write_evaluation
from sparring.view.chart_list import chart_sections
from sparring.view.charts import SMALL, chart, lines_of, with_wide_axis
from sparring.view.metrics import Series
from sparring.view.report.page import report_html
from sparring.view.report.plotly import figure_of
from sparring.view.whole_run import load_run

SESSION = {
    "started": "2026-03-04T05:06:07+00:00",
    "sparring": "0.1.0",
    "python": "3.11.2",
    "torch": "2.9.0",
    "system": "Linux x86_64",
    "cpus": 2,
    "gpus": [],
}


def write_metrics(path, *lines):
    text = "".join(
        json.dumps({"step": step, "wall_time": 1e9 + 10 * step} | line) + "\n" for step, line in lines
    )
    (path / "metrics.jsonl").write_text(text)


def charts_of(path):
    return {one.title: one for charts in chart_sections(load_run(path)).values() for one in charts}


def names_of(path):
    return {title: [line.name for line in one.lines] for title, one in charts_of(path).items()}


def figures_of(path):
    page = report_html(load_run(path))
    return json.loads(re.search(r'<script id="figures" type="application/json">(.*?)</script>', page)[1])


def test_what_half_of_the_newest_updates_were_warned_of_is_shown_with_where(tmp_path):
    silent = {"answers/zero_advantage_share": 1.0}
    cut = {"answers/zero_advantage_share": 0.5, "answers/cut_share/Judge": 0.9}
    write_metrics(tmp_path, (1, silent), (2, silent), (3, cut))
    text = text_of(build(tmp_path))
    assert text.count("every advantage is 0, so the rewards teach nothing in 1 of 2 updates, 2 to 3;") == 1
    assert "90% of the answers of Judge are cut at the token limit in 1 of 2 updates, 2 to 3;" in text
    write_metrics(tmp_path, (1, silent), (2, silent), (3, cut), (4, cut), (5, cut), (6, cut))
    assert "every advantage" not in text_of(build(tmp_path))


def test_one_warning_covers_advantages_of_0_for_all_roles_or_for_one_alone(tmp_path):
    share = "answers/zero_advantage_share"
    one = {share: 0.5, f"{share}/Judge": 1.0, f"{share}/Solver": 0.0}
    both = {share: 1.0, f"{share}/Judge": 1.0, f"{share}/Solver": 1.0}
    write_metrics(tmp_path, (1, one), (2, both), (3, one))
    assert text_of(build(tmp_path)).count("every advantage") == 1
    write_metrics(tmp_path, (1, one))
    assert "every advantage" not in text_of(build(tmp_path))
    write_metrics(tmp_path, *[(update, one) for update in (1, 2, 3, 4)])
    told = "every advantage of Judge is 0, so it learns nothing from the rewards in 2 of 2 updates, 3 to 4;"
    assert told in text_of(build(tmp_path))


@pytest.mark.parametrize(
    ("step", "text"),
    [
        (3.0, "the rewards teach nothing in update 3;"),
        ("<img src=x>", "1 damaged line of metrics skipped"),
    ],
)
def test_a_line_of_a_foreign_file_is_shown_only_if_its_step_is_a_number(tmp_path, step, text):
    write_metrics(tmp_path, (1, {"step": step, "answers/zero_advantage_share": 1.0}))
    page = build(tmp_path)
    assert text in text_of(page)
    assert "<img" not in page
    assert "3.0" not in text_of(page)


def test_a_run_that_learns_has_no_warning(tmp_path):
    write_metrics(tmp_path, (1, {"answers/zero_advantage_share": 0.5, "learner/grad_norm": 0.1}))
    assert "Look at this first" not in build(tmp_path)


def test_the_page_shows_the_start_versions_and_machine_of_the_run(tmp_path):
    (tmp_path / "config.toml").write_text("seed = 41\n")
    (tmp_path / "sessions.json").write_text(
        json.dumps([SESSION, SESSION | {"torch": "2.9.1", "gpus": ["H100"]}])
    )
    assert (
        "started 2026-03-04 05:06:07 UTC, resumed 1 time · sparring 0.1.0, Python 3.11.2, torch 2.9.1 · "
        "Linux x86_64, 2 CPUs, H100 · seed 41"
    ) in text_of(build(tmp_path))


@pytest.mark.parametrize("content", ["", "{}", "[3]", '[{"cpus": "two"}]', "\xff"])
def test_damaged_sessions_are_left_out(tmp_path, content):
    (tmp_path / "sessions.json").write_text(content, encoding="latin-1")
    assert "</html>" in build(tmp_path)


def test_the_time_includes_the_first_evaluation_and_failed_games_are_counted(tmp_path):
    first = {"time/evaluation_seconds": 300.0, "time/play_seconds": 6.0, "time/learn_seconds": 3.0}
    accounts = {"accounts/finished": 64.0, "accounts/failed": 0.0, "accounts/retried": 5.0}
    write_metrics(tmp_path, (1, first), (2, accounts | {"time/evaluation_seconds": 2.0}))
    text = text_of(build(tmp_path))
    assert "Time 5 min 19 s including 5 min 2 s of evaluation" in text
    assert "Games 64 0 failed, 5 retried" in text


def test_answers_have_a_chart_for_each_measure_with_a_line_for_each_role(tmp_path):
    line = {
        f"answers/{name}/{role}": 0.25
        for name in ("zero_advantage_share", "cut_share", "tokens", "entropy_estimate")
        for role in ("Judge", "Solver")
    }
    write_metrics(tmp_path, (1, line | {"program/equal_group_share": 0.5}), (2, line))
    assert names_of(tmp_path) == {
        "Answers without advantage": ["Judge", "Solver", "groups with equal rewards"],
        "Answers cut at the token limit": ["Judge", "Solver"],
        "Answer length": ["Judge", "Solver"],
        "Entropy, estimated": ["Judge", "Solver"],
    }


def test_a_chart_of_one_line_names_it_unless_its_title_does(tmp_path):
    write_metrics(
        tmp_path, (1, {"learner/loss": 1.0, "learner/legal_entropy": 1.0, "time/games_per_second": 3.0})
    )
    shown = [figure["layout"]["showlegend"] for figure in figures_of(tmp_path)]
    legends = dict(zip(charts_of(tmp_path), shown, strict=True))
    assert legends == {"Loss": False, "Entropy over legal answers": False, "Games per second": False}


def test_a_legend_spells_out_measures_and_keeps_names_of_the_run(tmp_path):
    names = ("time/generated_tokens_per_second", "inference/Engine_0/tok_s", "learner/kl_to_base")
    variety = (
        "exploration/kuhn_poker/Pct. Unique Action 2-gram",
        "exploration/tic_tac_toe/Pct. Unique Action 2-gram",
    )
    write_metrics(tmp_path, (1, dict.fromkeys([*names, *variety], 1.0)))
    legends = names_of(tmp_path)
    assert legends["Tokens per second"] == ["Engine_0", "generated"]
    assert legends["Divergence"] == ["kl to base"]
    assert legends["Variety of play, kuhn_poker"] == legends["Variety of play, tic_tac_toe"] == ["2-gram"]


@pytest.mark.parametrize(("steps", "dtick"), [(2, 1), (12, 1), (13, None)])
def test_steps_on_the_axis_are_whole(tmp_path, steps, dtick):
    write_metrics(tmp_path, *((step, {"learner/loss": 1.0}) for step in range(1, steps + 1)))
    (figure,) = figures_of(tmp_path)
    assert figure["layout"].get("xaxis", {}).get("dtick") == dtick


def test_an_axis_is_logarithmic_only_if_its_labels_fit():
    def drawn(*values):
        lines = lines_of({"c": Series([1.0] * len(values), list(values))})
        return figure_of(with_wide_axis(chart("Mismatch", lines, "Nats.")))

    assert "type" not in drawn(2e-7, 9e-7).layout["yaxis"]
    assert drawn(2e-7, 9e-7).caption == "Nats."
    assert drawn(1e-7, 1e-5).layout["yaxis"]["type"] == "log"
    assert drawn(1e-7, 1e-5).caption == "Nats. The axis is logarithmic."
    assert "type" not in drawn(0.0).layout["yaxis"]


def test_an_axis_of_tiny_shares_reaches_one_percent():
    def axis(value):
        lines = lines_of({"c": Series([1.0], [value])})
        return figure_of(chart("Legal", lines, "", axis="share", bounds=SMALL)).layout["yaxis"]

    assert axis(1e-9)["range"] == [0, 0.01]
    assert "range" not in axis(0.3)
    assert axis(0.3)["rangemode"] == "tozero"


def write_match(path, step, wins, *, text="[0]"):
    evaluation = write_evaluation(path / "evaluation", step, "kuhn_poker-random", match(wins, 10))
    turn = {"pid": 0, "kind": "model", "model": "default", "observation": text, "text": text, "action": text}
    extras = {
        "turns": [{**turn, "well_formed": True, "invalid": False}],
        "final_rewards": {0: 1.0, 1: -1.0},
        "game_info": {},
        "num_turns": 1,
        "invalid_pid": None,
        "raised": None,
        "truncated": False,
        "action_seq": [text],
    }
    games = [Rollout(episode_type="kuhn_poker", id=f"match-{number}", extras=extras) for number in range(3)]
    write_rollouts(evaluation.with_suffix(".jsonl"), step, games)


def test_games_of_the_first_and_last_evaluation_have_their_win_rate(tmp_path):
    for step, wins in ((0, 2), (5, 4), (10, 7)):
        write_match(tmp_path, step, wins)
    html = build(tmp_path)
    text = text_of(html)
    assert "After update 0: kuhn_poker against random win rate 20.0%, " in text
    assert "After update 10: kuhn_poker against random win rate 70.0%, " in text
    assert "After update 5" not in text
    assert html.count('<details class="game"') == 6
    assert "seat 0, trained" in text


def test_conversations_of_an_evaluation_are_read_with_their_sub_episodes(tmp_path):
    (tmp_path / "config.toml").write_text(CONFIG)
    (tmp_path / "evaluation").mkdir()
    parent = Rollout(
        episode_type="ask",
        artifact={"claim": "Cats purr"},
        meta={},
        id="p",
        steps=[step_of("Judge", "yes")],
        rewards={"Judge": 1.0},
    )
    child = Rollout(
        episode_type="check",
        artifact=None,
        meta={"parent_id": "p"},
        id="p.0",
        steps=[step_of("Helper", "indeed")],
    )
    for step in (0, 4):
        path = tmp_path / "evaluation" / f"step-{step:06d}-conversations.jsonl"
        write_rollouts(path, step, [parent, child])
    html = build(tmp_path)
    text = text_of(html)
    assert "After update 0" in text
    assert text.count("Cats purr Judge yes") == 2
    assert "reward 0" in text
    assert "advantage" not in text
    assert html.count('<details class="child"') == 2


def facts_of(html):
    games = [attrs for _, attrs in Page(html).elements if attrs.get("class") == "game"]
    return [json.loads(attrs["data-facts"]) for attrs in games]


def test_conversations_can_be_filtered_by_reward_failure_and_cut_answers(tmp_path):
    cut = step_of("A", "and so on")
    cut.info["finish_reason"] = "length"
    cut.completion_token_ids = cut.completion_logprobs = None
    rollouts = [
        Rollout(
            episode_type="talk", artifact="x", meta={}, id="1", steps=[cut], rewards={"A": 1.0, "B": 0.0}
        ),
        Rollout(episode_type="talk", artifact="y", meta={"error": "lost"}, id="2"),
        Rollout(
            episode_type="talk",
            artifact="z",
            meta={},
            id="3",
            steps=[step_of("A", "so")],
            rewards={"A": -1.0, HOSTILE: 2.0},
        ),
    ]
    write_log(tmp_path, 1, rollouts)
    html = build(tmp_path)
    first, lost, last = facts_of(html)
    assert (first["kinds"], lost["kinds"], last["kinds"]) == (["cut at the token limit"], ["failed"], [])
    assert {place: one["reward"] for place, one in first["seats"].items()} == {"1": 1.0, "2": 0.0}
    assert {place: one["reward"] for place, one in last["seats"].items()} == {"1": -1.0, "0": 2.0}
    assert lost["seats"] == {}
    assert (first["length"], last["length"]) == (3, 1)
    text = text_of(html)
    assert "length in words" in text
    assert "any outcome" not in text
    options = [attrs["value"] for tag, attrs in Page(html).elements if tag == "option"]
    assert options == ["", "0", "1", "2"]


def test_games_can_be_filtered_by_seat_outcome_reward_and_fault(tmp_path):
    write_match(tmp_path, 3, 1)
    html = build(tmp_path)
    for facts in facts_of(html):
        seats = [*facts["seats"].values()]
        assert sorted(one["outcome"] for one in seats) == ["loss", "win"]
        assert all((one["reward"] > 0) == (one["outcome"] == "win") for one in seats)
    assert [name for name in ("won", "drew", "lost") if name in text_of(html).split()] == ["won", "lost"]


def test_the_nash_conv_of_an_unplayable_policy_is_marked(tmp_path):
    for step, mass in ((0, 1e-9), (9, 0.9)):
        write_evaluation(tmp_path / "evaluation", step, "nash", nash(1.08, mass=mass))
    html = build(tmp_path)
    assert html.count('<b>1.0800</b> <span class="badge warn">cannot be played</span>') == 1
    assert "it loses by invalid moves" in html
    assert "Look at this first" not in html, "the last policy can be played"
    (tmp_path / "evaluation" / "step-000009-nash.json").unlink()
    assert "the NashConv of kuhn_poker is of a policy that cannot be played" in text_of(build(tmp_path))
