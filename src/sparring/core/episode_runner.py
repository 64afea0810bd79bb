"""EpisodeRunner: runs the episodes of an arena, with their time limits, retries and seeds."""

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import replace
from typing import Any, Protocol

from sparring.core.artifacts import data_of
from sparring.core.client import InferenceClient
from sparring.core.concurrency import all_results, with_retries
from sparring.core.current_episode import count_started, current_episode, inherit
from sparring.core.errors import InputError, SparringError, TransientError
from sparring.core.model_caller import ModelCaller
from sparring.core.own_code import awaitable, list_of, loggable, method_of, own_code, returned
from sparring.core.played import check_result
from sparring.core.seeds import derive_seed
from sparring.core.types import EpisodeRequest, GenerateResult, Rollout, seated
from sparring.core.verbose_logger import VerboseLogger


class Elsewhere(Protocol):
    """Plays an arena's outermost episodes in other processes."""

    async def prepare(self) -> None:
        """Called before a batch of episodes, with the arena in the state that they may read."""

    async def play(self, request: EpisodeRequest) -> GenerateResult:
        """Play an episode, retries included; return a failure as a failed rollout."""


class EpisodeRunner(ModelCaller):
    """Runs episodes, which make model calls.

    ``step_num`` is the number of the next step, from 1 on, as of a run's updates.
    ``on_result`` is called with each result that is not another result's child. ``elsewhere``, if given,
    plays the episodes that are not sub-episodes in other processes.
    """

    def __init__(
        self,
        client: InferenceClient,
        max_calls: int,
        logger: VerboseLogger | None,
        episode_timeout: float,
        retries: int,
        seed: int,
    ) -> None:
        super().__init__(client, max_calls, logger)
        self.episode_timeout = episode_timeout
        self.retries = retries
        self.seed = seed
        self.step_num = 1
        self.episodes: dict[str, Any] = {}  # of Episode, which imports this module
        self.on_result: Callable[[GenerateResult], None] | None = None
        self.elsewhere: Elsewhere | None = None

    def add_episode(self, episode_type: str, episode: Any) -> None:
        """Register an episode, an instance, under a name."""
        if isinstance(episode, type):
            raise TypeError(f"add_episode takes an episode: {episode.__name__}(), not {episode.__name__}")
        self.episodes[episode_type] = episode

    async def resolve_artifact(self, request: EpisodeRequest) -> Any:
        """Return what the episode receives for ``request.artifact``: an Artifact's data or the object itself.

        Override to fetch an artifact that the request only names. If that fails, the episode fails.
        """
        return data_of(request.artifact)

    async def run_episode(
        self, episode_type: str, artifact: Any, meta: dict[str, Any] | None = None
    ) -> GenerateResult:
        """Run the episode registered as ``episode_type``, once; raise what it raises, or what is wrong with
        its result."""
        if episode_type not in self.episodes:
            known = ", ".join(self.episodes) or "none"
            raise InputError("episode_type", f"there is no episode {episode_type}", f"There are: {known}")
        episode = self.episodes[episode_type]
        source = method_of(episode, "generate")
        playing = awaitable(episode.generate(self, artifact, meta), source)
        result = returned(await playing, GenerateResult, source)
        check_result(result)
        return result

    async def try_episode(
        self, episode_type: str, artifact: Any, meta: dict[str, Any] | None = None
    ) -> GenerateResult:
        """Like :meth:`run_episode`, but retry transient failures, and return a failure as a failed rollout.

        It has no steps and no children; its ``error`` gives the reason. ``meta["retried"]`` counts further
        attempts. An InputError passes: no attempt could succeed.
        """
        meta = inherit(meta)
        return await self._retry(
            EpisodeRequest(episode_type, artifact, meta),
            lambda: self.run_episode(episode_type, artifact, meta),
        )

    async def generate_rollouts(
        self, requests: list[EpisodeRequest], concurrency: int | None = None
    ) -> list[GenerateResult]:
        """Run all requests and return their results in the same order, failed ones included.

        At most as many outermost episodes run at once as model calls are allowed. Sub-episodes inherit the
        policy version and derive their seeds from the parent's; outside, a request without a seed gets one
        derived from the arena's seed, the step and its index. ``concurrency`` changes the maximum number of
        model calls in flight from now on; inside an episode it is ignored. An InputError cancels the other
        episodes.
        """
        parent = current_episode.get()
        if concurrency is not None and parent is None:
            self.set_concurrency(concurrency)
        asked = list_of(EpisodeRequest, requests, "what generate_rollouts is to play")
        own = [replace(request, meta=inherit(request.meta)) for request in asked]
        for index, request in enumerate(own):
            if parent is None and "seed" not in request.meta:
                request.meta["seed"] = derive_seed(self.seed, "rollouts", self.step_num, index)
        # Outermost episodes are limited to the number of calls: more would only wait and use memory.
        # Sub-episodes are not limited, because their waiting parent would block them.
        entrance = asyncio.Semaphore(self._slots.limit) if parent is None else nullcontext()
        if parent is None and self.elsewhere is not None:
            await self.elsewhere.prepare()
        with parent.clock_stopped() if parent is not None else nullcontext():
            return await all_results(self._generate(request, entrance) for request in own)

    async def _generate(
        self, request: EpisodeRequest, entrance: AbstractAsyncContextManager[None]
    ) -> GenerateResult:
        async with entrance:
            if self.logger is not None:
                rollout_id = request.meta.setdefault("rollout_id", uuid.uuid4().hex)
                self.logger.log_episode_start(request.episode_type, data_of(request.artifact), rollout_id)
            if self.elsewhere is not None and current_episode.get() is None:
                agents = {**seated.get(), **request.agents}
                result = await self.elsewhere.play(replace(request, agents=agents))
            else:
                result = await self._retry(request, lambda: self._resolve_and_run(request))
            result.is_trainable = result.is_trainable and request.is_trainable
            rollout = result.rollout
            if self.on_result is not None and "parent_id" not in rollout.meta:
                self.on_result(result)
            if self.logger is not None:
                self.logger.log_episode_end(
                    request.episode_type, rollout.id, rollout.rewards, len(rollout.steps), error=rollout.error
                )
            return result

    async def _resolve_and_run(self, request: EpisodeRequest) -> GenerateResult:
        if request.agents:
            seated.set({**seated.get(), **request.agents})
        try:
            async with asyncio.timeout(self.episode_timeout):
                source = method_of(self, "resolve_artifact")
                artifact = await awaitable(self.resolve_artifact(request), source)
        except TimeoutError as error:
            raise TransientError(f"resolve_artifact took longer than {self.episode_timeout:g} s") from error
        return await self.run_episode(request.episode_type, artifact, request.meta)

    async def _retry(
        self, request: EpisodeRequest, attempt: Callable[[], Awaitable[GenerateResult]]
    ) -> GenerateResult:
        meta, started_at = request.meta, time.time()
        count_started(1)
        if "rollout_id" not in meta:
            meta["rollout_id"] = uuid.uuid4().hex

        async def numbered(number: int) -> GenerateResult:
            if number:
                meta["retried"] = number
            return await attempt()

        result = await with_retries(numbered, self.retries)
        if isinstance(result, GenerateResult):
            return result
        failed = Rollout(
            episode_type=self._type_of(request),
            artifact=loggable(data_of(request.artifact)),
            meta={name: loggable(value) for name, value in meta.items()}
            | {"error": result.reason, "error_type": result.error_type},
            id=meta["rollout_id"],
            started_at=started_at,
            ended_at=time.time(),
        )
        return GenerateResult(failed)

    def _type_of(self, request: EpisodeRequest) -> str:
        """Return the type of a failed episode, which may have failed because it has none."""
        episode = self.episodes.get(request.episode_type)
        try:
            with own_code():
                return request.episode_type if episode is None else str(loggable(episode.episode_type))
        except SparringError:
            return request.episode_type
