"""HyperParameters: everything that decides the results of a stage trainer, under nip's names.

The rules of a protocol (``protocol_common``, ``nip_protocol``, ...) belong to the program that is played;
see ``selfplay.programs.proofs``.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field

from selfplay.config.base import Settings
from selfplay.config.finetune import (
    Agents,
    BaseRunParameters,
    PureTextEiParameters,
    PureTextMaltParameters,
    RlParameters,
    TextRlParameters,
    TrainerName,
)
from selfplay.core import InputError


class HyperParameters(Settings):
    """Everything that decides results."""

    trainer: TrainerName = "pure_text_ei"
    """The algorithm."""
    interaction_protocol: str = "nip"
    """Who questions whom."""
    seed: int = 6198
    """Root of all seeds."""
    agents: Agents = Field(default={})
    """Parameters by agent; ``_default`` holds for agents without any, and for what the others do not give."""
    program: dict[str, Any] = Field(default_factory=dict)
    """The settings of the program that is played: the protocol's parameters, and the claims."""
    roles: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """How the roles of the program sample, where it differs from the program: `[roles.NAME]`."""
    provider: dict[str, Any] = Field(default_factory=dict)
    """What of the provider decides results: its type and the least number of examples of a job."""
    rl: RlParameters = RlParameters()
    """How much is sampled."""
    text_rl: TextRlParameters = TextRlParameters()
    """What all trainers share."""
    pure_text_ei: PureTextEiParameters = PureTextEiParameters()
    """Which rollouts expert iteration imitates."""
    pure_text_malt: PureTextMaltParameters = PureTextMaltParameters()
    """How MALT makes trees of responses, and pairs of them."""
    base_run: BaseRunParameters = BaseRunParameters()
    """What is taken from an earlier run."""


@dataclass(frozen=True)
class ExperimentSettings:
    """What must not change results.

    Args:
        run_dir: the run's directory; only a test run needs none.
        run_id: names the run, also in its jobs; the directory's name by default.
        num_rollout_workers: maximum number of rollouts in flight, and of an analyser's questions. The calls
            that rollouts make are limited by the arena; see :meth:`selfplay.core.Arena.set_concurrency`.
        do_not_load_checkpoint: start from the beginning although there is a saved state.
        test_run: go through all stages and write nothing.
        force_more_iterations: continue a run that is done if it has more iterations now.
        accept_changes: resume although parameters that change results have changed.
        poll_seconds: time between two questions about a job.
        job_timeout: seconds to wait for a job; after that the run stops, and can be resumed.
        recreate_failed_jobs: how often a job that failed is made again.
        wandb_run: a W&B run that gets the statistics and, as artifacts, the state, rollouts and transcripts.

    Raises:
        InputError: there is no directory, and it is not a test run; or a test run has a W&B run.
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
