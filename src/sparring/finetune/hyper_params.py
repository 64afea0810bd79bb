"""What decides the results of a stage trainer, under nip's names, what does not, and what has changed."""

import importlib.metadata
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field

from sparring.config.finetune import DEFAULT_AGENT, AgentParameters, FinetuneSettings
from sparring.core import InputError
from sparring.finetune.run_files import RunFiles, read_json, write_json

DISTRIBUTION = "sparring"
HARMLESS = re.compile(
    r"rl\.num_(iterations|test_)|text_rl\.(test|save|transcript)_"
    r"|(agents|roles)\..+\.test_(temperature|sampling)|provider\.(?!type:|least_examples:)"
)
"""Begins the parameters whose change leaves what was sampled and learned so far as it is."""
OPEN = re.compile(r"(roles|agents\..+\.hyperparameters|program\.claims\.columns\.where)(\.|$)")
"""The tables whose fields users name. Elsewhere, a field that a run lacks is one of a later version."""


class HyperParameters(FinetuneSettings):
    """Everything that decides results: the settings of ``[finetune]``, the program and the seed."""

    interaction_protocol: str = "nip"
    """Who questions whom."""
    seed: int = 6198
    """Root of all seeds."""
    program: dict[str, Any] = Field(default_factory=dict)
    """The settings of the program that is played: the protocol's parameters, and the claims."""
    roles: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """How the roles of the program sample, where it differs from the program: `[roles.NAME]`."""
    model: dict[str, Any] = Field(default_factory=dict)
    """The model that a local provider loads: its name, and the type of its weights."""


@dataclass(frozen=True)
class ExperimentSettings:
    """What must not change results. Raises InputError: it is contradictory.

    Args:
        run_dir: the run's directory; only a test run needs none.
        run_id: names the run, also in its jobs; the directory's name by default.
        num_rollout_workers: maximum number of rollouts in flight, and of an analyser's questions; the arena
            limits their calls.
        do_not_load_checkpoint: start from the beginning although there is a saved state.
        test_run: go through all stages and write nothing.
        force_more_iterations: continue a run that is done if it has more iterations now.
        accept_changes: resume although parameters that change results have changed.
        poll_seconds: time between two questions about a job.
        job_timeout: seconds to wait for a job; after that the run stops, and can be resumed.
        recreate_failed_jobs: how often a job that failed is made again.
        wandb_run: a W&B run that gets the statistics and, as artifacts, the state, rollouts and transcripts.
    """

    run_dir: Path | None = None
    run_id: str | None = None
    num_rollout_workers: int = 16
    do_not_load_checkpoint: bool = False
    test_run: bool = False
    force_more_iterations: bool = False
    accept_changes: bool = False
    poll_seconds: float = 5.0
    job_timeout: float = 24 * 3600.0
    recreate_failed_jobs: int = 0
    wandb_run: Any | None = None

    def __post_init__(self) -> None:
        if self.run_dir is None and not self.test_run:
            raise InputError("run_dir", "is missing", "Give a directory, or test_run=True to keep nothing")
        if self.wandb_run is not None and self.test_run:
            raise InputError("wandb_run", "is given, but a test run keeps nothing", "Leave one of them out")


def check_parameters(
    files: RunFiles, params: HyperParameters, agents: Sequence[str], *, accept: bool
) -> list[str]:
    """Compare the parameters with those of the run, write them down, and return what changed, a line each;
    those of agents as they hold for each. Raises InputError: they change results, and ``accept`` is false."""
    now = params.model_dump()
    before = read_json(files.params, dict[str, Any]) if files.params.exists() else now
    changed = _differences(_by_agent(before, agents), _by_agent(now, agents))
    refused = [one for one in changed if not HARMLESS.match(one)]
    if refused and not accept:
        raise InputError(
            "configuration",
            f"{files.root} was begun with other parameters: {'; '.join(refused)}",
            "Restore them, or resume with --accept-changes",
        )
    if changed or not files.params.exists():
        write_json(files.params, now)
        write_json(files.metadata, metadata())
    return [f"changed since the run began: {one}" for one in changed]


def _by_agent(params: dict[str, Any], agents: Sequence[str]) -> dict[str, Any]:
    """Return parameters with those of every agent in place of those that were given."""
    given = params.get("agents", {})
    default = given.get(DEFAULT_AGENT) or AgentParameters().model_dump()
    return {**params, "agents": {name: given.get(name) or default for name in agents}}


def _differences(before: dict[str, Any], now: dict[str, Any], path: str = "") -> list[str]:
    found = []
    for name in sorted(before.keys() | now.keys() if OPEN.match(path) else before):
        place = f"{path}.{name}" if path else name
        if name not in before:
            found.append(f"{place}: nothing -> {now[name]!r}")
        elif name not in now:
            found.append(f"{place}: {before[name]!r} -> nothing")
        elif isinstance(before[name], dict) and isinstance(now[name], dict):
            found += _differences(before[name], now[name], place)
        elif before[name] != now[name]:
            found.append(f"{place}: {before[name]!r} -> {now[name]!r}")
    return found


def metadata() -> dict[str, str]:
    """Return the package's name and version."""
    try:
        version = importlib.metadata.version(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:  # run from a source tree that is not installed
        version = "unknown"
    return {"package_name": DISTRIBUTION, "package_version": version}
