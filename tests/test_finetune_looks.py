"""What people look at of a run through fine-tuning jobs: its report, ``watch``, ``runs`` and ``analyse``."""

import json
import re
import shutil
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given

from hostile_text import ACTS_ON_A_TERMINAL, hostile_text
from proof_server import MISSING, scripted, serving_proofs
from report_pages import Page
from sparring.cli.main import main
from sparring.commands.list_runs import read_run
from sparring.config.finetune import AgentParameters
from sparring.core.confidence_intervals import wilson_interval
from sparring.finetune.run_files import INSUFFICIENT_DATA_JOB, JobState, RunFiles, load_rollouts
from sparring.finetune.statistics import RunRecords
from sparring.view.cards import card_of
from sparring.view.chart_list import chart_sections
from sparring.view.fine_tuning import FineTuning
from sparring.view.report.page import report_html
from sparring.view.run_view import RunView
from sparring.view.source import RunDirectorySource
from sparring.view.watch.header import header
from sparring.view.watch.panels import evaluation_panel, jobs_panel, run_panel
from sparring.view.watch.terminal_interface import TerminalInterface
from sparring.view.watch.text import card_text
from sparring.view.whole_run import load_run
from watch_screens import look, words_on
from watched_runs import text_of

PANELS = (run_panel, evaluation_panel, jobs_panel)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A directory with the runs ei, malt and solo of a server that plays by a script."""
    directory = tmp_path_factory.mktemp("finetuned")
    with pytest.MonkeyPatch.context() as patch, serving_proofs() as server:
        patch.chdir(directory)
        for name, protocol, trainer, iterations in (
            ("ei", "nip", "pure_text_ei", 2),
            ("malt", "nip", "pure_text_malt", 1),
            ("solo", "solo_verifier", "pure_text_ei", 1),
        ):
            Path("c.toml").write_text(server.config(protocol, trainer, iterations))
            assert main(["finetune", "c.toml", "--name", name]) == 0
    return directory


@pytest.fixture
def runs(finished, tmp_path, monkeypatch):
    """A copy of the runs, in which tests work."""
    shutil.copytree(finished / "runs", tmp_path / "runs")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "runs"


def page_of(run):
    return Page(report_html(load_run(run)))


def lines_of(run, title, section="Strength"):
    charts = chart_sections(load_run(run))[section]
    (found,) = [chart for chart in charts if chart.title == title]
    return {line.name: line for line in found.lines}


def played(run, split, iteration):
    return [one.extras for one in load_rollouts(RunFiles(run).sampled(split, iteration), iteration)]


def is_right(proof):
    return proof["decision"]["verdict"] == ("accept" if proof["y"] else "reject")


def test_the_report_is_written_when_the_run_ends(runs, capsys):
    html = (runs / "ei" / "report.html").read_text()
    assert "Accuracy of the verifier" in html
    assert main(["report", "ei"]) == 0
    assert capsys.readouterr().out == "runs/ei/report.html\n"


def test_accuracy_by_iteration_is_that_of_the_proofs_with_wilson_intervals(runs):
    line = lines_of(runs / "ei", "Accuracy of the verifier")["test"]
    assert line.steps == [0, 1]
    for place, iteration in enumerate((0, 1)):
        proofs = played(runs / "ei", "test", iteration)
        expected = wilson_interval(sum(map(is_right, proofs)), len(proofs))
        assert (line.low[place], line.values[place], line.high[place]) == expected
    assert set(lines_of(runs / "ei", "Always wrong")) == {"test", "training"}
    assert {"test, precision", "training, recall"} < set(lines_of(runs / "ei", "Precision and recall"))


def test_intervals_over_trees_stay_within_0_and_1(runs):
    for line in lines_of(runs / "malt", "Accuracy of the verifier").values():
        for low, value, high in zip(line.low, line.values, line.high, strict=True):
            assert 0 <= low <= value <= high <= 1


def test_decisions_are_counted_by_truth(runs):
    text = [one.strip() for one in page_of(runs / "ei").text]
    start = text.index("Decisions by truth")
    cells = [one for one in text[start:] if one]
    counts = Counter((one["y"], one["decision"]["verdict"]) for one in played(runs / "ei", "test", 0))
    place = cells.index("the claim is right")
    assert cells[place - 1 : place + 5] == [
        "0",
        "the claim is right",
        *(str(counts[1, verdict]) for verdict in ("accept", "reject", "neither", "none")),
    ]


def test_jobs_are_shown_with_what_they_learned_from_and_their_state(runs):
    text = " ".join(page_of(runs / "ei").text)
    record = json.loads((runs / "ei" / "jobs" / "ei_iter_0_prover.json").read_text())
    assert record["examples"] > 0
    assert re.search(rf"0\s+prover\s+supervised\s+{record['examples']}\s+base\s+succeeded\s+base", text)


def test_proofs_are_whole_with_the_verdict_beside_the_truth(runs):
    page = page_of(runs / "ei")
    text = " ".join(page.text)
    words = {"accept": "accepted", "reject": "rejected"}
    for proof in played(runs / "ei", "test", 0)[:1]:
        truth = "right" if proof["y"] else "wrong"
        assert f"{words[proof['decision']['verdict']]}; the claim is {truth}" in text
        for one in proof["rounds"]:
            for answer in one["answers"].values():
                for message in answer["messages"].values():
                    assert message in text
    tags = [attributes["data-tags"].split() for tag, attributes in page.elements if "data-tags" in attributes]
    assert all(len({"right-verdict", "wrong-verdict", "no-verdict"} & set(own)) == 1 for own in tags)
    assert "Iteration 1" in text


def test_of_a_tree_a_branch_is_shown(runs):
    for path in (runs / "malt" / "rollouts").glob("test-*"):
        path.unlink()
    text = " ".join(page_of(runs / "malt").text)
    assert re.search(r"the first of \d+ branches", text)


def test_the_solo_verifier_is_drawn_beside_if_it_is_named(runs, capsys):
    assert "solo verifier" not in (runs / "ei" / "report.html").read_text()
    assert main(["report", "ei", "--solo", "solo"]) == 0
    html = (runs / "ei" / "report.html").read_text()
    figures = json.loads(re.search(r'id="figures" type="application/json">(.*?)</script>', html)[1])
    (trace,) = [one for figure in figures for one in figure["traces"] if one.get("name") == "solo verifier"]
    proofs = played(runs / "solo", "test", 0)
    assert trace["x"] == [0, 1]
    assert trace["y"] == [pytest.approx(sum(map(is_right, proofs)) / len(proofs))] * 2


def test_runs_lists_iterations_and_measures(runs):
    found = read_run(runs / "ei")
    assert (found.kind, found.plays, found.model) == ("program", ["nip"], "base")
    assert (found.updates, found.total, found.state) == (2, 2, "finished")
    assert found.figures[0].name.name == "accuracy"
    assert found.measured_at == 1


def test_a_run_that_waits_for_a_job_is_stopped_or_running_but_not_finished(runs):
    state = json.loads((runs / "ei" / "state.json").read_text())
    state |= {"iteration": 1, "train_loop_stage": "await_fine_tune_jobs"}
    (runs / "ei" / "state.json").write_text(json.dumps(state))
    found = read_run(runs / "ei")
    assert (found.updates, found.total, found.state) == (1, 2, "stopped")
    view = RunDirectorySource(runs / "ei").read()
    assert view.tuning.text == "waiting for jobs"
    assert "stopped" in header(view, 0.0, 100).plain


def grow(run, lines):
    """Make a run that is playing its second iteration and has these lines of rollouts."""
    (run / "rollouts" / "step-000001.jsonl").unlink(missing_ok=True)
    (run / "rollouts" / "growing-train-000001.jsonl").write_bytes(lines)
    (run / "sampling.json").write_text('{"total": 6}')
    state = {"iteration": 1, "train_loop_stage": "sample_rollouts"}
    (run / "state.json").write_text(json.dumps(state))


def test_rollouts_are_counted_while_they_are_played_and_the_last_proof_is_shown(runs):
    lines = (runs / "ei" / "rollouts" / "step-000000.jsonl").read_bytes().splitlines(keepends=True)
    grow(runs / "ei", lines[0] + lines[1] + lines[2][:50])
    source = RunDirectorySource(runs / "ei")
    view = source.read()
    assert view.tuning.text == "playing, 2 of 6 rollouts"
    assert view.game.rollout.id == json.loads(lines[1])["rollout"]["id"]
    assert view.game.step == 1
    grow(runs / "ei", lines[0] + lines[1] + lines[2])
    view = source.read()
    assert view.tuning.text == "playing, 3 of 6 rollouts"
    assert view.game.rollout.id == json.loads(lines[2])["rollout"]["id"]
    assert "1 of 2 iterations done; playing, 3 of 6 rollouts" in header(view, 0.0, 120).plain
    assert "of 2; playing, 3 of 6 rollouts" in text_of(run_panel(view))
    proof = json.loads(lines[2])["rollout"]["extras"]
    text = " ".join(text_of(card_text(card_of(view.game)), 100).split())
    assert " ".join(proof["claim"].split()) in text
    assert f"the claim is {'right' if proof['y'] else 'wrong'}" in text


def records_of(run):
    run.mkdir(exist_ok=True)
    return RunRecords(RunFiles(run))


def test_a_job_has_one_entry_with_its_last_state(tmp_path):
    records = records_of(tmp_path / "run")
    for status in ("pending", "running", "running"):
        records.job(JobState(3, "prover", "ftjob-1", status))
    records_of(tmp_path / "run").job(JobState(0, "prover", "ftjob-0", "succeeded", "ft:old"))
    records.job(JobState(3, "prover", "ftjob-1", "failed", error="no GPU"))
    records.job(JobState(3, "verifier", INSUFFICIENT_DATA_JOB, "succeeded", "base"))
    (tmp_path / "run" / "state.json").write_text(
        '{"iteration": 3, "train_loop_stage": "await_fine_tune_jobs"}'
    )
    jobs = RunDirectorySource(tmp_path / "run").read().tuning.jobs
    assert [(one.iteration, one.group, one.id, one.status, one.model, one.error) for one in jobs] == [
        (0, "prover", "ftjob-0", "succeeded", "ft:old", ""),
        (3, "prover", "ftjob-1", "failed", "", "no GPU"),
        (3, "verifier", "", "too few examples", "", ""),
    ]


def test_what_is_recorded_again_replaces_what_was_recorded(runs):
    files = RunFiles(runs / "ei")
    rollouts = load_rollouts(files.sampled("test", 1), 1)
    before = {path.name: path.read_bytes() for path in (runs / "ei" / "evaluation").iterdir()}
    metrics = files.metrics.read_bytes()
    RunRecords(files).sampled("test", 1, rollouts)
    assert {path.name: path.read_bytes() for path in (runs / "ei" / "evaluation").iterdir()} == before
    assert files.metrics.read_bytes() == metrics


async def test_watch_shows_the_stage_the_jobs_the_statistics_and_the_proof(runs):
    app = TerminalInterface(RunDirectorySource(runs / "ei"))
    async with app.run_test(size=(150, 48)) as pilot:
        await look(app, pilot)
        screen = words_on(app)
        for expected in ("finished", "Iterations", "Jobs", "accuracy on right claims", "succeeded"):
            assert expected in screen
        for other in ("Last update", "Ratings", "Matches"):
            assert other not in screen
        await pilot.press("3")
        assert "Iterations" in words_on(app)
        await pilot.press("2")
        await pilot.pause()
        assert "Accuracy of the verifier" in words_on(app)
        await pilot.press("6")
        await pilot.pause()
        assert "the claim is" in words_on(app)


async def test_watch_of_another_run_has_no_panels_of_fine_tuning(tmp_path):
    (tmp_path / "run").mkdir()
    app = TerminalInterface(RunDirectorySource(tmp_path / "run"))
    async with app.run_test(size=(150, 48)) as pilot:
        await look(app, pilot)
        screen = words_on(app)
        assert "Last update" in screen
        assert "Ratings" in screen
        for other in ("Iterations", "Jobs", "accuracy"):
            assert other not in screen


def hostile_run(directory, text):
    """A run in which every name and word is ``text``."""
    undecided = {"verdict": "none", "value": 0.0, "raw": text}
    answer = {"messages": {text: text, "x": text}, "raw": text, "decision": undecided}
    answer |= {"valid": True, "retries": 1, "cut": True}
    last = answer | {"messages": {}, "decision": undecided | {"verdict": "accept"}, "valid": False}
    extras = {
        "protocol": text,
        "question": text,
        "claim": text,
        "y": 0,
        "id": text,
        "seed": 0,
        "stances": {text: "accept"},
        "branches": [0, 0],
        "rounds": [{"answers": {text: one}, "rewards": {text: 1.0}} for one in (answer, last)],
        "decision": undecided | {"verdict": text},
        "decided_by": None,
        "terminated": False,
    }
    step = {"role_id": text, "prompt": [{"role": text, "content": text}], "info": {"round": 0}}
    step["completion"] = [{"role": text, "content": text}]
    rollout = {"episode_type": text, "id": text, "extras": extras, "steps": [step]}
    job = {"iteration": 0, "group": text, "job": text, "status": text, "model": text, "error": text}
    record = {"name": text, "model": text, "method": text, "examples": 1, "job": text}
    record |= {"unique_name": text, "sha256": text}
    state = {"iteration": 0, "train_loop_stage": "test"}
    state["shared_model_groups"] = {text: {"fine_tuned_model_name": text}}
    for name, content in {
        "rollouts/step-000000.jsonl": {"rollout": rollout},
        "job_states.json": [job],
        "jobs/one.json": record,
        "state.json": state,
    }.items():
        path = directory / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(content) + "\n")
    (directory / "config.toml").write_text('[program]\ntype = "proofs"\n')
    return directory


@given(text=hostile_text(whole_characters=True))
def test_hostile_text_of_proofs_and_jobs_stays_text_on_the_page(text):
    def page_with(content):
        with TemporaryDirectory() as directory:
            return page_of(hostile_run(Path(directory), content))

    hostile, harmless = page_with(text), page_with("x")
    assert hostile.open == []
    assert {tag for tag, _ in hostile.elements} <= {tag for tag, _ in harmless.elements}
    assert not any(name.startswith("on") for _, attributes in hostile.elements for name in attributes)
    for tag in ("script", "style", "meta", "title"):
        assert sum(one == tag for one, _ in hostile.elements) == sum(
            one == tag for one, _ in harmless.elements
        )


@given(text=hostile_text(whole_characters=True))
def test_hostile_text_of_proofs_and_jobs_does_not_reach_the_terminal(text):
    with TemporaryDirectory() as directory:
        view = RunDirectorySource(hostile_run(Path(directory), text)).read()
    assert view.tuning is not None
    drawn = [text_of(panel(view)) for panel in PANELS]
    drawn += [header(view, 0.0, 100).plain, text_of(card_text(card_of(view.game)), 60)]
    assert not any(ACTS_ON_A_TERMINAL.search(one) for one in drawn)


NAMED = ("state.json", "job_states.json")
"""The files whose damage would hide what the doctor says."""


@pytest.mark.parametrize(
    "damaged", ["state.json", "job_states.json", "sampling.json", "jobs/ei_iter_0_prover.json"]
)
def test_damaged_files_are_left_out(runs, damaged):
    (runs / "ei" / damaged).write_text("{")
    view = RunDirectorySource(runs / "ei").read()
    assert not view.trouble
    assert view.tuning is not None
    assert view.tuning.damaged == ([damaged] if damaged in NAMED else [])
    report_html(load_run(runs / "ei"))


def test_analyse_prints_shares_with_intervals_and_asks_nothing_twice(runs, capsys):
    command = ["analyse", "ei", "--analyser", "prover_role_conformance", "--model", "judge"]
    asked = []

    def answer(messages, seed):
        asked.append(messages)
        return scripted(messages, seed)

    with serving_proofs(answer) as server:
        assert main([*command, "--base-url", server.url]) == 0
        first = capsys.readouterr().out
        assert {body["model"] for body in server.bodies} == {"judge"}
        assert 1 <= server.most_open <= 4
        count = len(asked)
        assert main([*command, "--base-url", server.url]) == 0
    assert len(asked) == count
    again = capsys.readouterr().out
    for iteration in ("train 0", "train 1", "test 0", "test 1"):
        (row,) = [line.split() for line in first.splitlines() if re.search(rf" {iteration}  +prover ", line)]
        yes, no = int(row[4]), int(row[5])
        low, share, high = wilson_interval(yes, yes + no)
        assert " ".join(row[6:10]) == f"{100 * share:.1f}% {100 * low:.1f} to {100 * high:.1f}"
        assert " ".join(row) in " ".join(again.split())
    assert again.count("skipped") == 4


def test_a_model_that_the_server_lacks_is_one_line_and_status_2(runs, capsys):
    command = ["analyse", "ei", "--analyser", "prover_role_conformance", "--model", MISSING]
    with serving_proofs() as server:
        assert main([*command, "--base-url", server.url]) == 2
    printed = capsys.readouterr().err
    assert "there is no model missing" in printed
    assert printed.endswith("Check the model's name and base_url\n")
    assert printed.count("\n") == 1


def test_a_run_that_names_no_agents_begins_from_the_default_model_in_every_view():
    tuning = FineTuning("sample_rollouts", 0)
    named = {"finetune": {"agents": {"prover": {"model_name": "small"}}}}
    for config, model in (
        ({"finetune": {}}, AgentParameters().model_name),
        (named, "small"),
        ({}, "unknown"),
    ):
        assert RunView("run", config=config, tuning=tuning).model == model
