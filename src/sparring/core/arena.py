"""Arena: chooses what is played, step by step, and turns the results into training batches."""

import warnings
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

from sparring.core.artifacts import ArtifactStore
from sparring.core.client import InferenceClient
from sparring.core.concurrency import EPISODE_TIMEOUT, MAX_CALLS, RETRIES
from sparring.core.credit.assigners import CreditAssigner, GRPOCredit, assign, trained_rollouts
from sparring.core.episode_runner import EpisodeRunner
from sparring.core.errors import InputError, SparringError
from sparring.core.garbage_collection import infrequent_garbage_collection
from sparring.core.own_code import check_is_awaited, list_of, method_of, returned, state_of
from sparring.core.played import check_played
from sparring.core.records import check_batch, records_of, rewarded_without_step, summary_of, why_empty
from sparring.core.seeds import derive_seed
from sparring.core.types import EpisodeRequest, GenerateResult, TrainingBatch
from sparring.core.verbose_logger import VerboseLogger


class Arena(EpisodeRunner):
    """Persistent state and orchestration. The state of an episode is transient and is kept elsewhere.

    Override :meth:`get_batch` to choose what is played, and :meth:`evaluate` to measure.

    Args:
        client: answers model calls.
        credit_assigner: turns rewards into advantages; GRPOCredit by default.
        verbose: print events and check every batch; events are written to ``logger`` in any case.
        max_calls: maximum number of leaf model calls in flight, so nested episodes can neither deadlock
            nor multiply the load.
        episode_timeout: time limit of one attempt at an episode, in seconds, without the wait for
            sub-episodes.
        retries: maximum number of further attempts, with the same seed, after a transient failure.
        seed: root of the seeds of the episodes that :meth:`step` runs.
        logger: where events are written.

    ``seat`` may give the requests of a step their agents. ``critics`` are the policies that learn with a
    critic.
    """

    def __init__(
        self,
        client: InferenceClient,
        credit_assigner: CreditAssigner | None = None,
        verbose: bool = False,
        *,
        max_calls: int = MAX_CALLS,
        episode_timeout: float = EPISODE_TIMEOUT,
        retries: int = RETRIES,
        seed: int = 0,
        logger: VerboseLogger | None = None,
    ) -> None:
        logger = logger or (VerboseLogger() if verbose else None)
        super().__init__(client, max_calls, logger, episode_timeout, retries, seed)
        self.credit_assigner = credit_assigner or GRPOCredit()
        self.critics: frozenset[str] = frozenset()
        self.verbose = verbose
        self.stores: dict[str, ArtifactStore] = {}
        self.seat: Callable[[list[EpisodeRequest]], list[EpisodeRequest]] | None = None

    def add_store(self, name: str, store: ArtifactStore | None = None) -> ArtifactStore:
        """Register a store under a name and return it; if none is given, create an unbounded one."""
        self.stores[name] = store if store is not None else ArtifactStore(seed=derive_seed(self.seed, name))
        return self.stores[name]

    def get_batch(self) -> list[EpisodeRequest]:
        """Return the requests of the next step. Override; without requests, a run ends with an error."""
        return []

    async def evaluate(self) -> dict[str, list[float]]:
        """Override to measure on held-out data. Return lists by name of the measure, one value per item, none
        if there is none yet."""
        return {}

    def evaluation_request(self, episode_type: str, artifact: Any, *path: int | str) -> EpisodeRequest:
        """Return a request that is not trained on, with a seed and an id that follow from ``path``."""
        name = "-".join(f"{one:05d}" if isinstance(one, int) else one for one in path)
        meta = {"seed": derive_seed(self.seed, "evaluation", *path), "rollout_id": f"evaluation-{name}"}
        return EpisodeRequest(episode_type, artifact, meta, is_trainable=False)

    def outcomes(self, result: GenerateResult) -> list[dict[str, float]]:
        """Return the matches for the ratings, each as scores by role id. Override where rewards mislead."""
        return [rollout.rewards for rollout in result.all_rollouts() if len(rollout.rewards) > 1]

    def adjust_rewards(self, results: list[GenerateResult]) -> None:
        """Override to adjust rewards by what only a whole step shows, such as copies, before credit."""

    def build_training_batch(self, results: list[GenerateResult], verbose: bool = False) -> TrainingBatch:
        """Return one record for each step with token ids of every trainable rollout, including children."""
        records = records_of(results)
        counts = {"num_results": len(results), "num_records": len(records)}
        batch = TrainingBatch(records, summary_of(results, self.step_num) | counts)
        if verbose or self.verbose:
            self.sanity_check_batch(results, batch)
        return batch

    def sanity_check_batch(
        self, results: list[GenerateResult], batch: TrainingBatch, num_examples: int = 2
    ) -> None:
        """Raise a SparringError if the batch and the results differ, and log ``num_examples`` results."""
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
        """Run one step (policy version, requests, rollouts, credit, batch); return batch and results.

        A batch without records, and a role that is rewarded but has no step, are warnings of Python's.
        """
        number, requests = await self.begin_step()
        with infrequent_garbage_collection():
            results = await self.generate_rollouts(requests, concurrency)
            batch = self.end_step(number, results, verbose)
        if not batch.records:
            warnings.warn(f"nothing can be learned from step {number}: {why_empty(results)}", stacklevel=2)
        for role in rewarded_without_step(results):
            advice = "append response.to_step(role_id, messages) to state.trajectory"
            warnings.warn(f"{role} gets rewards but has no step: {advice}", stacklevel=2)
        return batch, results

    async def begin_step(self) -> tuple[int, list[EpisodeRequest]]:
        """Begin the next step; return its number and its requests. :meth:`end_step` must come before another
        begins."""
        number, version = self.step_num, await self.client.get_policy_version()
        asked = list_of(EpisodeRequest, self.get_batch(), f"what {method_of(self, 'get_batch')} returned")
        requests = [
            replace(one, meta=self._tags(index, version) | one.meta) for index, one in enumerate(asked)
        ]
        if self.seat is not None:
            requests = self.seat(requests)
        if self.logger is not None:
            self.logger.log_step_start(number, len(requests))
        return number, requests

    def end_step(self, number: int, results: list[GenerateResult], verbose: bool = False) -> TrainingBatch:
        """Turn the results of step ``number`` into a batch; extend it to keep what a step has shown.

        Training calls it after :meth:`begin_step` and the episodes, not :meth:`play_step`.
        """
        nothing = self.adjust_rewards(results)  # type: ignore[func-returns-value]  # or own code is async
        check_is_awaited(nothing, method_of(self, "adjust_rewards"))
        ids = [rollout.id for rollout in trained_rollouts(results) if rollout.steps]
        if len(set(ids)) < len(ids):
            raise SparringError("several rollouts have the same id, so their advantages are mixed up")
        for rollout in trained_rollouts(results):
            check_played(rollout)
        assign(self.credit_assigner, results, self.critics)
        made = self.build_training_batch(results, verbose)
        batch = returned(made, TrainingBatch, method_of(self, "build_training_batch"))
        batch.meta["step"] = number
        if self.logger is not None:
            self.logger.log_batch_summary(results)
            self.logger.log_step_end(number, batch.meta)
        self.step_num = number + 1
        return batch

    def _tags(self, index: int, version: int) -> dict[str, Any]:
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

        If every episode of a step failed and ``num_steps`` is ``None``, raises a SparringError: the run would
        never end.
        """
        if self.logger is not None:
            settings = {"arena": type(self).__name__, "num_steps": num_steps, "seed": self.seed}
            self.logger.log_run_start(settings | {"roles": [*self.roles], "episodes": [*self.episodes]})
        done = 0
        while num_steps is None or done < num_steps:
            batch = await self.step(concurrency, verbose)
            if not batch.meta["episodes"]:
                return
            if num_steps is None and batch.meta["failed"] == batch.meta["episodes"]:
                raise SparringError(f"every episode failed; the last: {batch.meta['last_error']}")
            yield batch
            done += 1

    async def startup(self) -> None:
        """Override to prepare the run, for example to fill stores. Awaited before the first step; on a
        cluster also in each process that plays, again if that is restarted."""

    async def shutdown(self) -> None:
        """Override to clean up. Awaited after the last step, even if the run failed; on a cluster only in the
        process of the command."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state of a checkpoint: the step number, the stores and the credit assigner's state."""
        return {
            "step_num": self.step_num,
            "stores": {
                name: returned(store.state_dict(), dict, method_of(store, "state_dict"))
                for name, store in self.stores.items()
            },
            "credit": state_of(self.credit_assigner),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from :meth:`state_dict`, after :meth:`startup`; an unknown store raises an InputError."""
        self.step_num = state["step_num"]
        for name, saved in state["stores"].items():
            if name not in self.stores:
                raise InputError("checkpoint", f"the program has no store {name}", "Add it with add_store")
            self.stores[name].load_state_dict(saved)
        self.credit_assigner.load_state_dict(state["credit"])
