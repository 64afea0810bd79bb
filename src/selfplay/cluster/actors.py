"""The services as Ray actors: how each is built in its own process, and rebuilt after a kill.

Every actor is crash-only. Ray runs its constructor again, which restores the state from the run's directory,
and repeats the calls that were not answered; the services recognise a repeated call.
"""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import ray
from ray.actor import ActorHandle

from selfplay.cluster.engines.adapter_files import AdapterFiles
from selfplay.cluster.engines.service import EngineService
from selfplay.cluster.engines.settings import EngineSettings
from selfplay.cluster.handles import Named, found
from selfplay.cluster.placement import requested
from selfplay.cluster.remote_logger import RemoteLogger
from selfplay.cluster.services.buffer import BufferService
from selfplay.cluster.services.pool import PoolService
from selfplay.cluster.services.tracker import TrackerService
from selfplay.core import InputError
from selfplay.core.garbage import raise_collection_thresholds
from selfplay.replay.batch_log import BatchLog
from selfplay.replay.buffers import BaseBuffer, EpisodeBuffer, StepBuffer
from selfplay.replay.transforms_final import FinalRewardTransform
from selfplay.replay.transforms_sampling import SamplingRewardTransform
from selfplay.replay.transforms_step import StepRewardTransform
from selfplay.training.epoch import Epoch

MAX_RESTARTS = 20
STATE = "state"
"""Directory of a run in which the actors keep the state that they restore after a kill."""


class ActorForm:
    """A class that becomes a Ray actor, used like Ray's own: ``.options(name="Tracker").remote(...)``.

    Ray runs the calls of a class with coroutines on one event loop, and those of any other class one at a
    time: a service never runs two calls in parallel.

    Before anything is started, ``check`` sees the arguments, and a request for GPUs that no node has is
    rejected, because Ray would wait for them forever. An actor with a ``scheduling_strategy`` may wait:
    :class:`Placement` has requested its resources.

    Args:
        cls: the class.
        check: called with the constructor's arguments.
        in_run: whether the constructor also takes ``run``, the directory that the tracker has chosen.
        options: Ray's options, unless the user sets them.
    """

    def __init__(
        self,
        cls: type,
        check: Callable[..., None] | None = None,
        *,
        in_run: bool = False,
        **options: Any,
    ) -> None:
        self.cls = cls
        self.check = check
        self.in_run = in_run
        self._options = {
            "max_restarts": MAX_RESTARTS,
            "max_task_retries": -1,
            "num_cpus": 0,
        } | options

    def options(self, **options: Any) -> "ActorForm":
        """Return the same class with other Ray options, such as ``name``, ``num_gpus`` or ``resources``."""
        return ActorForm(self.cls, self.check, in_run=self.in_run, **(self._options | options))

    def remote(self, *args: Any, **kwargs: Any) -> Any:
        """Start an actor; return its handle.

        Raises:
            InputError: an argument is wrong, or the cluster does not have this many GPUs.
        """
        if self.check is not None:
            self.check(*args, **kwargs)
        wanted = self._options.get("num_gpus") or 0
        there = gpus_of_cluster()
        if wanted > there and "scheduling_strategy" not in self._options:
            raise InputError(
                "num_gpus", f"{requested(wanted, 'GPU')} and the cluster has {there:g}", "Request fewer"
            )
        if self.in_run:
            tracker = inspect.signature(self.cls).bind(*args, **kwargs).arguments.get("tracker")
            if tracker is not None:
                kwargs["run"] = ray.get(tracker.run_directory.remote())
        actor: Any = ray.remote(self.cls).options(**self._options)
        handle = actor.remote(*map(_by_name, args), **{name: _by_name(one) for name, one in kwargs.items()})
        if self._options.get("name"):
            namespace = self._options.get("namespace") or ray.get_runtime_context().namespace
            _names[handle] = Named(self._options["name"], namespace)
        return handle


_names: WeakKeyDictionary[Any, Named] = WeakKeyDictionary()


def gpus_of_cluster() -> float:
    """Return the number of GPUs of all nodes."""
    resources: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
    return resources.get("GPU", 0.0)


def _by_name(argument: Any) -> Any:
    if isinstance(argument, tuple | list):
        return type(argument)(map(_by_name, argument))
    return _names.get(argument, argument) if isinstance(argument, ActorHandle) else argument


class TrackerActor(TrackerService):
    """:class:`TrackerService` as an actor; after a restart it finds the directory that it chose."""

    def __init__(
        self,
        run_name: str,
        wandb_project: str | None = None,
        *,
        directory: str | None = None,
        tensorboard: bool = False,
        epoch: Epoch | None = None,
    ) -> None:
        raise_collection_thresholds()
        owner = ray.get_runtime_context().get_actor_id()
        super().__init__(
            run_name,
            wandb_project,
            directory=directory,
            tensorboard=tensorboard,
            owner=owner,
            epoch=epoch,
        )


class _BufferActor(BufferService):
    """The common part of the two buffer actors."""

    kind: type[BaseBuffer] = StepBuffer

    def __init__(
        self,
        max_buffer_size: int,
        tracker: Any = None,
        final_reward_transformation: FinalRewardTransform | None = None,
        step_reward_transformation: StepRewardTransform | None = None,
        sampling_reward_transformation: SamplingRewardTransform | None = None,
        buffer_strategy: str = "random",
        *,
        seed: int = 0,
        max_staleness: int | None = None,
        in_order: bool = False,
        log_batches: bool = True,
        run: str | None = None,
        epoch: Epoch | None = None,
    ) -> None:
        raise_collection_thresholds()
        tracker = found(tracker)
        buffer = self.kind(
            max_buffer_size,
            RemoteLogger(tracker) if tracker is not None else None,
            final_reward_transformation,
            step_reward_transformation,
            sampling_reward_transformation,
            buffer_strategy,
            seed=seed,
            batch_log=BatchLog(Path(run) / "batches") if run is not None and log_batches else None,
        )
        super().__init__(
            buffer,
            max_staleness=max_staleness,
            in_order=in_order,
            directory=state_directory(run, "buffer"),
            rollouts=str(Path(run) / "rollouts") if run is not None else None,
            epoch=epoch,
        )


class StepBufferActor(_BufferActor):
    """:class:`StepBuffer` as an actor."""


class EpisodeBufferActor(_BufferActor):
    """:class:`EpisodeBuffer` as an actor."""

    kind = EpisodeBuffer


class ModelPoolActor(PoolService):
    """:class:`ModelPool` as an actor."""

    def __init__(
        self,
        sample_mode: str,
        max_active_lora: int,
        tracker: Any = None,
        lag_range: tuple[int, int] = (1, 7),
        *,
        seed: int = 0,
        run: str | None = None,
        epoch: Epoch | None = None,
    ) -> None:
        raise_collection_thresholds()
        super().__init__(
            sample_mode,
            max_active_lora,
            found(tracker),
            lag_range,
            seed=seed,
            directory=state_directory(run, "pool"),
            epoch=epoch,
        )


class EngineActor(EngineService):
    """An inference actor. The first request or :meth:`start` loads its model."""

    def __init__(
        self, settings: EngineSettings, name: str, tracker: Any = None, adapter_files: Any = None
    ) -> None:
        raise_collection_thresholds()
        super().__init__(
            settings.build_host(found(adapter_files)),
            name,
            found(tracker),
            [int(gpu) for gpu in ray.get_gpu_ids()],
            settings.inference.temperature,
        )


class AdapterFilesActor(AdapterFiles):
    """:class:`AdapterFiles` as an actor."""

    def __init__(self) -> None:
        super().__init__(ray.put)


def state_directory(run: str | None, kind: str) -> str | None:
    """Return the directory of this actor's state; its name is the actor's if it has one, else unique."""
    if run is None:
        return None
    context = ray.get_runtime_context()
    return str(Path(run) / STATE / (context.get_actor_name() or f"{kind}-{context.get_actor_id()}"))


EngineForm = ActorForm(EngineActor, max_task_retries=0)
