"""The errors of actors: sparring's own arrive with their parts, others as one line."""

import asyncio
import pickle

import pytest
from ray.exceptions import ActorDiedError, ActorUnavailableError, RayTaskError

from sparring.cluster.actor_classes import Hosted
from sparring.cluster.calls import error_of
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
