"""Whole runs of programs with a tiny model."""

import io

from rich.console import Console
from safetensors.torch import load_file

from program_files import write_program
from sparring.collection.rollout_log import RolloutLog
from sparring.config import load_config
from sparring.run.single_process import train

SMALL = {
    "model.dtype": "float32",
    "model.threads": "1",
    "lora.rank": "2",
    "inference.max_tokens": "4",
    "learning.steps": "4",
    "learning.algorithm.regulariser": "none",
    "evaluation.every": "2",
    "run.save_every": "2",
    "run.keep_checkpoints": "5",
}


PROOFS = {
    "program.claims.count": "20",
    "program.batch_size": "4",
    "program.proofs_per_claim": "2",
    "program.max_tokens_per_message": "6",
    "program.max_message_rounds": "2",
    "program.force_guess": "one",
    "program.evaluation_claims": "2",
    "credit.type": "rae",
    "learning.steps": "2",
    "learning.learning_rate": "0.01",
    "learning.algorithm.regulariser": "uniform",
}
"""Settings with which a tiny model earns different rewards: its claims are accepted, whatever it says."""


def configure(model, directory, kind="HideAndSeek", **changes):
    file = directory / "program.toml"
    file.write_text(f'[program]\ntype = "python"\npath = "{write_program(directory)}:{kind}"\n')
    overrides = SMALL | {"model.name": str(model)}
    return load_config(str(file), overrides | {k.replace("__", "."): v for k, v in changes.items()})


def run(config, path):
    text = io.StringIO()
    train(config, path, Console(file=text, width=100))
    return text.getvalue()


def adapter(path, step, policy):
    return load_file(path / "checkpoints" / f"step-{step:06d}" / policy / "adapter_model.safetensors")


OPPONENTS = {
    "population__sample_mode": "random",
    "population__add_every": "1",
    "population__max_active_lora": "2",
    "tracking__games_logged": "100",
    "run__save_every": "1",
}


def logged(path):
    log = RolloutLog(path / "rollouts")
    return [rollout for _, rollout in log]


def uids_of(path):
    """Who sat where, by episode; sub-episodes have the seats of their parents."""
    return {one.id: one.meta["uids"] for one in logged(path) if "uids" in one.meta}


def steps_of(path, role):
    rollouts = [rollout for _, rollout in RolloutLog(path / "rollouts")]
    return [step for rollout in rollouts for step in rollout.steps if step.role_id == role]
