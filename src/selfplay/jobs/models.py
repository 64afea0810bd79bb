"""Serve the models of finished jobs."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol

from selfplay.core import SelfplayError
from selfplay.jobs.records import Job
from selfplay.jobs.spec import TRAINING
from selfplay.jobs.store import JobStore


class CheckedLoader(Protocol):
    """Serves the adapters of jobs after a check: the engine of this process, or those of a cluster."""

    def names(self) -> list[str]:
        """Return the names of all models that are served, the base model's included."""

    async def deliver(self, name: str, directory: Path) -> None:
        """Serve the adapter in ``directory`` as ``name``, after a proof that it answers.

        Raises:
            InputError: the adapter is missing, damaged or of another base model.
            DeliveryError: the answers are not those of this adapter.
            SelfplayError: no engine can be reached.
        """

    def unload(self, name: str) -> None:
        """Stop serving ``name``."""


class JobModels:
    """The models of finished jobs, which a loader serves."""

    def __init__(self, checked_loader: CheckedLoader) -> None:
        self.checked_loader = checked_loader

    def names(self) -> list[str]:
        """Return the names of all models that are served, also of those that no job made."""
        return self.checked_loader.names()

    async def serve(self, store: JobStore, job: Job) -> None:
        """Serve every model of a job, or none.

        Raises:
            SelfplayError: see :meth:`CheckedLoader.deliver`.
        """
        delivered: list[str] = []
        try:
            for name, directory in job.names().items():
                await self.checked_loader.deliver(name, store.place(job) / TRAINING / directory)
                delivered.append(name)
        except BaseException:
            self.withdraw(delivered)
            raise

    def withdraw(self, names: Iterable[str]) -> None:
        """Stop serving models; those that are not served are passed over."""
        for name in names:
            if name in self.names():
                self.checked_loader.unload(name)

    async def serve_all(self, store: JobStore, jobs: list[Job], say: Callable[[str], None]) -> None:
        """Serve the models of several jobs; ``say`` is told about those that cannot be served."""
        for job in jobs:
            try:
                await self.serve(store, job)
            except SelfplayError as error:
                say(f"note: {job.model_name} is not served ({error})")
