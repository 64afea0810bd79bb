"""The embedded engine with the interface of ``VLLMEngine``, where vLLM is not installed or cannot sleep."""

from pathlib import Path
from typing import ClassVar

from sparring.core import ModelResponse
from sparring.core.manifest import Expectation
from sparring.engine.adapters import Delivery
from sparring.engine.answering import Engine, EngineCall
from sparring.engine.engine import EmbeddedEngine
from sparring.engine.published_adapters import PublishedAdapters
from sparring.engine.vllm_load import VLLMStats
from sparring.learn.policy import BASE, LoraSettings, PolicyModel

RANK = 2


class StandInVLLM(Engine):
    """Answers as the embedded engine does, and notes in ``events`` what the last one was told.

    It fails the test if it is asked anything while it sleeps.
    """

    events: ClassVar[list[str]] = []

    def __init__(self, model: str, *, max_adapters: int, max_tokens: int, max_queue: int, **others) -> None:
        self.model = model
        self.max_adapters = max_adapters
        self.max_tokens, self.max_queue = max_tokens, max_queue
        self.asked, self.asleep, self.has_died = 0, False, False
        self.files: dict[str, Path] = {}
        type(self).events = [f"built to sleep: {others['sleeps']}"]

    async def start(self) -> None:
        policy = PolicyModel(self.model, LoraSettings(RANK, 32.0), dtype="float32")
        self.engine = EmbeddedEngine(policy, max_tokens=self.max_tokens, max_queue=self.max_queue)
        self.published = PublishedAdapters(self.engine, self.max_adapters)
        self.note("start")

    async def publish(
        self,
        name: str,
        path: Path | None,
        version: int,
        *,
        said: Expectation | None = None,
        before: Delivery | None = None,
    ) -> Delivery:
        assert not self.asleep
        if path is None:
            self.engine.publish(BASE, BASE, 0)
            return Delivery(BASE, 0, "", (0.0,))
        self.note(f"publish {path.parent.name}/{path.name}")
        self.files[name] = path
        return await self.published.publish_in_background(name, path, version, proof=True, before=before)

    async def withdraw(self, name: str) -> None:
        del self.files[name]
        self.published.withdraw(name)

    async def answer(self, call: EngineCall) -> ModelResponse:
        assert not self.asleep
        assert call.model not in self.files or self.files[call.model].is_dir(), (
            "files stay while they are asked"
        )
        if self.events[-1] != "play":
            self.note("play")
        return await self.engine.answer(call)

    async def score(self, messages, completions, *, model=None) -> list[float]:
        assert not self.asleep
        return await self.engine.score(messages, completions, model=model)

    async def get_policy_version(self) -> int:
        return await self.engine.get_policy_version()

    async def sleep(self) -> None:
        self.asleep = True
        self.note("sleep")

    async def wake(self) -> None:
        self.asleep = False
        self.note("wake")

    async def forget_contexts(self) -> None:
        assert not self.asleep
        self.engine.forget_contexts()
        self.note("forget")

    def stats(self) -> VLLMStats:
        stats = self.engine.stats
        return VLLMStats(
            generated_tokens=stats.generated_tokens, spelled_control_tokens=stats.spelled_control_tokens
        )

    async def close(self) -> None:
        self.engine.close()
        self.note("close")

    def note(self, event: str) -> None:
        self.events.append(event)
