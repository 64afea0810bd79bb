"""The actors of UnstableBaselines that differ from those of a run: the learner, and inference by prompt.

A run of sparring's own has one loop, in the process of the command (``sparring.run.trainer``). Here the
learner is told to train, and everything else follows it.
"""

import asyncio
import math
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import ray

from sparring.cluster.actor_classes import EngineActor, Hosted
from sparring.cluster.calls import HEARTBEAT_SECONDS, Handle, beat_of_buffer, found
from sparring.cluster.engines.host import EngineSettings, say_nothing
from sparring.cluster.learner import LearnerService
from sparring.collection.buffer_state import Demand
from sparring.compat.unstable.forms import named, run_directory, with_names
from sparring.compat.unstable.settings import from_lora_config, from_vllm_config
from sparring.config.learning import LearningSettings
from sparring.config.model import ModelSettings
from sparring.core import Messages
from sparring.core.adapters import BASE, TRAINED, AdapterRef
from sparring.engine.answering import EngineCall
from sparring.engine.hosts import EngineRequest
from sparring.run.game_source import BatchInBuffer, GameFeed
from sparring.run.learners import Saved
from sparring.run.metrics import turn_figures

if TYPE_CHECKING:
    from sparring.learn.algorithms import BaseAlgo
    from sparring.learn.learner import Learner


@dataclass(eq=False, repr=False)
class LearningLoop:
    """The loop of a learner that draws its batches from a buffer.

    Args:
        learner: makes and saves the updates.
        step_buffer, model_pool, tracker: handles; the tracker may be ``None``.
        demand: size and readiness of an update's batch.
        add_every: the policy joins the pool every ``add_every`` updates.
        checkpoint: returns the directory in which the checkpoint of an update is kept; ``None`` keeps none.
    """

    learner: LearnerService
    step_buffer: Any
    model_pool: Any
    tracker: Any = None
    _: KW_ONLY
    demand: Demand
    add_every: int = 1
    checkpoint: Callable[[int], Path | None] = lambda step: None
    state: str = field(default="starting", init=False)

    def __post_init__(self) -> None:
        self.feed = GameFeed(self.step_buffer, self.model_pool, self.demand)

    async def train(self, iterations: int) -> int:
        """Learn until there are ``iterations`` updates, then stop the collectors; return how many there are.

        When called again, for example by Ray after a kill, it continues after the last saved update.

        Raises:
            SparringError: there is no batch, or an update fails.
        """
        beating = asyncio.create_task(self._beat())
        try:
            await self._announce(self.learner.saved())
            await self._track()
            while self.learner.saved().step < iterations:
                await self._update(iterations)
        finally:
            beating.cancel()
            await asyncio.gather(beating, return_exceptions=True)
        self.state = "done"
        await self.feed.stop()
        return self.learner.saved().step

    async def _update(self, iterations: int) -> None:
        self.state, started = "waiting", perf_counter()
        step = self.learner.saved().step + 1
        ready = await self.feed.next_batch(self.learner.saved())
        waited = perf_counter() - started
        self.state = "learning"
        turn = {"play": waited, "played": float(ready.games), "dropped": float(ready.dropped)}
        saved = await self.learner.update(
            step, BatchInBuffer(partial(found, self.step_buffer), step), {"turn": turn}
        )
        if saved.step >= iterations:
            await self.feed.stop()  # before new weights let new games begin
        self.state = "saving"
        await self._announce(saved)
        await self._track()
        directory = self.checkpoint(step)
        if directory is not None:
            await self.learner.keep(str(directory))
        await self.learner.tidy(await self.model_pool.paths_in_use.remote())

    async def _announce(self, saved: Saved) -> None:
        """Let the policy join the pool if that is due, and announce its weights."""
        if saved.step:
            await self.feed.settle(saved.step)
            if saved.step % self.add_every == 0:
                for policy, path in (await self.learner.results()).items():
                    await self.model_pool.add_checkpoint.remote(path, saved.step, policy)
        await self.feed.publish(saved)

    async def _track(self) -> None:
        """Write the metrics of the saved update; a repeated call changes nothing."""
        saved = self.learner.saved()
        if self.tracker is None or not saved.step:
            return
        turn = saved.state["turn"]
        accounts = await self.feed.accounts()
        metrics = saved.figures | {f"accounts/{name}": float(count) for name, count in accounts.items()}
        metrics |= turn_figures(
            saved.seconds, saved.trained_tokens, play=turn["play"], played=turn["played"], overlaps=True
        )
        metrics |= {"overlap/dropped_steps": turn["dropped"], "learner/games_consumed": turn["played"]}
        await self.tracker.flush.remote(saved.step, metrics)

    async def _beat(self) -> None:
        while self.tracker is not None:
            load = {"step": self.learner.saved().step, "state": self.state}
            self.tracker.heartbeat.remote("Learner", load)
            await beat_of_buffer(self.tracker, self.step_buffer)
            await asyncio.sleep(HEARTBEAT_SECONDS)


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
        call = EngineCall(messages, self.temperature, return_tokens=False)
        return (await self.host.complete(EngineRequest(0, adapter, call))).text


class LoopActor(Hosted[LearningLoop]):
    """A learner that draws batches, learns, saves and announces the weights by itself."""

    async def train(self, iterations: int) -> int:
        """See :meth:`LearningLoop.train`."""
        return await (await self._built()).train(iterations)


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
        return {"build": partial(build_loop, with_names(self), run_directory(self.tracker))}

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
    return LearningLoop(
        LearnerService(group, directory, settings.model_name),
        found(settings.step_buffer),
        found(settings.model_pool),
        found(settings.tracker),
        demand=Demand(settings.batch_size, math.ceil(settings.batch_size * settings.batch_delay_buffer)),
        add_every=every,
        checkpoint=lambda step: (
            directory / settings.ckpt_root / f"step-{step:06d}" if step % every == 0 else None
        ),
    )
