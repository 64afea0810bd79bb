"""The command: runs with agents behind a server on loopback, base runs, and Weights & Biases offline."""

import asyncio
import json
import os
import subprocess
import sys

import pytest
from rich.console import Console

from replying_server import completion, http, serving
from selfplay.cli.main import main
from selfplay.commands.finetune import build_scenario, build_trainer
from selfplay.config import load_config
from selfplay.core import MockInferenceClient
from wandb_files import records_of

SMALL = {
    "finetune.provider.type": "dry_run",
    "finetune.rl.rollouts_per_iteration": "2",
    "finetune.rl.num_iterations": "2",
    "program.claims.count": "40",
}


@pytest.fixture
def runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("WANDB_DATA_DIR", "WANDB_CACHE_DIR", "WANDB_CONFIG_DIR"):
        monkeypatch.setenv(name, str(tmp_path / "wandb-files"))
    return tmp_path / "runs"


async def finetune(name, **fields):
    """Run the command against a server that accepts every claim; return its status."""
    async with serving(http(completion("Decision: accept"))) as server:
        fields = SMALL | fields | {"finetune.provider.base_url": f"http://127.0.0.1:{server.port}/v1"}
        words = [word for field, value in fields.items() for word in (f"--{field}", value)]
        return await asyncio.to_thread(main, ["finetune", "nip", "--name", name, *words])


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


def test_weights_and_biases_without_a_key_is_one_line_and_leaves_nothing(runs):
    """In a process of its own, because the package reads its settings once."""
    pytest.importorskip("wandb")
    environment = {name: value for name, value in os.environ.items() if name != "WANDB_API_KEY"}
    environment |= {"WANDB_MODE": "online", "WANDB_BASE_URL": "http://127.0.0.1:9", "NETRC": str(runs)}
    command = [sys.executable, "-c", "from selfplay.cli.main import run; run()", "finetune", "nip"]
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
        "import sys, selfplay.finetune; print(*(n for n in ('torch', 'ray', 'wandb') if n in sys.modules))"
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


@pytest.mark.parametrize("trainer", ["pure_text_ei", "pure_text_malt"])
def test_model_calls_are_limited_in_number_at_a_time(tmp_path, trainer):
    fields = SMALL | {
        "finetune.trainer": trainer,
        "finetune.rl.rollouts_per_iteration": "12",
        "finetune.provider.concurrency": "5",
    }
    client = MockInferenceClient(["Decision: accept"])
    experiment = build_trainer(load_config("debate-proof", fields), tmp_path, Console(quiet=True))
    experiment.train_environment.arena.client = client
    experiment.train()
    assert client.max_in_flight == 5
