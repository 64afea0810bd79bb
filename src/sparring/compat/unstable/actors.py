"""The actors of UnstableBaselines that differ from those of a run: the learner, and inference by prompt."""

import math
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray

from sparring.cluster.actor_classes import EngineActor, Later
from sparring.cluster.calls import Handle, found
from sparring.cluster.engines.host import EngineRequest, EngineSettings, say_nothing
from sparring.cluster.learner import LearnerService
from sparring.collection.buffer_state import Demand
from sparring.compat.unstable.forms import named, run_directory
from sparring.compat.unstable.learner import LearningLoop
from sparring.compat.unstable.settings import from_lora_config, from_vllm_config
from sparring.config.learning import LearningSettings
from sparring.config.model import ModelSettings
from sparring.core import Messages
from sparring.core.adapters import BASE, TRAINED, AdapterRef

if TYPE_CHECKING:
    from sparring.learn.algorithms import BaseAlgo
    from sparring.learn.learner import Learner

TRAIN_ALL = LearningSettings().max_batch_tokens
"""Tokens of one forward pass of the learner, which packs prefix trees."""
LEARNERS_WAIT = 600.0
"""Maximum seconds that learners wait for each other."""


class PromptActor(EngineActor):
    """An inference actor that also answers single prompts."""

    def __init__(self, settings: EngineSettings, name: str, tracker: Handle) -> None:
        super().__init__(settings, name, tracker)
        self.temperature = settings.inference.temperature

    async def submit_prompt(self, prompt: str, lora_path: str | None = None) -> str:
        """Answer a prompt unchanged, without chat markup."""
        await self.start()
        messages: Messages = [{"role": "text", "content": prompt}]
        adapter = AdapterRef(lora_path or BASE, 0, lora_path)
        request = EngineRequest(0, adapter, messages, self.temperature, return_tokens=False)
        return (await self.host.complete(request)).text


class LoopActor:
    """A learner that draws batches, learns, saves and announces the weights by itself."""

    def __init__(self, build: Callable[[], LearningLoop]) -> None:
        self._loop = Later(build)

    async def train(self, iterations: int) -> int:
        """See :meth:`LearningLoop.train`."""
        return await (await self._loop.built()).train(iterations)


@dataclass(frozen=True)
class VLLMArguments:
    """Those of ``VLLMActor``: a ``vllm_config`` with UnstableBaselines' keys."""

    cfg: dict[str, Any]
    tracker: Any = None
    name: str = "VLLMActor"

    def for_actor(self) -> dict[str, Any]:
        """See :class:`PromptActor`."""
        return {"settings": from_vllm_config(self.cfg), "name": self.name, "tracker": named(self.tracker)}


@dataclass(frozen=True)
class LearnerArguments:
    """Those of ``StandardLearner``, which learns from the buffer's batches.

    Batches are packed as prefix trees, so ``mini_batch_size`` does not change the gradient; it only limits
    the tokens of a forward pass, and only if ``max_train_len`` is given too. Activations are recomputed where
    that saves memory, regardless of the two checkpointing switches, and training keeps no key-value cache.

    Raises:
        InputError: ``lora_cfg`` is impossible.
    """

    model_name: str
    step_buffer: Any
    model_pool: Any
    algorithm: "BaseAlgo"
    batch_size: int
    mini_batch_size: int
    max_generation_len: int
    learning_rate: float = 1e-5
    grad_clip: float = 1.0
    batch_delay_buffer: float = 1.5
    lora_cfg: dict[str, Any] | None = None
    initial_lora_path: str | None = None
    num_learners: int = 1
    ckpt_root: str = "checkpoints"
    save_every: int = 1
    tracker: Any = None
    activation_checkpointing: bool = True
    gradient_checkpointing: bool = True
    use_trainer_cache: bool = False
    max_train_len: int | None = None
    _: KW_ONLY
    seed: int = 0

    def __post_init__(self) -> None:
        from_lora_config(self.lora_cfg or {})

    def for_actor(self) -> dict[str, Any]:
        """See :class:`LoopActor`."""
        services = {name: named(getattr(self, name)) for name in ("step_buffer", "model_pool", "tracker")}
        return {"build": partial(build_loop, replace(self, **services), run_directory(self.tracker))}

    def build_learners(self) -> "dict[str, Learner]":
        """Build the learner, by policy: a constant rate, no average."""
        from sparring.learn.learner import Learner
        from sparring.run.assembly import build_policy
        from sparring.run.given_adapters import load_adapter_of

        lora = from_lora_config(self.lora_cfg or {})
        policy = build_policy(ModelSettings(name=self.model_name), lora, self.seed, say_nothing)
        if self.initial_lora_path:
            load_adapter_of(Path(self.initial_lora_path), policy, TRAINED)
        settings = LearningSettings(
            learning_rate=self.learning_rate,
            schedule="constant",
            warmup_steps=0,
            grad_clip=self.grad_clip,
            max_generation_len=self.max_generation_len,
            max_train_len=self.max_train_len,
            max_batch_tokens=max(TRAIN_ALL, self.mini_batch_size * (self.max_train_len or 0)),
        )
        return {TRAINED: Learner(policy, self.algorithm, settings)}


def build_loop(settings: LearnerArguments, run: str | None) -> LearningLoop:
    """Build the loop of a learner in its process; without ``run`` it chooses a directory of its own."""
    from sparring.cluster.learner_group import LearnerGroup

    directory = Path(run or f"runs/learner-{ray.get_runtime_context().get_actor_id()}")
    every = settings.save_every
    group = LearnerGroup(
        settings.build_learners,
        settings.num_learners,
        gpus=len(ray.get_gpu_ids()),
        cpus=0,
        timeout_seconds=LEARNERS_WAIT,
    )
    started = [TRAINED] if settings.initial_lora_path else []
    return LearningLoop(
        LearnerService(group, directory, settings.model_name, started=started),
        found(settings.step_buffer),
        found(settings.model_pool),
        found(settings.tracker),
        demand=Demand(settings.batch_size, math.ceil(settings.batch_size * settings.batch_delay_buffer)),
        add_every=every,
        checkpoint=lambda step: (
            directory / settings.ckpt_root / f"step-{step:06d}" if step % every == 0 else None
        ),
    )
