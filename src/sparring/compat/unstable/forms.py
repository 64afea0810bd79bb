"""The actors of UnstableBaselines, started as Ray's own: ``Tracker.options(name="Tracker").remote(...)``.

A form takes the arguments that UnstableBaselines gives, checks them before any process is started, and starts
an actor with what that needs. Parameters that UnstableBaselines does not have are keyword-only.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from typing import Any, ClassVar, Protocol

import ray
from ray.actor import ActorHandle
from ray.exceptions import GetTimeoutError, RayError

from sparring.cluster.actor_classes import restarting
from sparring.cluster.calls import Handle, Named, error_of
from sparring.cluster.placement import requested
from sparring.cluster.view import HandleSource
from sparring.collection import buffers
from sparring.collection.transforms import FinalRewardTransform, SamplingRewardTransform, StepRewardTransform
from sparring.core import InputError, SparringError

TRACKER_SECONDS = 300.0
"""Seconds that a tracker has to start and to name its directory."""


class Arguments(Protocol):
    """The arguments of UnstableBaselines for an actor."""

    def for_actor(self) -> dict[str, Any]:
        """Return the arguments of the actor's own class."""


class Form:
    """A class of actors with UnstableBaselines' arguments, which Ray restarts after a kill.

    Args:
        arguments: takes the arguments of UnstableBaselines, and checks them.
        options: Ray's options.
    """

    def __init__(self, actor: type, arguments: Callable[..., Arguments], **options: Any) -> None:
        self.actor = actor
        self.arguments = arguments
        self._options = options

    def options(self, **options: Any) -> "Form":
        """Return this form with other Ray options, such as ``name``, ``num_gpus`` or ``resources``."""
        return Form(self.actor, self.arguments, **(self._options | options))

    def remote(self, *args: Any, **kwargs: Any) -> Any:
        """Start the actor; return its handle.

        Raises:
            InputError: an argument is impossible, or the cluster does not have this many GPUs.
        """
        arguments = self.arguments(*args, **kwargs)
        wanted, there = self._options.get("num_gpus") or 0, gpus_of_cluster()
        if wanted > there:  # Ray would wait for them forever
            problem = f"{requested(wanted, 'GPU')} and the cluster has {there:g}"
            raise InputError("num_gpus", problem, "Request fewer")
        return restarting(self.actor, **self._options).remote(**arguments.for_actor())


@dataclass(frozen=True)
class TrackerArguments:
    """Those of ``Tracker``, which collects the metrics of a run."""

    run_name: str
    wandb_project: str | None = None
    _: KW_ONLY
    directory: str | None = None
    tensorboard: bool = False

    def for_actor(self) -> dict[str, Any]:
        """See :class:`TrackerService`."""
        return dict(vars(self))


@dataclass(frozen=True)
class StepBufferArguments:
    """Those of ``StepBuffer``."""

    kind: ClassVar[type[buffers.BaseBuffer]] = buffers.StepBuffer

    max_buffer_size: int
    tracker: Any = None
    final_reward_transformation: FinalRewardTransform | None = None
    step_reward_transformation: StepRewardTransform | None = None
    sampling_reward_transformation: SamplingRewardTransform | None = None
    buffer_strategy: str = "random"
    _: KW_ONLY
    seed: int = 0

    def for_actor(self) -> dict[str, Any]:
        """See :class:`BufferActor`."""
        tracker, run = named(self.tracker), run_directory(self.tracker)
        build = partial(self.kind, **{name: one for name, one in vars(self).items() if name != "tracker"})
        return {"build": build, "tracker": tracker, "run": run}


class EpisodeBufferArguments(StepBufferArguments):
    """Those of ``EpisodeBuffer``."""

    kind = buffers.EpisodeBuffer


@dataclass(frozen=True)
class ModelPoolArguments:
    """Those of ``ModelPool``."""

    sample_mode: str
    max_active_lora: int
    tracker: Any = None
    lag_range: tuple[int, int] = (1, 7)
    _: KW_ONLY
    seed: int = 0

    def for_actor(self) -> dict[str, Any]:
        """See :class:`ModelPoolActor`."""
        return vars(self) | {"tracker": named(self.tracker), "run": run_directory(self.tracker)}


def named(handle: Any) -> Handle:
    """Return the name of an actor that has one; any other argument unchanged."""
    if isinstance(handle, ActorHandle):
        for one in ray.util.list_named_actors(all_namespaces=True):
            with suppress(ValueError):  # it has died meanwhile
                if ray.get_actor(one["name"], one["namespace"]) == handle:
                    return Named(one["name"], one["namespace"])
    return handle


def with_names(arguments: Any) -> Any:
    """Return the arguments of an actor with the names of the actors among them."""
    services = ("step_buffer", "model_pool", "tracker")
    return replace(arguments, **{name: named(getattr(arguments, name)) for name in services})


def run_directory(tracker: Any) -> str | None:
    """Return the directory that a tracker has chosen for the run; ``None`` without a tracker.

    Raises:
        SparringError: the tracker's own, or it does not answer in time.
    """
    if tracker is None:
        return None
    try:
        directory: str = ray.get(tracker.run_directory.remote(), timeout=TRACKER_SECONDS)
    except GetTimeoutError as error:
        raise SparringError(f"the tracker has not answered for {TRACKER_SECONDS:g} s") from error
    except RayError as error:
        raise error_of("the tracker", error) from error
    return directory


def gpus_of_cluster() -> float:
    """Return the number of GPUs of all nodes."""
    resources: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
    return resources.get("GPU", 0.0)


class TerminalInterface:
    """Shows a run whose tracker is a Ray actor, like UnstableBaselines' class of this name."""

    def __init__(self, tracker: Any) -> None:
        self.tracker = tracker

    def run(self) -> None:
        """Show the run until a key ends the view; see docs/howto-watch.md."""
        from sparring.view.watch import terminal_interface

        source = HandleSource(self.tracker)
        terminal_interface.TerminalInterface(source).run()
