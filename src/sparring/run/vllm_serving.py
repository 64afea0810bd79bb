"""VLLMServing: vLLM, which a run in one process starts as a process of its own, and feeds with files."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from sparring.core.adapters import AdapterRef
from sparring.engine.hosts import HostClient, VLLMHost
from sparring.population.pool_members import iteration_of
from sparring.run.adapter_versions import AdapterVersions
from sparring.run.learners import Saved
from sparring.run.metrics import RunMetrics
from sparring.run.progress_views import working
from sparring.run.serving import Serving, write_copy

if TYPE_CHECKING:
    from sparring.learn.policy import PolicyModel


@dataclass
class _Counts:
    """Tokens since the start: what the engine generated, and control tokens that answers spelled."""

    generated: float = 0.0
    spelled: float = 0.0


class VLLMServing(Serving):
    """See the module. Each version of a policy has proved that it answers before anything plays with it;
    opponents prove it when they are first asked.

    Args:
        versions: the learners' adapters, which are written before they are published.
        frozen: further adapters, by name.
        sleeps: whether vLLM sleeps while the learners learn.
    """

    def __init__(
        self,
        host: VLLMHost,
        versions: AdapterVersions,
        results: dict[str, str],
        frozen: Mapping[str, AdapterRef],
        console: Console,
        *,
        sleeps: bool,
    ) -> None:
        self.host = host
        self.client = HostClient(host)
        self.client.adapters |= frozen
        self.versions = versions
        self.results = results
        self.console = console
        self.sleeps = sleeps
        self._asleep = False
        self._copies: set[str] = set()
        self._before = _Counts()

    async def start(self) -> None:
        """Start vLLM and check it."""
        with working(self.console, "starting vLLM"):
            await self.host.start()

    async def publish(self, saved: Saved) -> None:
        """Write the adapters that are new, and answer with them."""
        self.host.check()
        await self._wake()
        for policy, version in saved.versions.items():
            adapter = AdapterRef(policy, version, self.versions.path(policy))
            if self.client.adapters.get(policy) != adapter:
                self.versions.write(policy)
                await self._serve(policy, adapter)
        used = (one.path for one in self.client.adapters.values() if one.path is not None)
        self.versions.tidy({Path(path).resolve() for path in used})

    async def publish_results(self) -> None:
        """Serve the averages, if training produces those."""
        for policy, path in self.versions.results().items():
            name, version = self.results[policy], self.versions.learners[policy].version
            await self._serve(name, AdapterRef(name, version, path))

    async def freeze(self, uid: str, policy: str) -> str | None:
        """Write a copy of what the training of a policy has produced into ``population``."""
        files, name = self.versions, self.results[policy]
        return write_copy(
            files.directory, uid, self._model, files.base_name, name, files.learners[policy].version
        )

    def serve_copies(self, paths: Mapping[str, str], kept: Collection[str]) -> None:
        """Serve exactly these copies; nothing here deletes files."""
        for uid in self._copies - paths.keys():
            del self.client.adapters[uid]
        for uid, path in paths.items():
            place = self.versions.directory.path / path
            self.client.adapters[uid] = AdapterRef(uid, iteration_of(uid), str(place.absolute()))
        self._copies = set(paths)

    async def rest(self) -> None:
        """Let vLLM sleep, if it should."""
        if self.sleeps:
            self._asleep = True
            await self.host.sleep()

    def check(self) -> None:
        """Raise the error of an adapter that is not the one that was written, or of a vLLM that died."""
        if self.client.fatal is not None:
            raise self.client.fatal
        self.host.check()

    async def log(self, metrics: RunMetrics, play_seconds: float) -> None:
        """Log vLLM's statistics since the last call."""
        counts = self._counts()
        generated = counts.generated - self._before.generated
        metrics.log({"time/generated_tokens_per_second": generated / max(play_seconds, 1e-9)})
        metrics.log({"inference/generated_tokens": generated})
        metrics.log({"inference/spelled_control_tokens": counts.spelled - self._before.spelled})
        self.reset()

    def reset(self) -> None:
        """Leave what an evaluation did out of the statistics."""
        self._before = self._counts()

    async def forget(self) -> None:
        """Forget cached contexts."""
        await self.host.forget_contexts()

    async def close(self) -> None:
        """Stop vLLM."""
        await self.host.close()

    @property
    def _model(self) -> "PolicyModel":
        return next(iter(self.versions.learners.values())).policy

    async def _serve(self, name: str, adapter: AdapterRef) -> None:
        self.client.adapters[name] = adapter
        if adapter.path is not None:
            await self.client.hold(name)

    def _counts(self) -> _Counts:
        stats = self.host.stats()
        return _Counts(float(stats["generated_tokens"]), float(stats["spelled_control_tokens"]))

    async def _wake(self) -> None:
        """Wake vLLM, to which the learners leave the memory that torch keeps for them."""
        if not self._asleep:
            return
        import torch

        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        await self.host.wake()
        self._asleep = False
