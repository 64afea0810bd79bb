"""What stands out is found in runs that were made to have it, and nothing is in runs that learn."""

import json
import re
import shutil
import tomllib
from datetime import date
from pathlib import Path

import pytest
import tomli_w

from doc_pages import DOCS
from doctor_runs import FAULTS, HEALTHY, Lab
from game_runs import metrics_of
from hostile_text import ACTS_ON_A_TERMINAL, TERMINAL
from sparring.cli.main import main
from sparring.commands.doctor import diagnose
from sparring.config import Config, dump_config, load_config
from sparring.config.facts import FOR_GAMES, FOR_PROGRAMS
from sparring.config.fields import config_fields
from sparring.config.validation import validated
from sparring.evaluation.results import MeasureResult, write_evaluation
from sparring.finetune.run_files import (
    INSUFFICIENT_DATA_JOB,
    GroupState,
    JobState,
    RunFiles,
    Stage,
    State,
    write_json,
)
from sparring.run.run_layout import PSRO_FILE
from sparring.view.findings.diagnosis import findings_of
from sparring.view.findings.finding import Finding
from sparring.view.run_view import REWARD as REWARD_OF
from sparring.view.source import RunDirectorySource, read_to_end


@pytest.fixture(scope="module")
def lab(tmp_path_factory) -> Lab:
    return Lab(tmp_path_factory.mktemp("lab"))


@pytest.fixture(scope="module")
def wrong(lab, playing) -> Path:
    """A run in which no answer is right."""
    lab.poker = playing
    return lab.program("wrong-answers", options='kind = "wrong"', evaluation__every="0", learning__steps="4")


def found_in(run: Path) -> list[Finding]:
    (diagnosis,) = diagnose(str(run))
    return diagnosis.findings


def causes_in(run: Path) -> list[str]:
    return [one.cause for one in found_in(run)]


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_that_was_made_is_found(fault, lab):
    run = fault.make(lab)
    findings = found_in(run)
    causes = [one.cause for one in findings]
    print(f"| {fault.name} | {', '.join(causes)} |")
    assert any(cause.startswith(fault.causes) for cause in causes)
    assert all(one.page == "" or is_section(one.page) for one in findings)
    config = load_config(str(run / "config.toml"), {})
    assert all(is_setting(name, config) for one in findings for name in one.settings)


@pytest.mark.slow
@pytest.mark.parametrize("name", HEALTHY)
def test_nothing_stands_out_in_a_run_that_learns(name, lab):
    run = HEALTHY[name](lab)
    print(f"| {name} | {', '.join(causes_in(run)) or 'nothing'} |")
    assert causes_in(run) == []


def is_section(page: str) -> bool:
    """Whether a page of the documentation has the section."""
    name, _, section = page.partition("#")
    headings = re.findall(r"^#+ (.*)$", (DOCS / name).read_text(), re.MULTILINE)
    return section in [re.sub(r"[^\w\- ]", "", one.lower()).replace(" ", "-") for one in headings]


def is_setting(name: str, config: Config) -> bool:
    """Whether a run of this configuration may have the section or the field."""
    parts = tuple(name.split("."))
    kind = "games" if config.program is None else config.program.type
    named = [one for one in config_fields() if one.written == parts]
    if parts[0] == "program":
        named = [one for one in named if one.path[1] == kind]
    tops = [one.info for one in config_fields() if one.path == parts[:1]]
    facts = [fact for info in [*tops, *(one.info for one in named)] for fact in info.metadata]
    refused = [fact for fact in facts if fact in (FOR_GAMES, FOR_PROGRAMS) and not fact.holds(config.program)]
    return bool(named) and not refused


def test_the_command_prints_what_stands_out_and_ends_with_status_3(wrong, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["doctor", str(wrong)]) == 3
    printed = capsys.readouterr().out
    assert printed.startswith("wrong-answers, after update 4 of 4: 1 thing stands out\n")
    assert "critical: every advantage is 0, so the rewards teach nothing: nearly all earn" in printed
    assert "seen: in 2 of 2 updates, 3 to 4" in printed
    assert max(map(len, printed.splitlines())) <= 80


def test_the_json_of_a_run_has_every_finding_with_its_figure_page_and_settings(wrong, capsys):
    assert main(["doctor", str(wrong), "--json"]) == 3
    found = json.loads(capsys.readouterr().out)
    (run,) = found["runs"]
    (finding,) = run.pop("findings")
    assert (found["format"], found["healthy"]) == (1, False)
    assert run == {"run": "wrong-answers", "updates": 4, "total": 4, "running": False}
    assert set(finding) == {
        *("cause", "severity", "text", "figure", "updates", "settings", "advice", "page"),
    }
    assert (finding["cause"], finding["figure"], finding["updates"]) == ("no advantage", 1.0, [3, 4])
    assert is_section(finding["page"])
    assert finding["settings"] == ["program.path", "program.options", "credit.type"]


def test_damaged_files_are_named_and_the_rest_is_diagnosed(wrong, tmp_path):
    run = shutil.copytree(wrong, tmp_path / "run")
    (run / "config.toml").write_text("[")
    rollouts = run / "rollouts" / "step-000003.jsonl"
    rollouts.write_bytes(rollouts.read_bytes()[:-100])
    evaluation = run / "evaluation" / "step-000004-right-answers.json"
    evaluation.parent.mkdir(exist_ok=True)
    evaluation.write_text("{}")
    with (run / "metrics.jsonl").open("a") as file:
        file.write("half a line\n")
    damaged = next(one for one in found_in(run) if one.cause == "damaged files")
    for name in (
        "config.toml",
        "rollouts/step-000003.jsonl (1 line)",
        evaluation.name,
        "metrics.jsonl (1 line)",
    ):
        assert name in damaged.text
    assert "no advantage" in causes_in(run)


FULL = tomllib.loads(dump_config(load_config("kuhn", {})))
OTHERS: tuple[object, ...] = (7, "7", [7], {"7": 7}, [{"id": 7, "options": {"since": date(2026, 1, 1)}}])
FOREIGN = {
    "no TOML": b"[",
    "no text": b"\xff\xfe\x00",
    "too large": b"#" * 1_000_000,
    "of another program": b'[package]\nname = "kuhn"\n',
    "half of one": b"seed = 1\n",
    **{
        f"{name} is {other}": tomli_w.dumps(FULL | {name: other}).encode()
        for name in ("seed", "envs", "model", "learning", "evaluation", "program", "finetune")
        for other in OTHERS
        if (name, other) != ("seed", 7)
    },
}


@pytest.mark.parametrize("of_jobs", [False, True])
def test_a_damaged_or_foreign_configuration_is_named_with_what_is_wrong_with_it(of_jobs, tmp_path, capsys):
    tuned(tmp_path) if of_jobs else run_of(tmp_path, [{INVALID: 1.0}] * 10)
    for kind, content in FOREIGN.items():
        (tmp_path / "config.toml").write_bytes(content)
        found = {one.cause: one.text for one in found_in(tmp_path)}
        assert re.search(r"left out here: config\.toml \(.+\)$", found["damaged files"]), kind
        assert of_jobs or "invalid moves/kuhn_poker" in found, kind
    assert main(["doctor", str(tmp_path)]) == 3
    assert "config.toml (" in capsys.readouterr().out


def test_a_run_without_an_update_has_nothing_to_say(tmp_path, capsys):
    (tmp_path / "config.toml").write_text(dump_config(load_config("kuhn", {})))
    assert main(["doctor", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"{tmp_path.name}: no update yet, so there is nothing to say\n"


GAMES = '[[envs]]\nid = "kuhn_poker"\n'


def run_of(place: Path, lines: list[dict[str, float]], config: str = GAMES) -> Path:
    """Write a run with these metrics, an update each."""
    (place / "config.toml").write_text(config)
    metrics = "".join(json.dumps({"step": n, **line}) + "\n" for n, line in enumerate(lines, start=1))
    (place / "metrics.jsonl").write_text(metrics)
    return place


SIDES = ("player_0", "player_1")
FAULTY = {
    **{f"answers/entropy_estimate/{role}": 1.0 for role in SIDES},
    **{f"answers/cut_share/{role}": 1.0 for role in SIDES},
    **{f"answers/zero_advantage_share/{role}": 1.0 for role in SIDES},
    **{f"learner/{name}": 1.0 for name in ("mismatch", "stale_mismatch", "clip_fraction")},
    "learner/correction_masked": 1.0,
    "learner/grad_norm": 0.0,
    "accounts/failed": 9.0,
    "accounts/started": 9.0,
}
"""What stands out whatever is played."""
OF_PROGRAM = {
    f"{REWARD_OF}player_0": 0.0,
    "program/group_size": 2.0,
    "program/equal_group_share": 1.0,
    "program/rewarded_without_step/player_1": 1.0,
}
OF_GAMES = {"collection-kuhn_poker/Invalid Move Rate": 1.0, "collection-kuhn_poker/Draw Rate": 1.0}
KINDS = {
    "games": {},
    "debate": {"type": "debate", "topics": ["Cats are better"]},
    "proofs": {"type": "proofs", "claims": {"type": "arithmetic_claims"}},
    "proposer_solver": {"type": "proposer_solver"},
    "python": {"type": "python", "path": "program.py:Asking"},
    "questions": {"type": "questions", "questions": "arithmetic"},
    "verifiers": {"type": "verifiers", "taskset": "kuhn-poker"},
}


def config_of(program: dict[str, object], **sections: object) -> Config:
    return validated({"program": program, **sections} if program else {"envs": [{"id": "kuhn_poker"}]})


@pytest.mark.parametrize("kind", KINDS)
def test_every_setting_that_a_finding_names_is_one_of_a_run_of_its_kind(kind, tmp_path):
    config = config_of(KINDS[kind])
    line = FAULTY | (OF_GAMES if kind == "games" else OF_PROGRAM)
    ends = [line, line | {f"answers/entropy_estimate/{role}": 0.0 for role in SIDES}]
    run = run_of(tmp_path, [one for one in ends for _ in range(10)], dump_config(config))
    for update in (0, 20):
        write_evaluation(run / "evaluation", update, "right", MeasureResult("right", [1.0, 0.0]))
    findings = found_in(run)
    assert len(findings) > 8
    assert {name for one in findings for name in one.settings if not is_setting(name, config)} == set()
    assert all(one.page == "" or is_section(one.page) for one in findings)


def tuned(place: Path, **faulty: object) -> Path:
    """Write a run through fine-tuning jobs of two iterations, in which nothing stands out."""
    files = RunFiles(run_of(place, [], dump_config(config_of(KINDS["proofs"], finetune={}))))
    healthy = {
        "state": State(2, "done"),
        "jobs": [JobState(one, "verifier", f"job-{one}", "succeeded", f"model-{one}") for one in (0, 1)],
        "metrics": {
            "verifier.retry_proportion": 0.1,
            "verifier.token_limit_proportion": 0.1,
            "verifier.std_episode_reward": 0.5,
            **{f"decisions/train/{truth}/{one}": 20.0 for truth in ("right", "wrong") for one in VERDICTS},
        },
        "accuracy": ([1.0, 0.0] * 20, [1.0, 1.0] * 20),
        "no decision": ([0.0] * 40, [0.0] * 40),
    }
    made = healthy | faulty
    write_json(files.state, made["state"])
    write_json(files.job_states, made["jobs"])
    lines = [{**healthy["metrics"], **made["metrics"], "step": one, "iteration": one} for one in (0, 1)]
    files.metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))
    for measure in ("accuracy", "no decision"):
        for iteration, values in enumerate(made[measure]):
            write_evaluation(files.evaluation, iteration, measure, MeasureResult(measure, values))
    return place


VERDICTS = ("accept", "reject")
FEW = [JobState(one, "verifier", INSUFFICIENT_DATA_JOB, "") for one in (0, 1)]
BROKEN = [JobState(1, "verifier", "job", "failed", None, "no room")]


def at(stage: Stage, job: str, iteration: int = 1) -> State:
    return State(iteration, stage, {"verifier": GroupState(job)})


OF_JOBS = {
    "nothing to imitate/verifier": {"jobs": FEW},
    "job failed/verifier": {"jobs": BROKEN, "state": at("await_fine_tune_jobs", "job")},
    "no verdict": {"no decision": ([0.0] * 40, [1.0] * 40)},
    "one verdict": {"metrics": {f"decisions/train/{truth}/reject": 0.0 for truth in ("right", "wrong")}},
    "became worse/accuracy": {"accuracy": ([1.0] * 40, [0.0] * 40)},
    "invalid answers/verifier": {"metrics": {"verifier.retry_proportion": 3.0}},
    "cut/verifier": {"metrics": {"verifier.token_limit_proportion": 0.9}},
    "alike/verifier": {"metrics": {"verifier.std_episode_reward": 0.0}},
}


@pytest.mark.parametrize("cause", OF_JOBS)
def test_a_fault_of_a_run_of_fine_tuning_jobs_is_found(cause, tmp_path):
    (found,) = found_in(tuned(tmp_path, **OF_JOBS[cause]))
    assert found.cause == cause
    config = load_config(str(tmp_path / "config.toml"), {})
    assert all(is_setting(name, config) for name in found.settings)
    assert is_section(found.page)


@pytest.mark.parametrize(
    "state",
    [
        at("recreate_fine_tune_jobs", "job"),
        at("await_fine_tune_jobs", "made again"),
        at("sample_rollouts", "job", 2),
        at("done", "job", 2),
    ],
)
def test_a_failed_job_is_no_fault_of_a_run_that_has_gone_on(state, tmp_path):
    assert found_in(tuned(tmp_path, jobs=BROKEN, state=state)) == []


@pytest.mark.parametrize("name", ["state.json", "job_states.json", "metrics.jsonl"])
def test_a_damaged_file_of_a_run_of_fine_tuning_jobs_is_named(name, tmp_path):
    (tuned(tmp_path) / name).write_bytes(b"\xff[{\n")
    (found,) = found_in(tmp_path)
    assert found.cause == "damaged files"
    assert name in found.text
    assert found.advice == "restore them from a copy"


def test_nothing_stands_out_in_a_healthy_run_of_fine_tuning_jobs(tmp_path, capsys):
    assert main(["doctor", str(tuned(tmp_path))]) == 0
    assert "after iteration 2" in capsys.readouterr().out


def test_games_of_libraries_are_not_advised_to_use_examples_that_no_template_has(tmp_path):
    line = {"answers/cut_share/player_0": 1.0}
    for game, advised in (("kuhn_poker", True), ("pettingzoo:chess_v6", False)):
        lines = [{**line, f"collection-{game}/Invalid Move Rate": 1.0}] * 10
        for found in found_in(run_of(tmp_path, lines)):
            assert ("few-shot" in found.advice or "fewshot" in found.advice) is advised


def test_what_is_measured_over_several_updates_is_not_said_to_be_seen_in_each(tmp_path):
    found = found_in(run_of(tmp_path, [{"learner/mismatch": 0.1}] * 20))
    assert [one.where() for one in found] == ["over updates 11 to 20"]


INVALID = "collection-kuhn_poker/Invalid Move Rate"


@pytest.mark.parametrize(
    ("updates", "share", "found"), [(3, 0.6, False), (9, 0.6, False), (10, 0.6, True), (3, 1.0, True)]
)
def test_invalid_moves_of_a_short_run_stand_out_only_in_nearly_all_games(updates, share, found, tmp_path):
    causes = causes_in(run_of(tmp_path, [{INVALID: share}] * updates))
    assert causes == ["invalid moves/kuhn_poker"] * found


@pytest.mark.parametrize(("updates", "found"), [(3, False), (4, True)])
def test_a_role_without_an_advantage_in_one_update_does_not_stand_out(updates, found, tmp_path):
    role = "answers/zero_advantage_share/player_1"
    lines = [{role: 0.5}, {role: 0.5}, {role: 1.0}, {role: 1.0}][:updates]
    assert causes_in(run_of(tmp_path, lines)) == ["no advantage/player_1"] * found


@pytest.mark.parametrize(
    ("measured", "severity"), [({}, "warning"), ({f"{REWARD_OF}Player": 0.0}, "critical")]
)
def test_a_collapse_that_no_measure_judges_is_a_warning(measured, severity, tmp_path):
    entropy = [{"answers/entropy_estimate/Player": nats, **measured} for nats in (1.0, 1.0, 0.01, 0.01)]
    (found,) = found_in(run_of(tmp_path, entropy))
    assert (found.cause, found.severity) == ("entropy/Player", severity)


@pytest.mark.parametrize(
    ("learning", "found"),
    [
        ("average_decay = 0.0\naverage_power = 1\n", True),
        ("average_decay = 0.98\naverage_power = 8\n", True),
        ("average_decay = 0.98\naverage_power = 1\n", False),
        ("", True),
    ],
)
def test_a_circle_stands_out_unless_an_average_outlasts_it(learning, found, tmp_path):
    run = run_of(tmp_path, [{}] * 4, f"{GAMES}[learning]\n{learning}")
    line = {"step": 4, "policies": ["default"], "frozen": ["a", "b"], "cycles": [["default", "a", "b"]]}
    (run / "standings.jsonl").write_text(json.dumps(line | {"pairs": [], "ratings": {}}) + "\n")
    assert causes_in(run) == ["circles"] * found


def test_a_foreign_run_may_count_its_updates_as_it_likes(tmp_path):
    run = run_of(tmp_path, [{"step": step, INVALID: 1.0} for step in (1.5, 2.5, 1e200)])
    assert causes_in(run) == ["invalid moves/kuhn_poker"]


@pytest.mark.parametrize("text", TERMINAL)
def test_names_of_a_foreign_run_do_not_act_on_the_terminal(text, tmp_path, capsys):
    (tmp_path / "config.toml").write_text("seed = 1\n")
    line = {"step": 1, f"answers/cut_share/{text}": 1.0}
    (tmp_path / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    assert main(["doctor", str(tmp_path)]) == 3
    assert not ACTS_ON_A_TERMINAL.search(capsys.readouterr().out)


def test_each_run_of_a_psro_is_diagnosed(wrong, tmp_path):
    for name in ("member-001", "member-002"):
        shutil.copytree(wrong, tmp_path / name)
    for content, damaged in ((GAMES, []), ("[", [tmp_path.name])):
        (tmp_path / PSRO_FILE).write_text(content)
        found = diagnose(str(tmp_path))
        assert [one.run.name for one in found] == [*damaged, "member-001", "member-002"]
        assert all(one.findings for one in found)
    assert f"{PSRO_FILE} (is not valid TOML" in found[0].findings[0].text


def test_numbers_of_a_foreign_run_are_no_trouble(wrong, tmp_path):
    run = shutil.copytree(wrong, tmp_path / "run")
    zero = re.compile(r'("(?:right/Player|Player|program/reward/Player)"): ?0.0')
    for path in (run / "metrics.jsonl", *(run / "rollouts").iterdir()):
        path.write_text(zero.sub(r"\1:1e299", path.read_text()))
    assert "1e299" in path.read_text()
    assert "no advantage" in causes_in(run)


def test_the_screen_and_the_report_show_what_the_doctor_finds(wrong):
    shown = [one.text for one in findings_of(read_to_end(RunDirectorySource(wrong)))]
    assert shown == [one.text for one in found_in(wrong)]
    assert shown[0].replace("&", "&amp;") in (wrong / "report.html").read_text()


def test_an_update_of_a_program_says_how_many_rewards_were_compared(wrong):
    assert [line["program/group_size"] for line in metrics_of(wrong)] == [8.0] * 4
