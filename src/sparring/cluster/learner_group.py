"""Data-parallel learning under Ray: rank 0 in the learner's own process, the others in worker actors.

A process may die at any moment. An update happens on rank 0 completely or not at all, so the state of rank 0
is always valid: when the group breaks, Ray restarts the processes that died, all ranks load rank 0's state,
and the update is repeated if rank 0 has not made it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import ray
import torch
from numpy.typing import NDArray
from ray.exceptions import RayError
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from sparring.cluster.elsewhere import CommandHost, own_scratch, read_own_copies, wait_for, with_copies
from sparring.cluster.engines.host import say_nothing
from sparring.cluster.placement import Sharing, cores_here
from sparring.collection.serialization import PackedRecords
from sparring.config import Config
from sparring.core import SparringError, TrainingRecord
from sparring.core.adapters import TRAINED
from sparring.learn.data_parallel import DataParallel, PeerLost, host_store, reach_store
from sparring.learn.learner import Learner

Build = Callable[[], dict[str, Learner]]
"""Builds the learners of all policies, which share one model, by policy. Ray must be able to pickle it."""

Result = TypeVar("Result")

ATTEMPTS = 3
"""How many times an update is tried before the run ends."""


def learners_from_config(
    config: Config, policies: Sequence[str] = (TRAINED,), command: CommandHost | None = None
) -> dict[str, Learner]:
    """Build the learners that a configuration describes, by policy; they share one model.

    If it does not give the number of threads, they compute on their share of their node.

    Raises:
        InputError: an adapter of ``[start]`` or ``[frozen]`` cannot be used.
    """
    from sparring.run.assembly import build_learner, build_policy
    from sparring.run.given_adapters import load_given

    files = None if command is None else command.files_if_elsewhere()
    if command is not None and files is not None:
        read_own_copies(command)
        config = wait_for(with_copies(files, config, own_scratch()))
    threads = config.model.threads or cores_here(Sharing.of(config))
    settings = config.model.model_copy(update={"threads": threads})
    model = build_policy(
        settings, config.lora, config.seed, say_nothing, policies, shard_base=config.ray.shard_base
    )
    load_given(config, model)
    return {policy: build_learner(config, model, policy) for policy in policies}


@dataclass(frozen=True)
class LearnerState:
    """The state that another learner needs to continue: ``Learner.tensors`` as arrays, and the counters."""

    tensors: dict[str, NDArray[Any]]
    version: int
    samples_seen: int
    started: int

    @classmethod
    def of(cls, learner: Learner) -> "LearnerState":
        """Return the state of ``learner``."""
        tensors = {name: tensor.numpy() for name, tensor in learner.tensors().items()}
        return cls(tensors, learner.version, learner.samples_seen, learner.started)

    def load_into(self, learner: Learner) -> None:
        """Load this state into ``learner``. Arrays received through Ray are read-only, so they are copied."""
        tensors = {name: torch.tensor(array) for name, array in self.tensors.items()}
        learner.load_tensors(tensors, self.version, self.samples_seen, self.started)


class LearnerWorker:
    """The learners of one rank above 0; the group runs it as an actor."""

    def __init__(self, build: Build) -> None:
        self._learners = build()
        self._group: DataParallel | None = None
        for learner in self._learners.values():
            learner.average = None  # only rank 0's average is used and saved

    def ready(self) -> None:
        """Return once the learners are built; may be called any number of times."""

    def join(
        self,
        rank: int,
        size: int,
        address: str,
        port: int,
        timeout_seconds: float,
        states: dict[str, LearnerState],
    ) -> None:
        """Load rank 0's ``states``, by policy, and join the group whose store rank 0 serves.

        Raises:
            PeerLost: the other ranks did not join in time.
        """
        self._set_group(None)
        for policy, state in states.items():
            state.load_into(self._learners[policy])
        store = reach_store(address, port, timeout_seconds)
        self._set_group(_group_of(self._learners, rank, size, store, timeout_seconds))

    def update(self, policy: str, records: PackedRecords) -> None:
        """Make this rank's part of an update of one policy; see ``Learner.update``."""
        self._learners[policy].update(records[policy])

    def serve(self) -> None:
        """Give rank 0 this rank's parts of a sharded base while it computes alone."""
        if self._group is not None:
            self._group.serve()

    def _set_group(self, group: DataParallel | None) -> None:
        if self._group is not None:
            self._group.close()
        self._group = group
        for learner in self._learners.values():
            learner.group = group


class LearnerGroup:
    """``size`` learners that make each update together; this process is rank 0 and owns the result.

    Its methods block: in an actor with an event loop, call them in a thread. A group of one is just a
    learner.

    Args:
        cpus: CPUs of each worker.
        gpus: GPUs of each worker.
        timeout_seconds: how long learners wait for each other, including the start of a worker.
        placement_group: a group whose bundles place the workers by rank; without it Ray places them.

    Attributes:
        learners: rank 0's learners, by policy. Load a checkpoint into them before the group starts.
    """

    def __init__(
        self,
        build: Build,
        size: int,
        *,
        cpus: float,
        gpus: float,
        timeout_seconds: float,
        placement_group: PlacementGroup | None = None,
    ) -> None:
        self.learners = build()
        self.size = size
        self._build = build
        self._resources = {"num_cpus": cpus, "num_gpus": gpus}
        self._timeout_seconds = timeout_seconds
        self._placement_group = placement_group
        self._workers: list[Any] = []
        self._group: DataParallel | None = None

    def start(self) -> None:
        """Start the workers and form the group from this rank's state; otherwise the first update does.

        Raises:
            SparringError: the group could not be formed in three attempts.
        """
        if self.size > 1:
            self._insist(self._form)

    def compute(self, work: Callable[[], Result]) -> Result:
        """Do ``work`` here, which runs the model; the workers give their parts of a sharded base meanwhile.

        Raises:
            SparringError: workers were lost in three attempts.
        """
        base = next(iter(self.learners.values())).policy.sharded
        return work() if base is None or base.is_whole else self._insist(partial(self._compute, work))

    def update(self, records: list[TrainingRecord], policy: str = TRAINED) -> dict[str, float]:
        """Make one update of one policy on all ranks; return rank 0's metrics. See ``Learner.update``.

        Raises:
            SparringError: the learner raised it, or workers were lost in three attempts.
        """
        if self.size == 1:
            return self.learners[policy].update(records)
        return self._insist(partial(self._update, records, policy))

    def start_again(self, policy: str, tensors: dict[str, torch.Tensor]) -> None:
        """Let one policy begin again; see ``Learner.start_again``. Workers load it before the next update."""
        self.learners[policy].start_again(tensors)
        self._leave()

    def close(self) -> None:
        """End the workers."""
        self._leave()
        for worker in self._workers:
            ray.kill(worker)
        self._workers = []

    def _worker(self, rank: int) -> Any:
        group = self._placement_group
        strategy = PlacementGroupSchedulingStrategy(group, rank) if group is not None else None
        options = {"max_restarts": -1, "scheduling_strategy": strategy}
        return ray.remote(LearnerWorker).options(**self._resources, **options).remote(self._build)

    def _insist(self, work: Callable[[], Result]) -> Result:
        """Do ``work``, and repeat it if a learner is lost."""
        lost: Exception | None = None
        for _ in range(ATTEMPTS):
            try:
                return work()
            except (PeerLost, RayError) as error:
                self._leave()
                lost = error
        raise SparringError(
            f"learners were lost in {ATTEMPTS} attempts at one update ({_last_line(lost)})"
        ) from lost

    def _form(self) -> None:
        self._workers = self._workers or [self._worker(rank) for rank in range(1, self.size)]
        # The only call that Ray repeats after a restart: a restarted worker is in no group.
        self._wait([worker.ready.options(max_task_retries=-1).remote() for worker in self._workers])
        states = ray.put({policy: LearnerState.of(learner) for policy, learner in self.learners.items()})
        address: str = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
        store = host_store(address, self._timeout_seconds)
        joins = [
            worker.join.remote(rank, self.size, address, store.port, self._timeout_seconds, states)
            for rank, worker in enumerate(self._workers, start=1)
        ]
        self._group = _group_of(self.learners, 0, self.size, store, self._timeout_seconds)
        self._wait(joins)
        for learner in self.learners.values():
            learner.group = self._group

    def _update(self, records: list[TrainingRecord], policy: str) -> dict[str, float]:
        reference = ray.put(PackedRecords({policy: records}))
        return self._together(
            lambda worker: worker.update.remote(policy, reference),
            lambda group: self.learners[policy].update(records),
        )

    def _compute(self, work: Callable[[], Result]) -> Result:
        def work_and_serve(group: DataParallel) -> Result:
            try:
                return work()
            finally:
                group.serve()

        return self._together(lambda worker: worker.serve.remote(), work_and_serve)

    def _together(self, call: Callable[[Any], Any], work: Callable[[DataParallel], Result]) -> Result:
        """Do ``work`` here while every worker does what it is called for; form the group first if need be."""
        if self._group is None:
            self._form()
        assert self._group is not None
        calls = [call(worker) for worker in self._workers]
        try:
            return work(self._group)
        except PeerLost:
            self._leave()
            raise
        finally:
            self._settle(calls)

    def _settle(self, updates: list[Any]) -> None:
        """Wait for the workers. If one fails, rank 0's update is still valid: the others load its state."""
        try:
            self._wait(updates)
        except (PeerLost, RayError):
            self._leave()

    def _wait(self, calls: list[Any]) -> None:
        """Wait for one call to each worker; one that does not answer in time is restarted."""
        _, late = ray.wait(calls, num_returns=len(calls), timeout=self._timeout_seconds)
        for worker, call in zip(self._workers, calls, strict=True):
            if call in late:
                ray.kill(worker, no_restart=False)
        if late:
            raise PeerLost(f"a learner did not answer within {self._timeout_seconds:g} s")
        ray.get(calls)

    def _leave(self) -> None:
        """Leave the group; workers that wait in it for this rank stop waiting."""
        for learner in self.learners.values():
            learner.group = None
        if self._group is not None:
            self._group.close()
        self._group = None


def _group_of(
    learners: dict[str, Learner], rank: int, size: int, store: TCPStore, timeout_seconds: float
) -> DataParallel:
    """Join the group of the learners of all policies, which share one model."""
    model = next(iter(learners.values())).policy
    return DataParallel(
        rank, size, store, device=model.device, timeout_seconds=timeout_seconds, base=model.sharded
    )


def _last_line(error: Exception | None) -> str:
    """Return the last line: Ray's messages are traces, with the cause at the end."""
    return (str(error).strip().splitlines() or [type(error).__name__])[-1].strip()
