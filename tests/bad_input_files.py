"""The files that the commands of tests/errors.txt are about."""

import fcntl
import json
import os
import shutil
from importlib.resources import files
from pathlib import Path

import torch
from safetensors.torch import save_file

from family_models import family_model
from sparring.core.manifest import seal
from sparring.evaluation.tournament_files import PlayedGame
from tiny_models import tiny_model

TRAINABLE = '[[envs]]\nid = "kuhn_poker"\n[model]\nname = "tiny-model"\n[learning]\nsteps = 2\n'
PROOFS = """
[program]
type = "proofs"
[program.claims]
type = "arithmetic_claims"
[finetune.rl]
num_iterations = 1
"""
ADAPTER = {
    "peft_type": "LORA",
    "r": 4,
    "lora_alpha": 8,
    "target_modules": ["q_proj"],
    "base_model_name_or_path": "tiny-model",
}

COURT = """
from sparring.programs.proofs.protocol import Agent, Channel, Protocol, Turn

number = 3

def numbers(given):
    return 3

def unheard(given):
    room = Channel("room", ("ann",))
    return Protocol("unheard", (Agent("ann", "prover"),), (room,), ((Turn("ann", ("room",)),),), 2)

def broken(given):
    return given.rounds
"""


def make_files(folder: Path) -> None:
    """Write what tests/errors.txt describes as the files of its examples."""
    (folder / "syntax.toml").write_text("[[envs]\n")
    (folder / "empty.toml").write_text("")
    (folder / "typo.toml").write_text('[[env]]\nid = "kuhn_poker"\n')
    (folder / "binary.toml").write_bytes(b"\xff\xfe\x00")
    (folder / "a-file").write_text("")
    (folder / "no-model").mkdir()
    (folder / "tiny-model").symlink_to(tiny_model("llama"))
    (folder / "hybrid-model").symlink_to(family_model("LFM2"))
    shutil.copytree(folder / "tiny-model", folder / "cut-model")
    named = shutil.copytree(folder / "tiny-model", folder / "named-templates")
    (named / "additional_chat_templates").mkdir()
    (named / "chat_template.jinja").rename(named / "additional_chat_templates" / "rag.jinja")
    _cut(folder / "cut-model" / "model.safetensors")
    _make_adapter(folder / "other-adapter")
    _make_adapter(folder / "cut-adapter")
    _cut(folder / "cut-adapter" / "adapter_model.safetensors")
    _make_adapter(folder / "bin-adapter")
    weights = folder / "bin-adapter" / "adapter_model.safetensors"
    weights.rename(weights.with_suffix(".bin"))
    typed = shutil.copytree(folder / "tiny-model", folder / "typed-model")
    config = (typed / "config.json").read_text()
    (typed / "config.json").write_text(config.replace('"use_cache": true', '"use_cache": null'))
    shutil.copytree(folder / "tiny-model", folder / "family-model")
    (folder / "family-model" / "config.json").write_text('{"model_type": "t5"}')
    _make_ladders(folder)
    (folder / "busy-jobs").mkdir()
    _write(
        folder / "mixed" / "mixture.json",
        '{"members": [{"name": "member-001", "adapter": "member-001", "weight": 1}]}',
    )
    _write(folder / "home" / "thesis.txt", "of somebody")
    _make_runs(folder / "runs")
    _write(folder / "short" / "config.toml", TRAINABLE.replace("[model]", "max_turns = 5\n[model]"))
    _finish(folder / "short")
    _write(folder / "four-bit" / "config.toml", TRAINABLE.replace("[model]", '[model]\nquantization = "nf4"'))
    _finish(folder / "four-bit")
    _write(folder / "torn-tournament" / "tournament.json", '{"members": ["random", "optimal"]}')
    game = PlayedGame(0, ["random", "optimal"], [-1.0, 1.0], None)
    (folder / "torn-tournament" / "games.jsonl").write_bytes(game.line())
    _write(folder / "solved" / "psro.toml", TRAINABLE)
    (folder / "solved" / "psro.html").write_text("")
    _make_fine_tuning_runs(folder)
    _make_proofs(folder)
    _make_half_proved(folder / "half-proved")


def _make_ladders(folder: Path) -> None:
    rest = '[base]\nconfig = "kuhn"\n[games.kuhn]\n'
    mistakes = {
        "typo": f'mesure = "NashConv"\n{rest}',
        "bare": "[games.kuhn]\n",
        "field": f"{rest}[recipes.fast]\nlearning.stepps = 3\n",
        "figure": f'measure = "win rate against optimist"\n{rest}',
        "entry": f"{rest}[entries.theirs]\n",
        "wins": f'measure = "win rate against random"\n{rest}[entries.theirs]\npolicies = "{{game}}.jsonl"\n',
    }
    for name, text in mistakes.items():
        (folder / f"ladder-{name}.toml").write_text(f"seeds = [0]\n{text}")


def _make_fine_tuning_runs(folder: Path) -> None:
    for name in ("judged", "unplayed"):
        _write(folder / name / "config.toml", PROOFS)
        (folder / name / "state.json").write_text('{"iteration": 0, "train_loop_stage": "sample_rollouts"}')
        (folder / name / "hyper_params.json").write_text("{}")
    _write(folder / "judged" / "rollouts" / "step-000000.jsonl", "")
    _write(folder / "judged" / "analysis" / "follow_up" / "step-000000.jsonl", "{\n")
    (folder / "judged" / "analysis" / "prover_role_conformance").mkdir()


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True)
    path.write_text(text)


def hold_run(path: Path) -> int:
    """Lock a directory as another process would; returns the open file."""
    lock = os.open(path / ".lock", os.O_CREAT | os.O_RDWR)
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return lock


def _make_proofs(folder: Path) -> None:
    right = json.dumps({"question": "2 + 2?", "claim": "4", "y": 1})
    (folder / "cut.jsonl").write_text(f'{right}\n{{"question": "2 + 3?", "cla')
    (folder / "yes.jsonl").write_text(right.replace("1}", '"yes"}'))
    (folder / "right.jsonl").write_text("\n".join(right.replace("2 +", f"{n} +") for n in range(5)))
    (folder / "nothing.jsonl").write_text("")
    noted = [right.replace("2 +", f"{n} +").replace("1}", f"{n % 2}}}") for n in range(12)]
    (folder / "claims.txt").write_text("\n".join(noted))
    (folder / "noted.toml").write_text(
        '[program]\ntype = "proofs"\nclaims = {type = "file", path = "claims.txt"}\n'
    )
    (folder / "court.py").write_text(COURT)
    (folder / "one.jsonl").write_text('{"question": "2 + 2?", "answer": 4}')
    (folder / "theirs.toml").write_text('[program]\ntype = "verifiers"\ntaskset = "kuhn-poker"\n')
    (folder / "sums.toml").write_text('[program]\ntype = "questions"\nquestions = "arithmetic"\n')


def _make_half_proved(run: Path) -> None:
    """A run of fine-tuning jobs in its second iteration, and what is left of one that lost a state."""
    preset = files("sparring.config").joinpath("presets", "nip.toml").read_text()
    _write(run / "config.toml", preset)
    (run / "state.json").write_text('{"iteration": 1, "train_loop_stage": "await_fine_tune_jobs"}')
    (run / "hyper_params.json").write_text('{"seed": 0, "agents": {"_default": {"model_name": "base"}}}')
    lost = run.with_name("lost-state")
    _write(lost / "config.toml", preset)
    (lost / "state.json").write_text('{"iteration": 5, "train_loop_stage": "done"}')
    proved = shutil.copytree(lost, run.with_name("proved"))
    (proved / "states").mkdir()
    for iteration in range(5):
        (proved / "states" / f"{iteration:06d}.json").write_text("{}")


def _make_runs(runs: Path) -> None:
    for name in ("old", "done", "busy", "torn", "torn-too", "piped", "spread"):
        (runs / name).mkdir(parents=True)
        (runs / name / "config.toml").write_text(TRAINABLE)
    (runs / "notes").mkdir()
    _finish(runs / "spread")
    (runs / "spread" / "config.toml").write_text(TRAINABLE + '[run]\nruntime = "ray"\n')
    _finish(runs / "done")
    (runs / "torn" / "config.toml").write_text(TRAINABLE[:30])
    os.mkfifo(runs / "piped" / "metrics.jsonl")
    _make_adapter(runs / "torn-too" / "checkpoints" / "step-000001")
    _cut(runs / "torn-too" / "checkpoints" / "step-000001" / "adapter_model.safetensors")


def _finish(run: Path) -> None:
    """Give a run its last checkpoint and its report."""
    (run / "checkpoints" / "step-000002").mkdir(parents=True)
    seal(run / "checkpoints" / "step-000002")
    (run / "report.html").write_text("")


def _make_adapter(folder: Path) -> None:
    """An adapter whose only layer is none of the tiny model's."""
    folder.mkdir(parents=True)
    (folder / "adapter_config.json").write_text(json.dumps(ADAPTER))
    layer = "base_model.model.model.layers.9.self_attn.q_proj"
    weights = {f"{layer}.lora_A.weight": torch.zeros(4, 32), f"{layer}.lora_B.weight": torch.zeros(32, 4)}
    save_file(weights, folder / "adapter_model.safetensors")


def _cut(file: Path) -> None:
    os.truncate(file, file.stat().st_size - 4)
