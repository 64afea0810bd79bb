"""Serve the models of finished jobs, after a proof that the engine answers with them."""

import asyncio
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol

import torch

from selfplay.core import InputError
from selfplay.inference.adapter_check import (
    Delivery,
    DeliveryError,
    changes_nothing,
    check_delivery,
    check_hash,
    file_hash,
    read_expectation,
    tolerance_of,
)
from selfplay.inference.engine import EmbeddedEngine
from selfplay.jobs.records import Job
from selfplay.jobs.spec import TRAINING
from selfplay.jobs.store import JobStore


class Shelf(Protocol):
    """Where adapters are loaded into the engine."""

    def load(self, name: str, directory: Path) -> int:
        """Serve the adapter in ``directory`` as ``name`` and return its version.

        Raises:
            InputError: it cannot be loaded.
        """

    def unload(self, name: str) -> None:
        """Stop serving ``name``."""


class JobModels:
    """The models of finished jobs in an engine.

    Args:
        engine: the engine that serves them.
        shelf: loads them.
        base: name under which the engine serves the base model.
        dtype: dtype of the base model's weights.
        canary: token ids of the canary.
    """

    def __init__(
        self, engine: EmbeddedEngine, shelf: Shelf, base: str, dtype: torch.dtype, canary: list[int]
    ) -> None:
        self.engine = engine
        self.shelf = shelf
        self.base = base
        self.dtype = dtype
        self.canary = canary

    async def serve(self, store: JobStore, job: Job) -> None:
        """Serve every model of a job, or none.

        Raises:
            InputError: an adapter is missing, damaged or of another base model.
            DeliveryError: the engine does not answer with it.
        """
        loaded: list[str] = []
        try:
            for name, directory in job.names().items():
                await self._load(name, store.place(job) / TRAINING / directory)
                loaded.append(name)
        except BaseException:
            self.withdraw(loaded)
            raise

    def withdraw(self, names: Iterable[str]) -> None:
        """Stop serving models; those that are not served are passed over."""
        for name in names:
            if name in self.engine.names():
                self.shelf.unload(name)

    async def serve_all(self, store: JobStore, jobs: list[Job], say: Callable[[str], None]) -> None:
        """Serve the models of several jobs; ``say`` is told about those that cannot be served."""
        for job in jobs:
            try:
                await self.serve(store, job)
            except (InputError, DeliveryError) as error:
                say(f"note: {job.model_name} is not served ({error})")

    async def _load(self, name: str, directory: Path) -> None:
        expected = read_expectation(directory)
        if expected is None:
            raise InputError("adapter", f"{directory} has no description", "Run the job again.")
        sha256, unchanged = await asyncio.to_thread(_hash_and_effect, directory)
        version = self.shelf.load(name, directory)
        try:
            check_hash(name, version, directory, sha256, expected.sha256)
            base = tuple(await self.engine.logprobs(self.canary, model=self.base))
            answered = tuple(await self.engine.logprobs(self.canary, model=name))
            check_delivery(
                Delivery(name, version, sha256, answered, expected.canary),
                expected_canary=expected.canary,
                expected_base=expected.base,
                before=None,
                base=Delivery(self.base, 0, "", base),
                changes_nothing=unchanged,
                tolerance=tolerance_of(self.dtype),
            )
        except BaseException:
            self.shelf.unload(name)
            raise


def _hash_and_effect(directory: Path) -> tuple[str, bool]:
    return file_hash(directory), changes_nothing(directory)
