"""``sparring compare``: entries, what differs between them, intervals, the table and the page."""

import io
import json
import re

import plotly.graph_objects as go
import pytest
from rich.console import Console

from hostile_text import ACTS_ON_A_TERMINAL, HTML, RICH_MARKUP, TERMINAL
from report_pages import Page
from run_files import PROGRAM, match, nash, write_run
from sparring.cli.main import main
from sparring.commands.compare import differing_fields, figure_names, read_entries
from sparring.commands.compare_page import MOST_FIELDS, OVER, WITHIN, comparison_html, comparison_text
from sparring.core.confidence_intervals import interval_over_runs
from sparring.evaluation.figures import FigureName
from sparring.evaluation.results import MeasureResult

RANDOM = "kuhn_poker-random"
WINS = FigureName("win rate", "kuhn_poker", "random")
NASH = FigureName("NashConv", "kuhn_poker")


def results(wins: int, distance: float, games: int = 100):
    return {RANDOM: match(wins, games), "kuhn_poker-nash-conv": nash(distance)}


@pytest.fixture
def seeds(tmp_path):
    """Three seeds of one configuration, evaluated before, during and after training."""
    return [
        str(
            write_run(
                tmp_path / f"seed-{seed}",
                {
                    0: results(20, 1.0),
                    2: results(40 + seed, 0.5 + seed / 10),
                    4: results(50 + 3 * seed, 0.1 + seed / 10),
                },
                metrics={"answers/tokens/player": 2.0 + seed, "time/games_per_second": 100.0},
                seed=str(seed),
                model__threads=str(seed + 1),
                run__directory=str(tmp_path / f"directory-{seed}"),
            )
        )
        for seed in range(3)
    ]


@pytest.fixture
def other(tmp_path):
    """A run of another configuration, without an interval over runs."""
    return str(
        write_run(
            tmp_path / "other", {0: results(20, 1.0), 4: results(70, 0.2)}, learning__learning_rate="0.5"
        )
    )


def text_of(entries, width=80) -> str:
    text = io.StringIO()
    Console(file=text, width=width).print(comparison_text(entries))
    return text.getvalue()


def test_seeds_of_one_configuration_are_one_entry_and_other_configurations_others(seeds, other):
    entries = read_entries([seeds[0], other, *seeds[1:]])
    assert [entry.label for entry in entries] == ["seed-0, seed-1, seed-2", "other"]


def test_a_second_run_of_a_seed_is_no_further_evidence(seeds, tmp_path):
    again = write_run(tmp_path / "again", {4: results(50, 0.1)}, seed="0")
    entries = read_entries([*seeds, str(again)])
    assert [entry.label for entry in entries] == ["seed-0, seed-1, seed-2", "again"]


def test_the_address_of_a_cluster_makes_no_other_entry(tmp_path):
    paths = []
    for seed, name in enumerate("ab"):
        changes = {"run__runtime": "ray", "ray__address": f"{name}:6379", "seed": str(seed)}
        paths.append(str(write_run(tmp_path / name, finished=False, **changes)))
    assert len(read_entries(paths)) == 1


def test_fields_that_differ_are_named_with_their_values(tmp_path):
    envs = ("[{id = 'kuhn_poker'}]", "[{id = 'leduc_poker', template = 'default'}]")
    paths = [
        str(write_run(tmp_path / name, envs=env, lora__rank=rank, buffer__batch_size=size))
        for name, env, rank, size in (("a", envs[0], "4", "7"), ("b", envs[1], "8", "7"))
    ]
    assert differing_fields(read_entries(paths)) == {
        "envs.0.id": ["kuhn_poker", "leduc_poker"],
        "envs.0.template": ["fewshot-chat", "default"],
        "lora.rank": [4, 8],
    }
    said = text_of(read_entries(paths))
    assert re.search(r"lora\.rank\n +a +4 *\n +b +8", said), said


def test_the_terminal_lists_only_some_fields_of_unlike_runs_and_the_page_lists_all(tmp_path):
    (tmp_path / "debate.toml").write_text(PROGRAM)
    paths = [
        str(write_run(tmp_path / "a")),
        str(write_run(tmp_path / "b", preset=str(tmp_path / "debate.toml"))),
    ]
    entries = read_entries(paths)
    different, said = differing_fields(entries), text_of(entries)
    assert len(different) > MOST_FIELDS
    assert sum(f"{name}\n" in said for name in different) <= MOST_FIELDS
    assert f"and {len(different) - MOST_FIELDS} more fields, which the page lists" in said
    assert all(name in comparison_html(entries) for name in different)


def test_a_figure_of_several_runs_is_their_mean_with_the_interval_over_runs(seeds, other):
    several, alone = read_entries([*seeds, other])
    assert several.last(WINS).interval == interval_over_runs([0.50, 0.53, 0.56])
    low, mid, high = several.last(NASH).interval
    assert mid == pytest.approx(0.2)
    assert low == 0, "no NashConv is below 0"
    assert high == pytest.approx(interval_over_runs([0.1, 0.2, 0.3]).high)
    assert alone.last(WINS).interval == match(70, 100).win_rate
    assert alone.last(NASH).is_exact
    assert not several.last(NASH).is_exact


def test_runs_that_ended_alike_have_the_interval_of_their_games(tmp_path):
    paths = [
        str(write_run(tmp_path / str(seed), {4: {RANDOM: match(0, 40)}}, seed=str(seed))) for seed in (0, 1)
    ]
    (entry,) = read_entries(paths)
    low, mid, high = entry.last(WINS).interval
    assert low == mid == 0.0
    assert high > 0.01, "no win in so many games does not mean that there never is one"


def test_the_table_says_counts_intervals_and_what_they_mean(seeds, other):
    said = text_of(read_entries([*seeds, other]))
    rows = {" ".join(line.split()) for line in said.splitlines()}
    low, mid, high = interval_over_runs([0.50, 0.53, 0.56])
    assert f"seed-0, seed-1, seed-2 {mid:.1%} {100 * low:.1f} to {100 * high:.1f} 3 runs, 300 games" in rows
    assert "other 70.0% 60.4 to 78.1 1 run, 100 games" in rows
    assert "other 0.2000 1 run" in rows, "an exact measure of one run has no interval"
    assert "seed-0, seed-1, seed-2 3 update 4 smollm2-135m kuhn_poker" in rows
    assert max(map(len, said.splitlines())) <= 80
    whole = " ".join(said.split())
    assert OVER in whole
    assert WITHIN in whole
    assert OVER not in " ".join(text_of(read_entries([other, seeds[0]])).split())
    assert WITHIN not in " ".join(text_of(read_entries(seeds)).split())


def test_draws_are_left_out_where_no_run_ever_drew(seeds, tmp_path):
    entries = read_entries(seeds)
    assert FigureName("draw rate", "kuhn_poker", "random") not in figure_names(entries)
    write_run(tmp_path / "drawn", {0: {RANDOM: match(5, 10, draws=1)}, 4: {RANDOM: match(5, 10)}})
    entries = read_entries([*seeds, str(tmp_path / "drawn")])
    assert FigureName("draw rate", "kuhn_poker", "random") in figure_names(entries)


def test_figures_have_their_environment_only_where_there_are_several(seeds, tmp_path):
    assert figure_names(read_entries(seeds))[WINS] == "win rate against random"
    leduc = match(1, 10, env_id="leduc_poker")
    write_run(tmp_path / "leduc", {4: {"leduc": leduc}}, envs="[{id = 'leduc_poker'}]")
    entries = read_entries([*seeds, str(tmp_path / "leduc")])
    assert figure_names(entries)[WINS] == "win rate against random in kuhn_poker"
    assert entries[1].last(WINS) is None


def test_runs_that_were_last_evaluated_at_different_updates_say_so(seeds, tmp_path):
    write_run(tmp_path / "seed-3", {0: results(20, 1.0), 2: results(41, 0.6)}, seed="3")
    entries = read_entries([*seeds, str(tmp_path / "seed-3")])
    said = " ".join(text_of(entries).split())
    assert "seed-0 and 3 more: its runs were last evaluated at different updates, 2 to 4." in said
    assert entries[0].curve(WINS).keys() == {0, 2}, "a mean over other runs at other updates would jump"


def test_an_unplayable_nash_conv_is_marked(tmp_path):
    paths = [
        str(write_run(tmp_path / name, {4: {"n": nash(0.5, mass=mass)}}, lora__rank=rank))
        for name, mass, rank in (("a", 0.05, "4"), ("b", 0.9, "8"))
    ]
    said = text_of(read_entries(paths))
    assert "0.5000 cannot be played" in said
    assert "NashConv treats the policy as if it gave only legal" in said


def test_a_measure_that_is_a_share_by_chance_is_a_mean(tmp_path):
    (tmp_path / "debate.toml").write_text(PROGRAM)
    values = {0: [0.0, 1.0], 1: [0.5, 9.5]}
    paths = [
        str(
            write_run(
                tmp_path / str(seed),
                {4: {"score": MeasureResult("score", values[seed])}},
                preset=str(tmp_path / "debate.toml"),
                seed=str(seed),
            )
        )
        for seed in values
    ]
    (entry,) = read_entries(paths)
    score = entry.last(FigureName("score"))
    assert score.kind == "mean"
    assert score.interval == interval_over_runs([0.5, 5.0]), "it may leave 0 to 1"
    assert "2 runs, 4 items" in text_of([entry])


def test_runs_without_evaluations_can_be_compared(tmp_path):
    paths = [str(write_run(tmp_path / name, lora__rank=rank)) for name, rank in (("a", "4"), ("b", "8"))]
    entries = read_entries(paths)
    assert "Nothing was evaluated." in text_of(entries)
    assert "Nothing was evaluated." in comparison_html(entries)


def test_runs_of_one_name_in_several_directories_go_by_their_paths(tmp_path):
    for seed, place in enumerate(("here", "there")):
        write_run(tmp_path / place / "run", seed=str(seed))
    (entry,) = read_entries([str(tmp_path / place / "run") for place in ("here", "there")])
    assert entry.label == f"{tmp_path}/here/run, {tmp_path}/there/run"


# The page


def figures_in(page: str) -> list[dict]:
    return json.loads(re.search(r'<script id="figures" type="application/json">(.*?)</script>', page)[1])


def test_every_chart_has_a_line_for_each_entry_with_its_interval(seeds, other):
    page = comparison_html(read_entries([*seeds, other]))
    charts = {}
    found = re.findall(r"<h3>(.*?)</h3>.*?<div class=\"chart\" id=\"(.*?)\"", page)
    titles = {place: title for title, place in found}
    for figure in figures_in(page):
        go.Figure(data=figure["traces"], layout=figure["layout"])  # Plotly accepts it
        charts[titles[figure["id"]]] = figure["traces"]
    lines = {trace["name"]: trace for trace in charts["Win rate against random"] if trace.get("name")}
    assert lines["seed-0, seed-1, seed-2"]["x"] == [0, 2, 4]
    assert lines["seed-0, seed-1, seed-2"]["y"] == pytest.approx([0.2, 0.41, 0.53])
    assert lines["other"]["x"] == [0, 4]
    bands = [trace for trace in charts["Win rate against random"] if trace.get("fill")]
    assert bands[0]["y"][2] == pytest.approx(interval_over_runs([0.50, 0.53, 0.56]).high, rel=1e-5)
    assert bands[1]["y"][1] == pytest.approx(match(70, 100).win_rate.high, rel=1e-5)
    assert len([trace for trace in charts["NashConv"] if trace.get("fill")]) == 1, "one run's is exact"
    tokens = {trace.get("name"): trace for trace in charts["Answer length: player"]}
    assert tokens["seed-0, seed-1, seed-2"]["y"] == [3.0] * 4
    assert "other" not in tokens, "it has no such metric"


def test_hostile_text_in_runs_is_only_text_on_the_page_and_in_the_terminal(tmp_path):
    whole = [text for text in (*HTML, *TERMINAL, *RICH_MARKUP) if "\ud800" not in text]
    (tmp_path / "debate.toml").write_text(PROGRAM)
    names = {f"{text} measure": MeasureResult(f"{text} measure", [1.0, 0.5]) for text in whole}
    evaluations = {step: {f"m{place}": one for place, one in enumerate(names.values())} for step in (0, 4)}
    run_names = ["<script>alert(1)<", "b[red]\x1b[2J"]
    paths = [
        str(
            write_run(
                tmp_path / name,
                evaluations,
                preset=str(tmp_path / "debate.toml"),
                metrics={f"program/reward/{HTML[0]}": 1.0},
                lora__rank=str(4 + place),
                tracking__wandb_project=json.dumps(HTML[4]),
            )
        )
        for place, name in enumerate(run_names)
    ]
    entries = read_entries(paths)
    page = comparison_html(entries)
    calm = [str(write_run(tmp_path / n / n, {0: {}}, lora__rank=r)) for n, r in (("a", "4"), ("b", "8"))]
    ours, plain = Page(page), Page(comparison_html(read_entries(calm)))
    assert ours.open == []
    assert {tag for tag, _ in ours.elements} <= {tag for tag, _ in plain.elements} | {"h3", "i", "p", "b"}
    attributes = {name for _, found in ours.elements for name in found}
    assert not any(name.startswith("on") or name in ("src", "href", "action") for name in attributes)
    assert "default-src &#x27;none&#x27;; script-src &#x27;sha256-" in page
    assert len(figures_in(page)) >= len(names)
    said = text_of(entries, 120)
    assert not ACTS_ON_A_TERMINAL.search(said)
    assert "b[red]·[2J" in said


def test_the_command_writes_the_page_and_prints_the_table(seeds, other, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["compare", *seeds, other, "--out", "page.html"]) == 0
    printed = capsys.readouterr().out
    assert "seed-0, seed-1, seed-2" in printed
    assert printed.endswith("page: page.html\n")
    assert (tmp_path / "page.html").read_text().startswith("<!DOCTYPE html>")
    assert main(["compare", *seeds]) == 0
    assert (tmp_path / "comparison.html").exists()
