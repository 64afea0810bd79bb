"""Whole runs in one process, with a tiny model and real games."""

import io
import json
import resource
import shutil
import sys
from pathlib import Path

import pytest
from peft import PeftModel
from rich.console import Console
from transformers import AutoModelForCausalLM

from selfplay.config import load_config
from selfplay.config.settings import Config
from selfplay.core import InputError, SelfplayError
from selfplay.replay import BatchLog
from selfplay.runtime.local import resume, train
from selfplay.runtime.run_directory import RunDirectory
from tiny_models import tiny_model

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))
from kill_resume import accounts_balance, differences, fingerprint

SMALL = {
    "model.dtype": "float32",
    "model.threads": "1",
    "lora.rank": "2",
    "inference.max_tokens": "4",
    "collection.games_per_step": "8",
    "learning.steps": "4",
    "learning.max_batch_tokens": "4096",
    "evaluation.every": "2",
    "evaluation.games": "4",
    "evaluation.games_during": "4",
    "evaluation.opponents": "['random']",
    "run.save_every": "2",
    "run.keep_checkpoints": "5",
}


@pytest.fixture(scope="session")
def model(tmp_path_factory) -> Path:
    """A tiny model whose context is long enough for a few-shot prompt in bytes."""
    directory = tmp_path_factory.mktemp("models") / "tiny"
    shutil.copytree(tiny_model("llama"), directory)
    config = json.loads((directory / "config.json").read_text())
    config["max_position_embeddings"] = 16384
    (directory / "config.json").write_text(json.dumps(config))
    return directory


def configure(model: Path, preset: str = "quickstart", **changes: str) -> Config:
    overrides = SMALL | {"model.name": str(model)} | {k.replace("__", "."): v for k, v in changes.items()}
    return load_config(preset, overrides)


def run(config: Config, path: Path) -> str:
    text = io.StringIO()
    train(config, path, Console(file=text, width=100))
    return text.getvalue()


def metrics_of(path: Path) -> list[dict]:
    return [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]


def test_a_run_leaves_everything_it_promises(model, tmp_path):
    said = run(configure(model), tmp_path / "run")
    assert [line["step"] for line in metrics_of(tmp_path / "run")] == [1, 2, 3, 4]
    assert accounts_balance(tmp_path / "run")
    for name in ("config.toml", "report.html", "rollouts/step-000001.jsonl", "checkpoints/step-000004"):
        assert (tmp_path / "run" / name).exists()
    evaluated = {path.name for path in (tmp_path / "run" / "evaluation").iterdir()}
    assert "step-000000-kuhn_poker-random.json" in evaluated
    assert "step-000004-kuhn_poker-nash-conv.json" in evaluated
    for promised in ("Before", "After", "adapter:", "report:", "next:", "32 started = 32 finished"):
        assert promised in said


def test_the_adapter_loads_in_plain_peft(model, tmp_path):
    run(configure(model, learning__steps="1"), tmp_path / "run")
    base = AutoModelForCausalLM.from_pretrained(model)
    loaded = PeftModel.from_pretrained(base, tmp_path / "run" / "checkpoints" / "step-000001")
    moved = [p.abs().max().item() for name, p in loaded.named_parameters() if "lora_B" in name]
    assert min(moved) > 0


@pytest.mark.parametrize("mode", ["mirror", "lagged"])
def test_a_resumed_run_equals_an_uninterrupted_one(model, tmp_path, mode):
    config = configure(
        model,
        population__sample_mode=mode,
        population__add_every="1",
        learning__steps="12",
        learning__average_decay="0.9",
        evaluation__every="0",
        run__save_every="10",
    )
    run(config, tmp_path / "whole")
    shutil.copytree(tmp_path / "whole", tmp_path / "cut")
    shutil.rmtree(tmp_path / "cut" / "checkpoints" / "step-000012")
    (tmp_path / "cut" / "report.html").unlink()
    resume(tmp_path / "cut", Console(file=io.StringIO()))
    assert metrics_of(tmp_path / "whole")[-1]["accounts/failed"] == 0
    assert differences(fingerprint(tmp_path / "whole"), fingerprint(tmp_path / "cut")) == []


def test_concurrency_does_not_change_the_games(model, tmp_path):
    run(configure(model, collection__concurrency="2"), tmp_path / "two")
    run(configure(model, collection__concurrency="1000"), tmp_path / "many")
    two, many = fingerprint(tmp_path / "two"), fingerprint(tmp_path / "many")
    texts = [
        [
            [step["completion"] for line in lines for step in line["rollout"]["steps"]]
            for lines in part.values()
        ]
        for part in (two["rollouts"], many["rollouts"])
    ]
    assert texts[0] == texts[1]


def test_overlap_never_trains_on_what_is_too_old(model, tmp_path):
    config = configure(
        model,
        collection__max_staleness="1",
        collection__concurrency="6",
        buffer__batch_size="6",
    )
    run(config, tmp_path / "run")
    for number in range(1, 5):
        versions = [line["policy_version"] for line in BatchLog(tmp_path / "run" / "batches").read(number)]
        assert versions
        assert all(number - 2 <= version <= number - 1 for version in versions)
    last = metrics_of(tmp_path / "run")[-1]
    assert last["accounts/started"] >= last["accounts/finished"] + last["accounts/failed"]


@pytest.mark.parametrize(
    ("env_id", "players"), [("GuessTheNumber-v0-train", 1), ("ThreePlayerGOPS-v0-train", 3)]
)
def test_other_numbers_of_players_train_too(model, tmp_path, env_id, players):
    config = configure(
        model,
        envs__0__id=env_id,
        envs__0__num_players=str(players),
        evaluation__nash_conv="false",
        evaluation__opponents="[]",
        learning__steps="2",
    )
    run(config, tmp_path / "run")
    assert metrics_of(tmp_path / "run")[-1]["accounts/finished"] == 16


def test_a_resume_that_fails_deletes_nothing(model, tmp_path):
    run(configure(model, learning__steps="1"), tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    (tmp_path / "run" / "checkpoints").mkdir()
    config = tmp_path / "run" / "config.toml"
    config.write_text(config.read_text().replace(str(model), str(tmp_path / "gone")))
    with pytest.raises(InputError, match="is not a directory"):
        resume(tmp_path / "run", Console(file=io.StringIO()))
    assert (tmp_path / "run" / "metrics.jsonl").exists()


def test_a_run_whose_model_cannot_be_loaded_leaves_its_name_free(tmp_path):
    (tmp_path / "other").mkdir()
    config = configure(tmp_path / "gone")
    for path in (tmp_path / "run", tmp_path / "other"):
        with pytest.raises(InputError, match="is not a directory"):
            run(config, path)
    assert not (tmp_path / "run").exists()
    assert (tmp_path / "other").exists()


def test_a_resume_cuts_off_what_came_later(model, tmp_path):
    run(configure(model), tmp_path / "run")
    RunDirectory.open(tmp_path / "run").truncate_after(2)
    left = sorted(path.name for path in (tmp_path / "run" / "batches").iterdir())
    assert left == ["batch-000001.jsonl.gz", "batch-000002.jsonl.gz"]
    assert not list((tmp_path / "run" / "evaluation").glob("step-000004*"))


def test_a_finished_run_is_not_resumed(model, tmp_path):
    run(configure(model, learning__steps="1"), tmp_path / "run")
    with pytest.raises(InputError, match="is finished"):
        resume(tmp_path / "run", Console(file=io.StringIO()))


def test_a_run_in_use_is_refused(model, tmp_path):
    run(configure(model, learning__steps="1"), tmp_path / "run")
    holder = RunDirectory.open(tmp_path / "run")
    holder.lock()
    with pytest.raises(InputError, match="in use"):
        resume(tmp_path / "run", Console(file=io.StringIO()))
    holder.unlock()


def test_a_damaged_checkpoint_is_named(model, tmp_path):
    run(configure(model), tmp_path / "run")
    (tmp_path / "run" / "report.html").unlink()
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "step-000004")
    weights = tmp_path / "run" / "checkpoints" / "step-000002" / "learner.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(InputError, match=r"step-000002/learner.safetensors is missing or damaged"):
        resume(tmp_path / "run", Console(file=io.StringIO()))


def test_a_context_that_is_too_short_stops_the_run_with_the_reason(model, tmp_path):
    with pytest.raises(SelfplayError, match=r"exceed the context of 100"):
        run(configure(model, inference__max_context="100", evaluation__games="2"), tmp_path / "run")


def test_a_full_disk_is_said_in_one_line_and_the_run_can_go_on(model, tmp_path):
    config = configure(model, learning__steps="2", run__save_every="1")
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limit[1]))
    try:
        with pytest.raises(SelfplayError, match=r"cannot be written .* selfplay train --resume"):
            run(config, tmp_path / "run")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    resume(tmp_path / "run", Console(file=io.StringIO()))
    assert (tmp_path / "run" / "report.html").exists()
