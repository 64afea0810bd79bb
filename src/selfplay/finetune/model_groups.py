"""PureTextSharedModelGroup: agents that share a model, and the jobs that make it better."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from selfplay.config.finetune import METHODS
from selfplay.core import InputError
from selfplay.finetune.job_records import JobRecords
from selfplay.finetune.providers.job import FineTuneJobError, Job, JobMethod, JobProvider, JobRequest
from selfplay.finetune.state import FROZEN_JOB, INSUFFICIENT_DATA_JOB, GroupState

Example = dict[str, Any]
"""A line of a provider's file: ``messages``, or ``input`` with a preferred and a non-preferred output."""


@dataclass
class PureTextSharedModelGroup:
    """The model of one or more agents.

    A job starts from the base model (``fine_tune_from_scratch``) or from the last one. A group that is frozen
    has no jobs. With fewer examples than the provider accepts, the group keeps its model; its state says so.

    Args:
        group_name: names the group, in the state and in its jobs.
        agent_names: the agents that share the model.
        base_model_name: the model before any job.
        provider: where jobs are made.
        records: what is known of jobs.
        freeze_agent: whether the model is never trained.
        fine_tune_from_scratch: whether each job starts from the base model.
        dpo_beta: DPO's ``beta``; ``None`` leaves it to the provider.
        hyperparameters: further hyperparameters of jobs, by OpenAI's names; those of one method alone are
            in a mapping under its name.
        seed: seed of jobs.

    Raises:
        InputError: the name of the group cannot name files and jobs.
    """

    group_name: str
    agent_names: tuple[str, ...]
    base_model_name: str
    provider: JobProvider
    records: JobRecords
    freeze_agent: bool = False
    fine_tune_from_scratch: bool = True
    dpo_beta: float | None = None
    hyperparameters: Mapping[str, Any] = field(default_factory=dict)
    seed: int | None = None
    state: GroupState = field(default_factory=GroupState)

    def __post_init__(self) -> None:
        if not re.fullmatch(r"\w[\w.-]{,63}", self.group_name, re.ASCII):
            raise InputError(
                "shared_model_group",
                f"{self.group_name!r} cannot name the jobs of its agents",
                "Use at most 64 letters, digits, '.', '_' and '-'",
            )

    @property
    def model_name(self) -> str:
        """The model that the agents use now."""
        return self.state.fine_tuned_model_name or self.base_model_name

    async def create_supervised_fine_tune_job(self, examples: list[Example], job_name: str) -> None:
        """Make a job that imitates the assistant's messages of these conversations."""
        await self._create("supervised", examples, job_name, {})

    async def create_dpo_fine_tune_job(self, examples: list[Example], job_name: str) -> None:
        """Make a job that prefers the first of two answers to the same conversation."""
        await self._create(
            "dpo", examples, job_name, {} if self.dpo_beta is None else {"beta": self.dpo_beta}
        )

    async def _create(
        self, method: JobMethod, examples: list[Example], job_name: str, more: Mapping[str, Any]
    ) -> None:
        if self.freeze_agent:
            self.state.fine_tune_job_id = FROZEN_JOB
            return
        if len(examples) < self.provider.least_examples:
            self.state.fine_tune_job_id = INSUFFICIENT_DATA_JOB
            return
        start = self.base_model_name if self.fine_tune_from_scratch else self.model_name
        request = JobRequest(job_name, start, method, {**self._hyperparameters(method), **more}, self.seed)
        self.state.fine_tune_job_id = (await self.records.submit(self.provider, request, examples)).id

    def _hyperparameters(self, method: JobMethod) -> dict[str, Any]:
        common = {name: value for name, value in self.hyperparameters.items() if name not in METHODS}
        return {**common, **self.hyperparameters.get(method, {})}

    @property
    def has_job(self) -> bool:
        """Whether the provider works on a job of this group, or did."""
        return self.state.fine_tune_job_id not in (None, FROZEN_JOB, INSUFFICIENT_DATA_JOB)

    async def get_fine_tune_job_status(self) -> Job:
        """Return the job of this group; a group that keeps its model has one that succeeded with it."""
        job_id = self.state.fine_tune_job_id
        if job_id is None or not self.has_job:
            return Job(job_id or "", "succeeded", self.model_name)
        return await self.provider.status(job_id)

    async def fine_tune_job_failed(self) -> bool:
        """Return whether the job ended without a model."""
        return (await self.get_fine_tune_job_status()).status in ("failed", "cancelled", "not_found")

    def switch_to_next_model(self, job: Job) -> None:
        """Use the model of a job that succeeded.

        Raises:
            FineTuneJobError: the job has not succeeded.
        """
        if job.status != "succeeded" or job.model is None:
            raise self.failure(job)
        if self.has_job:
            self.state.fine_tuned_model_name = job.model

    def failure(self, job: Job) -> FineTuneJobError:
        """Return the error of a job that ended without a model."""
        ended = {"not_found": "is unknown to the provider", "cancelled": "was cancelled"}
        how = ended.get(job.status, f"failed: {job.error or 'the provider gives no reason'}")
        return FineTuneJobError(f"the fine-tuning job {job.id} of {self.group_name} {how}")
