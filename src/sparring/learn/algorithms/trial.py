"""A trial of a user's own loss on made-up tokens, so that one that cannot work fails before a run begins."""

import math
from typing import Any, cast

import torch
from torch import Tensor

from sparring.config.learning import LearningSettings
from sparring.core import InputError, SparringError
from sparring.core.errors import first_line
from sparring.core.own_code import method_of, own_code, returned
from sparring.learn.algorithms.base import BaseAlgo, state_of_algorithm
from sparring.learn.batch import Tokens
from sparring.learn.policy import TRAINED, PolicyModel

CALLED = {"__init__", "loss", "aggregate", "correct", "add_metric", "state", "load_state"}
"""The methods that a trial may call. In any other an algorithm may prepare what its loss needs."""


class _ModelAsked(SparringError):
    """A loss asked for the model, which a trial does not have."""


class _NoModel:
    device = torch.device("cpu")

    def __getattr__(self, name: str) -> Any:
        raise _ModelAsked(f"the model's {name}")


def try_loss(algorithm: BaseAlgo, settings: LearningSettings, field: str) -> str:
    """Compute an algorithm's loss and gradient on five made-up tokens of two answers, load its state, and
    return why that says nothing; empty if all went well.

    Args:
        algorithm: an algorithm for this trial only, since it may keep what it sees.
        settings: the learner's, with ``max_generation_len``.
        field: the algorithm's table, for errors.

    Raises:
        InputError: it failed, and no method that is not called here can be why.
    """
    algorithm.policy, algorithm.adapter = cast(PolicyModel, _NoModel()), TRAINED
    algorithm.limits = cast(Any, _NoModel())
    algorithm.max_generation_len = settings.max_generation_len or 1
    algorithm.max_train_len, algorithm.mean_length = settings.max_train_len, 2.5
    try:
        _compute(algorithm, several_steps=settings.epochs * settings.minibatches > 1)
    except _ModelAsked as error:
        return f"its loss was not tried, since it asks for {error}"
    except SparringError as error:
        problem = first_line(error)
        if _prepares(algorithm) and not _is_certain(error.__cause__):
            return problem
        raise InputError(f"{field}.path", problem, "Correct it") from error
    return ""


def _prepares(algorithm: BaseAlgo) -> bool:
    others = [name for name, one in vars(BaseAlgo).items() if callable(one) and name not in CALLED]
    return any(getattr(type(algorithm), name) is not getattr(BaseAlgo, name) for name in others)


def _is_certain(cause: BaseException | None) -> bool:
    """Return whether an error is about a name that exists nowhere, whatever was prepared."""
    return isinstance(cause, NameError) or (
        isinstance(cause, AttributeError) and isinstance(cause.obj, Tokens | Tensor)
    )


def _compute(algorithm: BaseAlgo, several_steps: bool) -> None:
    logprobs_S = torch.tensor([-0.7, -1.2, -0.3, -2.0, -0.9], requires_grad=True)
    name = method_of(algorithm, "loss")
    with own_code(f"{name} failed on made-up tokens"):
        loss = returned(algorithm.loss(logprobs_S, _made_up(several_steps)), Tensor, name)
        torch.autograd.backward(loss)
    if not math.isfinite(float(loss.detach())):
        raise SparringError(f"{name} returned {float(loss.detach())} for made-up tokens")
    with own_code(f"the state of {type(algorithm).__name__} failed"):
        algorithm.load_state(state_of_algorithm(algorithm))


def _made_up(several_steps: bool) -> Tokens:
    """Return the tokens of two answers, one better than the other, of which the second is older."""
    advantage_S = torch.tensor([0.5, 0.5, -0.25, -0.25, -0.25])
    return Tokens(
        advantage_S=advantage_S,
        credit_S=advantage_S,
        behaviour_S=torch.tensor([-0.6, -1.3, -0.3, -1.8, -1.0]),
        stale_S=torch.tensor([False, False, True, True, True]),
        answer_S=torch.tensor([0, 0, 1, 1, 1]),
        offset_S=torch.tensor([0, 1, 0, 1, 2]),
        length_S=torch.tensor([2.0, 2.0, 3.0, 3.0, 3.0]),
        mean_length=2.5,
        old_S=torch.tensor([-0.7, -1.2, -0.3, -2.0, -0.9]) if several_steps else None,
        sample_S=torch.tensor([0, 0, 1, 1, 1]),
        num_answers=2,
    )
