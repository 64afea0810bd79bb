"""The errors of actors: sparring's own arrive with their parts, others as one line."""

import asyncio
import pickle
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from ray.exceptions import ActorDiedError, ActorUnavailableError, GetTimeoutError, RayTaskError

from sparring.cluster.actor_classes import Hosted
from sparring.cluster.calls import error_of
from sparring.cluster.job_workers import ClusterWorkers
from sparring.compat.unstable import StepBuffer
from sparring.core import InputError, SparringError


def raised_in_an_actor(cause: Exception) -> Exception:
    """Return what a call raises here if an actor raised ``cause``."""
    return RayTaskError(
        "update()", f"Traceback: {cause}", pickle.loads(pickle.dumps(cause))
    ).as_instanceof_cause()


def test_an_actors_own_error_arrives_with_all_its_parts():
    error = error_of("Learner", raised_in_an_actor(InputError("model.name", "no model 'x'", "Name another.")))
    assert isinstance(error, InputError)
    assert (error.field, error.problem, error.fix) == ("model.name", "no model 'x'", "Name another.")


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (raised_in_an_actor(ZeroDivisionError("by zero\nmore")), "Learner failed: by zero"),
        (raised_in_an_actor(KeyError("\x1b[2Jname")), "Learner failed: 'x1b[2Jname'"),
        (ActorDiedError(), "Learner died and cannot come back (The actor died unexpectedly before"),
        (ActorUnavailableError("Socket closed.", None), "Learner is lost ("),
    ],
)
def test_any_other_error_is_one_printable_line_with_the_actors_name(error, line):
    said = str(error_of("Learner", error))
    assert said.replace("\\", "").startswith(line)
    assert said.isprintable()


async def test_what_cannot_be_built_is_tried_once_and_said_to_every_call():
    tries = []

    def build() -> None:
        tries.append("once")
        raise SparringError("the model is missing")

    hosted = Hosted(build)
    calls = (hosted.check(), hosted.call("update", 1), hosted.call("saved"))
    said = await asyncio.gather(*calls, return_exceptions=True)
    assert [str(one) for one in said] == ["the model is missing"] * 3
    assert tries == ["once"]


def test_a_tracker_that_does_not_answer_is_an_error_of_whoever_is_started_with_it(monkeypatch):
    def silent(reference: object, *, timeout: float | None = None) -> None:
        assert timeout is not None, "waits forever"
        raise GetTimeoutError

    monkeypatch.setattr(ray, "get", silent)
    tracker = SimpleNamespace(run_directory=SimpleNamespace(remote=object))
    with pytest.raises(SparringError, match="the tracker has not answered for 300 s"):
        StepBuffer.arguments(10, tracker).for_actor()


async def test_a_job_whose_actor_is_lost_with_the_clusters_head_waits_for_the_head_only_so_long(
    tmp_path, monkeypatch
):
    async def started() -> None: ...

    async def lost(directory: str) -> None:
        raise ActorDiedError

    actor = SimpleNamespace(__ray_ready__=SimpleNamespace(remote=started), train=SimpleNamespace(remote=lost))
    killed: list[Any] = []
    monkeypatch.setattr(ray, "remote", lambda _: SimpleNamespace(options=lambda **_: made))
    monkeypatch.setattr(ray, "kill", killed.append)
    made = SimpleNamespace(remote=lambda: actor)
    with pytest.raises(SparringError, match=r"the head of the cluster, 127\.0\.0\.1:1, has not answered"):
        await ClusterWorkers({}, "127.0.0.1:1", patience=0.05).train(tmp_path)
    assert killed == [actor]
