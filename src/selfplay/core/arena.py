"""Arena: holds roles, episodes and stores; runs episodes and turns their results into training batches."""

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Any, Protocol

from selfplay.core.adapters import BASE
from selfplay.core.agents import seated
from selfplay.core.artifacts import Artifact, ArtifactStore
from selfplay.core.batching import check_batch, records_of, summary_of
from selfplay.core.call_slots import CallSlots
from selfplay.core.client import InferenceClient, ModelResponse
from selfplay.core.context import current_episode, episode_counts, inherit
from selfplay.core.credit import CreditAssigner, GRPOCredit, apply_credit
from selfplay.core.episode import Episode, GenerateResult
from selfplay.core.errors import InputError, SelfplayError, TransientError, is_transient, reason_of
from selfplay.core.garbage import infrequent_garbage_collection
from selfplay.core.retries import with_retries
from selfplay.core.seeds import derive_seed
from selfplay.core.tasks import all_results
from selfplay.core.types import EpisodeRequest, Messages, Role, Rollout, TrainingBatch, as_messages
from selfplay.core.verbose_logger import VerboseLogger


class Elsewhere(Protocol):
    """Plays an arena's outermost episodes in other processes."""

    async def prepare(self) -> None:
        """Called before a batch of episodes, with the arena in the state that they may read."""

    async def play(self, request: EpisodeRequest) -> GenerateResult:
        """Play an episode, retries included; return a failure as a failed rollout."""


class Arena:
    """Persistent state and orchestration. The state of an episode is transient and is kept elsewhere.

    Override :meth:`get_batch` to choose what is played, and :meth:`evaluate` to measure.

    Args:
        client: answers model calls.
        credit_assigner: turns rewards into advantages; GRPOCredit by default.
        verbose: print events and check every batch; events are written to ``logger`` in any case.
        max_calls: maximum number of model calls in flight. The limit applies to the leaf calls, so nested
            episodes can neither deadlock nor multiply the load.
        episode_timeout: time limit of one attempt at an episode, in seconds. Waiting for the model counts;
            waiting for sub-episodes does not, because each has its own limit.
        retries: maximum number of further attempts, with the same seed, at an episode that failed for a
            transient reason; see :class:`TransientError`.
        seed: root of the seeds of the episodes that :meth:`step` runs.
        logger: where events are written.

    ``started`` counts episodes, including sub-episodes but not further attempts. ``model_without_role``
    answers calls that name neither role nor model; ``None`` selects the client's default. ``on_result`` is
    called with each result that is not another result's child, for progress bars. ``seat`` may give the
    requests of a step their agents. ``elsewhere``, if given, plays the episodes that are not sub-episodes in
    other processes. ``frozen`` are the models that roles may name as their policy without
    being trained.
    """

    def __init__(
        self,
        client: InferenceClient,
        credit_assigner: CreditAssigner | None = None,
        verbose: bool = False,
        *,
        max_calls: int = 4096,
        episode_timeout: float = 3600.0,
        retries: int = 2,
        seed: int = 0,
        logger: VerboseLogger | None = None,
    ) -> None:
        self.client = client
        self.credit_assigner = credit_assigner or GRPOCredit()
        self.verbose = verbose
        self.episode_timeout = episode_timeout
        self.retries = retries
        self.seed = seed
        self.step_num = 0
        self.started = 0
        self.model_without_role: str | None = None
        self.frozen = {BASE}
        self.roles: dict[str, Role] = {}
        self.episodes: dict[str, Episode] = {}
        self.stores: dict[str, ArtifactStore] = {}
        self.logger = logger or (VerboseLogger() if verbose else None)
        self.on_result: Callable[[GenerateResult], None] | None = None
        self.seat: Callable[[list[EpisodeRequest]], list[EpisodeRequest]] | None = None
        self.elsewhere: Elsewhere | None = None
        self._slots = CallSlots(max_calls)

    def add_role(self, role: Role) -> None:
        """Register a role under its id."""
        self.roles[role.id] = role

    def get_role(self, role_id: str) -> Role:
        """Return the role with this id.

        Raises:
            InputError: there is no such role.
        """
        if role_id not in self.roles:
            known = ", ".join(self.roles) or "none"
            raise InputError(
                "role_id", f"there is no role {role_id}", f"Add it with add_role; there are: {known}"
            )
        return self.roles[role_id]

    def add_episode(self, episode_type: str, episode: Episode) -> None:
        """Register an episode under a name."""
        self.episodes[episode_type] = episode

    def add_store(self, name: str, store: ArtifactStore | None = None) -> ArtifactStore:
        """Register a store under a name and return it; if none is given, create an unbounded one."""
        self.stores[name] = store if store is not None else ArtifactStore(seed=derive_seed(self.seed, name))
        return self.stores[name]

    def set_concurrency(self, concurrency: int) -> None:
        """Change the maximum number of model calls in flight in the whole arena, from now on.

        Raises:
            InputError: ``concurrency`` is less than 1.
        """
        self._slots.set_limit(concurrency)

    async def call_model(
        self,
        messages: Messages | str,
        role_id: str | None = None,
        temperature: float | None = None,
        max_tokens: int | None = None,
        return_tokens: bool | None = None,
        *,
        model: str | None = None,
        seed: int | None = None,
        stop: Sequence[str] | None = None,
    ) -> ModelResponse:
        """Call the model for ``role_id``, whose settings are the defaults. A call without a role is not
        trained on.

        If the episode's request gives the role an agent, that one answers, with its own settings where it
        has any, and its kind says whether the answer is trained on; so ``model`` is not needed for this.
        An answer ends before the first of the ``stop`` strings, if one appears.

        A string in place of messages is sent as one user message; ``Role.build_messages`` adds a system
        prompt.

        Without ``seed``, the call uses the next call seed of the current episode. If the client does not
        report which policy version answered, the response gets the episode's version.

        Raises:
            InputError: there is no such role. (A call that gives ``model`` and ``return_tokens`` needs none.)
            TransientError: the client failed. Errors of this package that the client raises pass unchanged.
        """
        messages = as_messages(messages)
        says_all = model is not None and return_tokens is not None
        unknown = role_id is None or (says_all and role_id not in self.roles)
        role = None if unknown else self.get_role(role_id or "")
        agent = seated.get().get(role_id or "") if model is None else None
        temperature = _first(temperature, agent and agent.temperature, role and role.temperature, 1.0)
        max_tokens = _first(max_tokens, agent and agent.max_tokens, role and role.max_tokens)
        stop = _first(stop, agent and agent.stop, role and role.stop, ())
        model = _first(model, agent and agent.model, role and role.policy, self.model_without_role)
        if return_tokens is None:
            trained = model not in self.frozen if agent is None else agent.kind == "policy"
            return_tokens = role is not None and trained
        policy = (model or "default") if return_tokens and role_id is not None else ""
        episode = current_episode.get()
        if seed is None and episode is not None:
            seed = episode.next_call_seed()
        if not self._slots.take():
            await self._wait_for_slot()
        try:
            with _client_failures():
                response = await self.client.complete(
                    messages,
                    temperature=temperature,
                    max_tokens=max_tokens,
                    return_tokens=return_tokens,
                    model=model,
                    seed=seed,
                    **({"stop": tuple(stop)} if stop else {}),  # a client of one's own may not know it
                )
        finally:
            self._slots.release()
        if self._slots.contended:
            await asyncio.sleep(0)  # the next call starts before this episode continues: no slot idles
        version = response.policy_version
        if version is None and episode is not None:
            version = episode.meta.get("policy_version")
        response = replace(response, policy_version=version, policy=policy, temperature=temperature)
        if self.logger is not None:
            has_tokens = response.completion_token_ids is not None
            self.logger.log_model_call(role_id or "(no role)", messages, response.text, has_tokens)
        return response

    async def score(
        self, messages: Messages, completions: list[str], *, model: str | None = None
    ) -> list[float]:
        """Return the log-probability of each whole completion; see InferenceClient.score.

        The call takes a slot, as every other model call does.
        """
        if not self._slots.take():
            await self._wait_for_slot()
        try:
            with _client_failures():
                return await self.client.score(messages, completions, model=model or self.model_without_role)
        finally:
            self._slots.release()

    async def _wait_for_slot(self) -> None:
        """Wait for a slot. The episode's clock stops, because the episode does not cause this wait."""
        episode = current_episode.get()
        with episode.clock_stopped() if episode is not None else nullcontext():
            await self._slots.acquire()

    def get_batch(self) -> list[EpisodeRequest]:
        """Return the requests of the next step. Override; an empty list ends the run."""
        return []

    async def evaluate(self) -> dict[str, list[float]]:
        """Override to measure on held-out data. Return lists by name of the measure, one value per item."""
        return {}

    def outcomes(self, result: GenerateResult) -> list[dict[str, float]]:
        """Return the matches for the ratings, each as scores by role id. Override where rewards mislead."""
        return [rollout.rewards for rollout in result.all_rollouts() if len(rollout.rewards) > 1]

    def adjust_rewards(self, results: list[GenerateResult]) -> None:
        """Override to adjust rewards by what only a whole step shows, such as copies, before credit."""

    async def run_episode(
        self, episode_type: str, artifact: Any, meta: dict[str, Any] | None = None
    ) -> GenerateResult:
        """Run the episode registered as ``episode_type``, once.

        Raises:
            InputError: there is no such episode.
            TransientError: it took longer than ``episode_timeout``.
        """
        if episode_type not in self.episodes:
            known = ", ".join(self.episodes) or "none"
            raise InputError("episode_type", f"there is no episode {episode_type}", f"There are: {known}")
        return await self.episodes[episode_type].generate(self, artifact, meta)

    async def try_episode(
        self, episode_type: str, artifact: Any, meta: dict[str, Any] | None = None
    ) -> GenerateResult:
        """Like :meth:`run_episode`, but return a failure as a failed rollout; retry transient failures first.

        The failed rollout has no steps and no children; its ``error`` gives the reason. ``meta["retried"]``
        counts further attempts.

        Raises:
            InputError: the user's input is wrong, so no attempt could succeed.
        """
        meta = inherit(meta)
        return await self._retry(
            EpisodeRequest(episode_type, artifact, meta),
            lambda: self.run_episode(episode_type, artifact, meta),
        )

    async def _retry(
        self, request: EpisodeRequest, attempt: Callable[[], Awaitable[GenerateResult]]
    ) -> GenerateResult:
        """Attempt ``request`` until it succeeds or must fail; its ``meta`` belongs to this call."""
        meta, started_at = request.meta, time.time()
        self.count_started(1)
        if "rollout_id" not in meta:
            meta["rollout_id"] = uuid.uuid4().hex

        async def numbered(number: int) -> GenerateResult:
            if number:
                meta["retried"] = number
            return await attempt()

        result = await with_retries(numbered, self.retries)
        if isinstance(result, GenerateResult):
            return result
        episode = self.episodes.get(request.episode_type)
        failed = Rollout(
            episode_type=request.episode_type if episode is None else episode.episode_type,
            artifact=_data(request.artifact),
            meta=meta | {"error": result.reason, "error_type": result.error_type},
            id=meta["rollout_id"],
            started_at=started_at,
            ended_at=time.time(),
        )
        return GenerateResult(failed)

    def count_started(self, episodes: int) -> None:
        """Count episodes as started, in the arena and for whoever counts them in this context."""
        self.started += episodes
        if (counts := episode_counts.get()) is not None:
            counts["started"] += episodes

    async def _resolve_and_run(self, request: EpisodeRequest) -> GenerateResult:
        if request.agents:
            seated.set({**seated.get(), **request.agents})
        try:
            async with asyncio.timeout(self.episode_timeout):
                artifact = await self.resolve_artifact(request)
        except TimeoutError as error:
            raise TransientError(f"resolve_artifact took longer than {self.episode_timeout:g} s") from error
        return await self.run_episode(request.episode_type, artifact, request.meta)

    async def resolve_artifact(self, request: EpisodeRequest) -> Any:
        """Return what the episode receives for ``request.artifact``: an Artifact's data or the object itself.

        Override to fetch an artifact that the request only names. If that fails, the episode fails.
        """
        return _data(request.artifact)

    async def generate_rollouts(
        self, requests: list[EpisodeRequest], concurrency: int | None = None
    ) -> list[GenerateResult]:
        """Run all requests and return their results in the same order, failed ones included.

        At most as many outermost episodes run at once as model calls are allowed.

        Inside an episode, sub-episodes inherit its policy version and derive their seeds from its seed.
        Outside, a request without a seed gets one derived from the arena's seed, the step and its index.
        ``concurrency`` changes the maximum number of model calls in flight in the whole arena from now on;
        inside an episode it is ignored.

        Raises:
            InputError: the user's input is wrong; the other episodes are cancelled.
        """
        parent = current_episode.get()
        if concurrency is not None and parent is None:
            self.set_concurrency(concurrency)
        own = [replace(request, meta=inherit(request.meta)) for request in requests]
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
            return await self._generate_now(request)

    async def _generate_now(self, request: EpisodeRequest) -> GenerateResult:
        if self.logger is not None:
            rollout_id = request.meta.setdefault("rollout_id", uuid.uuid4().hex)
            self.logger.log_episode_start(request.episode_type, _data(request.artifact), rollout_id)
        result = await self._run_or_send(request)
        result.is_trainable = result.is_trainable and request.is_trainable
        if self.on_result is not None and "parent_id" not in result.rollout.meta:
            self.on_result(result)
        if self.logger is not None:
            rollout = result.rollout
            steps = len(rollout.steps)
            self.logger.log_episode_end(
                request.episode_type, rollout.id, rollout.rewards, steps, error=rollout.error
            )
        return result

    async def _run_or_send(self, request: EpisodeRequest) -> GenerateResult:
        if self.elsewhere is not None and current_episode.get() is None:
            return await self.elsewhere.play(replace(request, agents={**seated.get(), **request.agents}))
        return await self._retry(request, lambda: self._resolve_and_run(request))

    def build_training_batch(self, results: list[GenerateResult], verbose: bool = False) -> TrainingBatch:
        """Return one record for each step with token ids of every trainable rollout, including children."""
        batch = TrainingBatch(records_of(results), summary_of(results, self.step_num))
        if verbose or self.verbose:
            self.sanity_check_batch(results, batch)
        return batch

    def sanity_check_batch(
        self, results: list[GenerateResult], batch: TrainingBatch, num_examples: int = 2
    ) -> None:
        """Check that the batch agrees with the results, and write ``num_examples`` results to the log.

        Without a log they are written to standard error.

        Raises:
            SelfplayError: the batch and the results differ.
        """
        check_batch(results, batch)
        logger = self.logger or VerboseLogger()
        for result in results[:num_examples]:
            logger.log_result(result)
        logger.log_training_records(batch.records)

    async def step(self, concurrency: int | None = None, verbose: bool = False) -> TrainingBatch:
        """Play the requests of :meth:`get_batch` and return the batch to train on; see :meth:`play_step`."""
        batch, _ = await self.play_step(concurrency, verbose)
        return batch

    async def play_step(
        self, concurrency: int | None = None, verbose: bool = False
    ) -> tuple[TrainingBatch, list[GenerateResult]]:
        """Run one step (policy version, requests, rollouts, credit, batch); return batch and results."""
        number, requests = await self.begin_step()
        with infrequent_garbage_collection():
            results = await self.generate_rollouts(requests, concurrency)
            return self.end_step(number, results, verbose), results

    async def begin_step(self) -> tuple[int, list[EpisodeRequest]]:
        """Begin the next step; return its number and its requests, ready to be run."""
        number, version = self.step_num, await self.client.get_policy_version()
        requests = [
            replace(request, meta=self._tags(index, version) | request.meta)
            for index, request in enumerate(self.get_batch())
        ]
        if self.seat is not None:
            requests = self.seat(requests)
        if self.logger is not None:
            self.logger.log_step_start(number, len(requests))
        self.step_num += 1
        return number, requests

    def end_step(self, number: int, results: list[GenerateResult], verbose: bool = False) -> TrainingBatch:
        """Turn the results of step ``number`` into a batch. Steps end in the order in which they began."""
        self.adjust_rewards(results)
        apply_credit(results, self.credit_assigner.compute(results))
        batch = self.build_training_batch(results, verbose)
        batch.meta["step"] = number
        if self.logger is not None:
            self.logger.log_batch_summary(results)
            self.logger.log_step_end(number, batch.meta)
        return batch

    def _tags(self, index: int, version: int) -> dict[str, Any]:
        """Return the default ``meta`` of the step's request number ``index``."""
        return {
            "policy_version": version,
            "step": self.step_num,
            "seed": derive_seed(self.seed, "step", self.step_num, index),
            "rollout_id": f"step-{self.step_num:06d}-{index:05d}",
        }

    async def run(
        self, num_steps: int | None = None, concurrency: int | None = None, verbose: bool = False
    ) -> AsyncIterator[TrainingBatch]:
        """Yield one batch per step, for ``num_steps`` steps or until :meth:`get_batch` returns no requests.

        Raises:
            SelfplayError: every episode of a step failed and ``num_steps`` is ``None``, so the run would
                never end.
        """
        if self.logger is not None:
            self.logger.log_run_start(
                {
                    "arena": type(self).__name__,
                    "num_steps": num_steps,
                    "seed": self.seed,
                    "roles": list(self.roles),
                    "episodes": list(self.episodes),
                }
            )
        done = 0
        while num_steps is None or done < num_steps:
            batch = await self.step(concurrency, verbose)
            if not batch.meta["episodes"]:
                return
            if num_steps is None and batch.meta["failed"] == batch.meta["episodes"]:
                raise SelfplayError(f"every episode failed; the last: {batch.meta['last_error']}")
            yield batch
            done += 1

    async def startup(self) -> None:
        """Override to prepare the run, for example to fill stores. Awaited before the first step.

        On a cluster it is also awaited in each process that plays.
        """

    async def shutdown(self) -> None:
        """Override to clean up. Awaited after the last step, even if the run failed."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state of a checkpoint: the step number, the stores and the credit assigner's state."""
        return {
            "step_num": self.step_num,
            "stores": {name: store.state_dict() for name, store in self.stores.items()},
            "credit": self.credit_assigner.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from :meth:`state_dict`; call it after :meth:`startup`.

        Raises:
            InputError: the state holds a store that was not added to this arena.
        """
        self.step_num = state["step_num"]
        for name, saved in state["stores"].items():
            if name not in self.stores:
                raise InputError("checkpoint", f"the program has no store {name}", "Add it with add_store")
            self.stores[name].load_state_dict(saved)
        self.credit_assigner.load_state_dict(state["credit"])


def _first(*values: Any) -> Any:
    """Return the first value that is not ``None``."""
    return next((value for value in values if value is not None), None)


@contextmanager
def _client_failures() -> Iterator[None]:
    """Treat foreign errors of a client as transient; the class of our own errors says whether they are."""
    try:
        yield
    except Exception as error:
        if isinstance(error, SelfplayError) or is_transient(error):
            raise
        raise TransientError(f"the client failed: {reason_of(error)}") from error


def _data(artifact: Any) -> Any:
    return artifact.data if isinstance(artifact, Artifact) else artifact
