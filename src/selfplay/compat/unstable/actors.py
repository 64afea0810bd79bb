"""The actors behind UnstableBaselines' names, where they differ from those of a run."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import ray

from selfplay.cluster.actor_classes import EngineActor, Later
from selfplay.cluster.engines.host import Request
from selfplay.cluster.engines.settings import EngineSettings
from selfplay.cluster.handles import Handle, found
from selfplay.cluster.learners.learner import LearnerService
from selfplay.compat.unstable.learner import LearningLoop
from selfplay.compat.unstable.settings import LearnerSettings
from selfplay.core import Messages
from selfplay.core.adapters import BASE, TRAINED, AdapterRef

LEARNERS_WAIT = 600.0
"""Maximum seconds that learners wait for each other."""


class VLLMActor(EngineActor):
    """An inference actor that also answers single prompts."""

    def __init__(self, settings: EngineSettings, name: str, tracker: Handle) -> None:
        super().__init__(settings, name, tracker)
        self.temperature = settings.inference.temperature

    async def submit_prompt(self, prompt: str, lora_path: str | None = None) -> str:
        """Answer a prompt unchanged, without chat markup."""
        await self.start()
        messages: Messages = [{"role": "text", "content": prompt}]
        adapter = AdapterRef(lora_path or BASE, 0, lora_path)
        request = Request(0, adapter, messages, self.temperature, return_tokens=False)
        return (await self.host.complete(request)).text


class LearnerActor:
    """A learner that draws batches, learns, saves and announces the weights by itself."""

    def __init__(self, build: Callable[[], LearningLoop]) -> None:
        self._loop = Later(build)

    async def train(self, iterations: int) -> int:
        """See :meth:`LearningLoop.train`."""
        return await (await self._loop.built()).train(iterations)

    async def progress(self) -> dict[str, Any]:
        """See :meth:`LearningLoop.progress`."""
        return (await self._loop.built()).progress()


def build_loop(
    settings: LearnerSettings, run: str | None, step_buffer: Handle, model_pool: Handle, tracker: Handle
) -> LearningLoop:
    """Build the loop of a learner in its process; without ``run`` it chooses a directory of its own."""
    from selfplay.cluster.learners.group import LearnerGroup

    directory = Path(run or f"runs/learner-{ray.get_runtime_context().get_actor_id()}")
    every = settings.save_every
    group = LearnerGroup(
        settings.build_learners,
        settings.num_learners,
        gpus=len(ray.get_gpu_ids()),
        cpus=0,
        timeout_seconds=LEARNERS_WAIT,
    )
    return LearningLoop(
        LearnerService(
            group, directory, settings.model.name, started=[TRAINED] if settings.initial_lora_path else []
        ),
        found(step_buffer),
        found(model_pool),
        found(tracker),
        demand=settings.demand,
        add_every=every,
        checkpoint=lambda step: (
            directory / settings.ckpt_root / f"step-{step:06d}" if step % every == 0 else None
        ),
    )
