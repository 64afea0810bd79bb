"""TinkerJobs: fine-tuning jobs at a service with Tinker's API, which knows none: this process asks for each
step.

A job is a file, which names the newest saved state, so a killed run goes on from there. Its model's name is
the path of weights for sampling; the state for training has the same path but for its kind, and a later job
may start from it.
"""

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from pydantic import ValidationError

from sparring.core import SparringError
from sparring.core.files import write_file
from sparring.finetune.jobs.schema import TinkerHyperparameters
from sparring.finetune.providers import (
    FineTuneJobError,
    Job,
    JobProvider,
    JobRequest,
    JobStatus,
    body_of,
    check_identity,
    file_name_of,
    suffix_of,
)
from sparring.finetune.run_files import read_json_if_there, write_json
from sparring.finetune.tinker.store import SAMPLER_WEIGHTS, WEIGHTS
from sparring.finetune.tinker_plan import TinkerPlan
from sparring.finetune.tinker_service import CONNECT_SECONDS, PATH, TinkerService
from sparring.learn.fine_tuning.examples import Renderer, WrongLine
from sparring.learn.fine_tuning.settings import checkpoint_name

SAVE_SECONDS = 60.0
"""A kill costs at most the work of this long, and one step."""


class TinkerJob(msgspec.Struct, kw_only=True):
    """A job: what was asked for, and how far it is. ``state`` is the path of the newest saved state, in which
    ``step`` steps are made."""

    request: JobRequest
    file: str
    status: JobStatus = "running"
    step: int = 0
    state: str | None = None
    model: str | None = None
    error: str = ""

    @property
    def hyperparameters(self) -> TinkerHyperparameters:
        """The hyperparameters. Raises ValidationError: they are wrong."""
        return TinkerHyperparameters.model_validate(dict(self.request.hyperparameters))


@dataclass(eq=False, repr=False)
class TinkerJobs(JobProvider):
    """Jobs in a directory, at work while :meth:`running` runs. ``timeout`` limits each request, in seconds; a
    state is saved when the last one is older than ``save_seconds``."""

    service: TinkerService
    directory: Path
    least_examples: int
    _: KW_ONLY
    timeout: float = 3600.0
    save_seconds: float = SAVE_SECONDS
    _tasks: dict[str, asyncio.Task[None]] = field(default_factory=dict, init=False)
    _progress: dict[str, str] = field(default_factory=dict, init=False)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Stop the jobs, and end the session, at the end."""
        try:
            yield
        finally:
            for task in self._tasks.values():
                task.cancel()
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)
            self._tasks.clear()
            await self.service.close()

    async def upload(self, name: str, examples: bytes) -> str:
        """Store a file of examples."""
        file_name = file_name_of(name, examples)
        self.directory.mkdir(parents=True, exist_ok=True)
        write_file(self.directory / file_name, examples)
        return file_name

    async def create(self, request: JobRequest, file: str) -> Job:
        """Make a job, and begin it."""
        job_id = suffix_of(request.name)
        known = self._read(job_id)
        if known is not None:
            check_identity(request, body_of(known.request, known.file)["metadata"])
            return await self.status(job_id)
        refused = f"job {request.name} cannot be created"
        if request.method != "supervised":
            problem = f"{refused}: Tinker's API has no method {request.method}"
            raise FineTuneJobError(f"{problem}. Use expert iteration, or another provider")
        job = TinkerJob(request=request, file=file)
        try:
            job.hyperparameters  # noqa: B018 (checked before anything is paid for)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            problem = f"hyperparameters.{first['loc'][0]}: {first['msg']}"
            raise FineTuneJobError(f"{refused}: {problem}") from error
        self._write(job_id, job)
        return await self.status(job_id)

    async def status(self, job_id: str) -> Job:
        """Return what is known of a job; one that was interrupted goes on. Raises SparringError: the service
        cannot be used now."""
        task = self._tasks.get(job_id)
        if task is not None and task.done():
            del self._tasks[job_id]
            task.result()
        job = self._read(job_id)
        if job is None:
            return Job(job_id, "not_found")
        if job.status == "running" and job_id not in self._tasks:
            self._tasks[job_id] = asyncio.create_task(self._train(job_id, job))
        return Job(job_id, job.status, job.model, job.error)

    async def progress(self, job_id: str) -> str:
        """Return the newest step and its loss."""
        return self._progress.get(job_id, "")

    async def _train(self, job_id: str, job: TinkerJob) -> None:
        try:
            job.model = await self._trained(job_id, job)
            job.status = "succeeded"
        except (FineTuneJobError, WrongLine) as error:
            job.status, job.error = "failed", str(error)
        self._write(job_id, job)

    async def _trained(self, job_id: str, job: TinkerJob) -> str:
        """Make the steps that are left; return the path of the weights for sampling."""
        client = await self._training_client(job)
        plan = await self._plan(job, client.get_info().model_data.model_name)
        saved_at, first = time.monotonic(), job.step
        for step in range(first, plan.steps):
            if step > first and time.monotonic() - saved_at >= self.save_seconds:
                await self._save(job_id, job, client, step)
                saved_at = time.monotonic()
            loss = await self._step(client, plan, step)
            self._progress[job_id] = f"Step {step + 1}/{plan.steps}: training loss={loss:.4f}"
        await self._save(job_id, job, client, plan.steps)
        name = checkpoint_name(plan.steps)
        saved = await self._ask(lambda: client.save_weights_for_sampler(name), "saving weights for sampling")
        return str(saved.path)

    async def _training_client(self, job: TinkerJob) -> Any:
        """Return the SDK's client of a new model in the newest state of a job, or where the job starts."""
        service, start, state = (await self.service.connected()).service, job.request.model, job.state
        if state is not None:
            return await self._ask(
                lambda: service.create_training_client_from_state_with_optimizer(state), state
            )
        if start.startswith(PATH):
            path = start.replace(f"/{SAMPLER_WEIGHTS}/", f"/{WEIGHTS}/")
            return await self._ask(lambda: service.create_training_client_from_state(path), path)
        await self.service.base(start)
        rank = job.hyperparameters.rank
        return await self._ask(
            lambda: service.create_lora_training_client(base_model=start, rank=rank, seed=job.request.seed),
            f"model {start}",
        )

    async def _plan(self, job: TinkerJob, model: str) -> TinkerPlan:
        base = await self.service.base(model)
        try:
            content = (self.directory / job.file).read_bytes()
        except FileNotFoundError:
            problem = f"its examples are missing, {self.directory / job.file}"
            raise FineTuneJobError(problem) from None
        settings = job.hyperparameters.settings(job.request.seed or 0)
        return await asyncio.to_thread(TinkerPlan.of, content, Renderer(base.tokens, base.context), settings)

    async def _step(self, client: Any, plan: TinkerPlan, step: int) -> float:
        """Ask for gradients and a step; return the loss, a mean over what is learned, or NaN if the service
        does not say it."""
        types = self.service.sdk.types
        data, adam = plan.data(step, types), plan.adam(step, types)

        async def made() -> Any:
            gradients = client.forward_backward(data, "cross_entropy")
            # Asked for before the gradients are there: the service may take both at once.
            step_made = client.optim_step(adam)
            found = await gradients
            await step_made
            return found

        found = await self._ask(made, f"step {step + 1}")
        return float(found.metrics.get("loss:sum", math.nan))

    async def _save(self, job_id: str, job: TinkerJob, client: Any, step: int) -> None:
        """Save a state, and delete the one before."""
        saved = await self._ask(lambda: client.save_state(checkpoint_name(step)), "saving the state")
        before, job.state, job.step = job.state, saved.path, step
        self._write(job_id, job)
        if before is not None:
            rest = (await self.service.connected()).rest
            with contextlib.suppress(SparringError):  # a state too many only takes space
                await self.service.ask(
                    lambda: rest.delete_checkpoint_from_tinker_path(before), before, CONNECT_SECONDS
                )

    async def _ask(self, begin: Callable[[], Awaitable[Any]], what: str) -> Any:
        return await self.service.ask(begin, what, self.timeout, refused=FineTuneJobError)

    def _read(self, job_id: str) -> TinkerJob | None:
        return read_json_if_there(self._path(job_id), TinkerJob)

    def _write(self, job_id: str, job: TinkerJob) -> None:
        write_json(self._path(job_id), job)

    def _path(self, job_id: str) -> Path:
        return self.directory / f"{suffix_of(job_id)}.json"
