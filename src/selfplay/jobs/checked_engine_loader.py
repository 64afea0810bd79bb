"""CheckedEngineLoader: serve the adapters of jobs with the engine of this process."""

import asyncio
from pathlib import Path

import torch

from selfplay.core import SelfplayError
from selfplay.inference.adapter_check import (
    Delivery,
    changes_nothing,
    check_delivery,
    check_hash,
    expectation_of,
    file_hash,
    tolerance_of,
)
from selfplay.inference.answering import AdapterLoader
from selfplay.inference.engine import EmbeddedEngine
from selfplay.jobs.records import ServedBase
from selfplay.learning.delivery_file import canary_tokens
from selfplay.learning.policy import PolicyModel


class CheckedEngineLoader:
    """See :class:`selfplay.jobs.queue.CheckedLoader`.

    Args:
        engine: the engine.
        policy: its model.
        loader: loads adapters into it.
        base: name under which it serves the base model.
    """

    def __init__(self, engine: EmbeddedEngine, policy: PolicyModel, loader: AdapterLoader, base: str) -> None:
        self.engine = engine
        self.loader = loader
        self.base = base
        self.dtype = policy.dtype
        self.canary = canary_tokens(policy)

    def names(self) -> list[str]:
        """See ``CheckedLoader``."""
        return self.engine.names()

    async def deliver(self, name: str, directory: Path) -> None:
        """See ``CheckedLoader``; the proof is the adapter's hash and its answer to the canary."""
        expected = expectation_of(directory)
        sha256, unchanged = await asyncio.to_thread(_hash_and_effect, directory)
        try:
            version = await self.loader.load_while_serving(name, directory)
        except torch.OutOfMemoryError as error:
            raise SelfplayError(f"there is no memory for the adapter {name}") from error
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
            self.loader.unload(name)
            raise

    def unload(self, name: str) -> None:
        """See ``CheckedLoader``."""
        self.loader.unload(name)


def base_of(policy: PolicyModel, served: str, name: str) -> ServedBase:
    """Return how a worker loads the base model of this process again.

    Args:
        policy: the model.
        served: the name under which it is served.
        name: its name or directory, which is recorded with adapters.
    """
    dtype = str(policy.dtype).removeprefix("torch.")
    threads = torch.get_num_threads()
    return ServedBase(
        served, name, policy.model_name, dtype, str(policy.device), threads, policy.quantization
    )


def _hash_and_effect(directory: Path) -> tuple[str, bool]:
    return file_hash(directory), changes_nothing(directory)
