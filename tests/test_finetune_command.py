"""The command: runs with agents behind a server on loopback, base runs, and Weights & Biases offline."""

import asyncio
import json
import os
import shutil
import subprocess
import sys
from itertools import cycle

import pytest

from damaged_files import kinds
from finetune_commands import SMALL, finetune, finetune_at, words_of
from finetune_runs import files_of
from matrices import first_of
from replying_server import completion, http, serving
from sparring.cli.main import main
from sparring.config import load_config
from sparring.core import MockInferenceClient
from sparring.run.stage_trainers import build_scenario, build_trainer
from wandb_files import records_of


@pytest.fixture
def runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("WANDB_DATA_DIR", "WANDB_CACHE_DIR", "WANDB_CONFIG_DIR"):
        monkeypatch.setenv(name, str(tmp_path / "wandb-files"))
    return tmp_path / "runs"


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert asyncio.run(finetune("one")) == 0
    return folder / "runs" / "one"


@pytest.fixture
def one(runs, finished):
    """A finished run in the test's own directory, which is the current one."""
    return shutil.copytree(finished, runs / "one")


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


async def test_the_tests_of_a_run_are_played_again_by_the_command(runs):
    assert await finetune("first", seed="3") == 0
    again = {"finetune.base_run.base_run_type": "rerun_tests", "finetune.base_run.run_id": "first"}
    assert await finetune("again", **again) == 0
    first, second = (lines_of(runs / name / "metrics.jsonl") for name in ("first", "again"))
    assert [one["iteration"] for one in second] == [0, 1]
    for one, other in zip(first, second, strict=True):
        tested = {name: value for name, value in one.items() if "test_" in name}
        assert tested["test_mean_1_accuracy"] == 1
        assert tested.items() <= other.items()
        assert "mean_accuracy" in one.keys() - other.keys()
    assert "seed = 3" in (runs / "again" / "config.toml").read_text()
    (runs / "first").rename(runs / "elsewhere")
    assert await asyncio.to_thread(main, ["finetune", "--resume", "again"]) == 0


@pytest.mark.parametrize(
    "test_temperatures",
    [
        {"finetune.agents.verifier.test_temperature": "0"},
        {"roles.verifier.test_temperature": "0"},
        {"finetune.agents.verifier.test_temperature": "0", "roles.verifier.test_temperature": "0.5"},
    ],
    ids=["agent", "role", "both"],
)
async def test_an_agent_is_tested_at_a_temperature_of_its_own(runs, test_temperatures):
    agent = test_temperatures | {
        "program.protocol": "solo_verifier",
        "finetune.agents.verifier.temperature": "0.7",
        "finetune.rl.num_iterations": "1",
        "finetune.text_rl.test_on_whole_dataset": "true",
    }
    async with serving(http(completion("Decision: accept"))) as server:
        assert await finetune_at(server, "cold", **agent) == 0
        asked = sorted(body["temperature"] for body in server.bodies)
    assert asked == [0.0] * 8 + [0.7] * 2


async def test_statistics_state_rollouts_and_transcripts_reach_weights_and_biases_offline(runs, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    assert await finetune("proofs", **{"tracking.wandb_project": "proofs"}) == 0
    records = records_of(runs / "proofs")
    artifacts = [record.artifact for record in records if record.HasField("artifact")]
    files = {}
    for one in artifacts:
        assert one.incremental_beta1
        files.setdefault((one.name, one.type), set()).update(entry.path for entry in one.manifest.contents)
    assert files == {
        ("state_proofs", "state"): {"state.json", "hyper_params.json"},
        ("full_rollouts_proofs", "full_rollouts"): {
            f"{split}-00000{number}.jsonl" for split in ("step", "test") for number in (0, 1)
        },
        **{
            (f"{kind}_proofs", kind): {
                f"{base}_{split}{number}.yaml" for split in ("", "test_") for number in (0, 1)
            }
            for kind, base in [
                ("raw_transcript", "raw"),
                ("processed_transcript", "processed"),
                ("prompts", "prompts"),
            ]
        },
    }
    items = [item for one in records if one.HasField("history") for item in one.history.item]
    logged = {item.key or item.nested_key[0] for item in items}
    assert {"mean_accuracy", "test_mean_accuracy"} <= logged


async def test_a_run_is_continued_only_by_its_own_command(one, runs, capsys):
    before = files_of(runs)
    assert await finetune("one") == 2
    said = capsys.readouterr().err
    assert said.endswith("or continue it: sparring finetune --resume runs/one\n")
    assert await asyncio.to_thread(main, ["train", "--resume", "one"]) == 2
    said = capsys.readouterr().err
    assert said.endswith("is a run of sparring finetune. Use: sparring finetune --resume runs/one\n")
    assert files_of(runs) == before


@pytest.mark.slow  # test_run_store has such a kill of training by default
@pytest.mark.parametrize("place", first_of(["RunDirectory.write_config", "RunDirectory.lock", "Epoch.begin"]))
async def test_a_run_killed_before_it_has_a_configuration_frees_its_name(runs, place):
    name, method = place.split(".")
    killed = (
        "import os, sparring.run.run_directory as module; from sparring.cli.main import run\n"
        f"module.{name}.{method} = lambda *_: os.kill(os.getpid(), 9)\nrun()"
    )
    fields = words_of(SMALL)
    command = [sys.executable, "-c", killed, "finetune", "nip", "--name", "one", *fields]
    ended = await asyncio.to_thread(subprocess.run, command, stdin=subprocess.DEVNULL)
    assert ended.returncode == -9
    assert (runs / "one").is_dir()
    assert await finetune("one", seed="3") == 0
    assert "seed = 3" in (runs / "one" / "config.toml").read_text()
    assert [path.name for path in runs.iterdir()] == ["one"]


async def test_a_directory_that_a_run_did_not_leave_keeps_its_name(runs, capsys):
    for name in ("rollouts/step-000000.jsonl", ".lock", "notes"):
        path = runs / "one" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        assert await finetune("one") == 2
        assert "one exists already" in capsys.readouterr().err


async def test_a_lost_configuration_does_not_cost_the_answers_that_were_paid_for(runs, capsys):
    answers = runs / "one" / "answers" / "step-000000.jsonl"
    answers.parent.mkdir(parents=True)
    answers.touch()
    (runs / "one" / ".lock").touch()
    assert await finetune("one") == 2
    assert "one exists already" in capsys.readouterr().err
    assert answers.exists()


async def test_a_run_builds_its_protocol_once(runs, tmp_path):
    own = "from sparring.programs.proofs.protocols import nip\n\ndef counted(given):\n"
    own += "    with open('built', 'a') as file:\n        file.write('once ')\n    return nip(given)\n"
    (tmp_path / "own.py").write_text(own)
    assert await finetune("one", **{"program.protocol": "own.py:counted"}) == 0
    assert (tmp_path / "built").read_text() == "once "


@pytest.mark.slow  # test_collection_sinks has an error without the package
def test_weights_and_biases_without_a_key_is_one_line_and_leaves_nothing(runs):
    """In a process of its own, because the package reads its settings once."""
    pytest.importorskip("wandb")
    environment = {name: value for name, value in os.environ.items() if name != "WANDB_API_KEY"}
    environment |= {"WANDB_MODE": "online", "WANDB_BASE_URL": "http://127.0.0.1:9", "NETRC": str(runs)}
    command = [sys.executable, "-c", "from sparring.cli.main import run; run()", "finetune", "nip"]
    ended = subprocess.run(
        [*command, "--name", "proofs", "--tracking.wandb_project", "proofs"],
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 2
    line = ended.stderr.splitlines()[-1]
    assert line.startswith("error: Weights & Biases: cannot be used: No API key configured")
    assert line.endswith("Log in with: wandb login. Or set WANDB_MODE=offline")
    assert not (runs / "proofs").exists()


async def test_a_run_that_does_not_ask_for_weights_and_biases_does_not_use_it(runs, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    assert await finetune("proofs") == 0
    assert not (runs / "proofs" / "wandb").exists()


def test_the_names_of_the_package_load_no_model_library():
    loaded = (
        "import sys, sparring.finetune; print(*(n for n in ('torch', 'ray', 'wandb') if n in sys.modules))"
    )
    printed = subprocess.run([sys.executable, "-c", loaded], check=True, capture_output=True, text=True)
    assert printed.stdout.split() == []


def test_the_seed_of_a_run_decides_its_jobs(tmp_path):
    def seeds(seed):
        groups = build_scenario(load_config("nip", {"seed": seed}), tmp_path).shared_model_groups
        return [group.seed for group in groups.values()]

    assert None not in seeds("3")
    assert seeds("3") == seeds("3") != seeds("4")
    assert len(set(seeds("3"))) == 2


async def test_a_finished_run_goes_on_with_more_iterations_as_if_it_had_had_them(runs, capsys):
    async with serving(http(completion("Decision: accept"))) as server:
        for name, iterations in (("short", "2"), ("long", "3")):
            assert await finetune_at(server, name, **{"finetune.rl.num_iterations": iterations}) == 0
        more = ["finetune", "--resume", "short", "--finetune.rl.num_iterations", "3"]
        assert await asyncio.to_thread(main, more) == 0
        asked = len(server.bodies)
        assert await asyncio.to_thread(main, more) == 0
        assert len(server.bodies) == asked
    assert lines_of(runs / "short" / "metrics.jsonl") == lines_of(runs / "long" / "metrics.jsonl")
    left = [sorted(path.name for path in (runs / name / "rollouts").iterdir()) for name in ("short", "long")]
    assert left[0] == left[1]
    assert len(list((runs / "short" / "jobs").glob("*.jsonl"))) == 4
    assert "num_iterations = 3" in (runs / "short" / "config.toml").read_text()


async def test_tests_that_were_played_again_have_no_more_iterations_than_their_base_run(runs, capsys):
    assert await finetune("first") == 0
    again = {"finetune.base_run.base_run_type": "rerun_tests", "finetune.base_run.run_id": "first"}
    assert await finetune("again", **again) == 0
    capsys.readouterr()
    more = ["finetune", "--resume", "again", "--finetune.rl.num_iterations", "3"]
    assert await asyncio.to_thread(main, more) == 1
    assert "there is no " in capsys.readouterr().err
    assert not list((runs / "again" / "rollouts").glob("*000002*"))


@pytest.mark.parametrize(
    ("fields", "change"),
    [
        ({"finetune.agents.verifier.model_name": "small"}, "agents.verifier.model_name: 'base' -> 'small'"),
        (
            {
                "finetune.agents.prover.hyperparameters.n_epochs": "3",
                "finetune.agents.prover.model_name": "base",
            },
            "agents.prover.hyperparameters.n_epochs: nothing -> 3",
        ),
        ({"roles.verifier.temperature": "0.5"}, "roles.verifier: nothing -> {'temperature': 0.5}"),
        ({"roles.prover.max_tokens": "9"}, "roles.prover: nothing -> {'max_tokens': 9}"),
        ({"finetune.provider.least_examples": "2"}, "provider.least_examples: 10 -> 2"),
        ({"program.max_response_words": "9"}, "program.max_response_words: 20 -> 9"),
    ],
)
async def test_a_resume_lists_what_decides_results_and_stops(one, runs, capsys, fields, change):
    before, words = (
        files_of(runs),
        [word for field, value in fields.items() for word in (f"--{field}", value)],
    )
    capsys.readouterr()
    assert await asyncio.to_thread(main, ["finetune", "--resume", "one", *words]) == 2
    said = capsys.readouterr().err
    assert said.endswith(
        f"one was begun with other parameters: {change}. Restore them, or resume with --accept-changes\n"
    )
    assert {**files_of(runs), "one/.epoch": b""} == {**before, "one/.epoch": b""}
    assert await asyncio.to_thread(main, ["finetune", "--resume", "one", "--accept-changes", *words]) == 0
    assert f"changed since the run began: {change}" in capsys.readouterr().out


@pytest.mark.parametrize(
    "fields",
    [
        {"finetune.agents.verifier.model_name": "base", "finetune.agents.prover.model_name": "base"},
        {"finetune.agents.verifier.model_name": "base", "finetune.agents.verifier.test_temperature": "0.0"},
        {"finetune.provider.poll_seconds": "1.0"},
        {"roles.verifier.policy": "base"},
    ],
)
async def test_what_decides_nothing_that_was_learned_may_change(one, fields):
    words = [word for field, value in fields.items() for word in (f"--{field}", value)]
    assert await asyncio.to_thread(main, ["finetune", "--resume", "one", *words]) == 0


def cut_in_half(content):
    return content[: len(content) // 2]


def of_another_type(content):
    return b"7\n" if content.startswith((b"{", b"[")) else b"{}\n"


def nested_too_deeply(content):
    return (b'{"":' if content.startswith(b"{") else b"[") * 100_000 + b"\n"


COMMANDS = (["finetune", "--resume", "one"], ["report", "one"], ["runs"])


@pytest.mark.parametrize("all_commands", first_of([False, True]))
@pytest.mark.parametrize("damage", first_of([nested_too_deeply, cut_in_half, of_another_type]))
def test_a_damaged_file_of_a_finished_run_is_at_most_one_line(one, capsys, damage, all_commands):
    """By default, each kind of file is met by one of the commands in turn, those of the state by all."""
    commands = cycle(COMMANDS)
    for name, files in kinds(one).items():
        if not name.endswith((".json", ".jsonl")):
            continue
        file, read = files[-1], name in ("state.json", "hyper_params.json")
        content = file.read_bytes()
        file.write_bytes(damage(content))
        for command in COMMANDS if all_commands or read else [next(commands)]:
            capsys.readouterr()
            status = main(command)
            assert capsys.readouterr().err.count("\n") == (status != 0), (file, command)
            assert status == (2 if read and "--resume" in command else 0), (file, command)
        file.write_bytes(content)


async def test_a_run_with_a_damaged_line_of_metrics_is_not_continued_over_it(one, capsys):
    async with serving(http(completion("Decision: accept"))) as server:
        more = {"finetune.rl.num_iterations": "3"}
        more["finetune.provider.base_url"] = f"http://127.0.0.1:{server.port}/v1"
        for line in (b"{", b'{"":' * 100_000):
            damaged = line + b"\n" + (one / "metrics.jsonl").read_bytes()
            (one / "metrics.jsonl").write_bytes(damaged)
            capsys.readouterr()
            assert await asyncio.to_thread(main, ["finetune", "--resume", "one", *words_of(more)]) == 2
            assert "metrics.jsonl line 1: is not a JSON object with a step" in capsys.readouterr().err
            assert (one / "metrics.jsonl").read_bytes() == damaged


@pytest.mark.parametrize("trainer", ["pure_text_ei", "pure_text_malt"])
def test_model_calls_are_limited_in_number_at_a_time(tmp_path, trainer):
    fields = SMALL | {
        "finetune.trainer": trainer,
        "finetune.rl.rollouts_per_iteration": "12",
        "finetune.provider.concurrency": "5",
    }
    client = MockInferenceClient(["Decision: accept"])
    config = load_config("debate-proof", fields)
    experiment = build_trainer(config, build_scenario(config, tmp_path), tmp_path)
    experiment.train_environment.arena.client = client
    experiment.train()
    assert client.max_in_flight == 5
