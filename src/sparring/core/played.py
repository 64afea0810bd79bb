"""What an episode hands over: every field is of its kind before logs, credit and learners read it.

Rewards are finite numbers, one for every role that acted, and log-probabilities finite numbers, one for every
token that was drawn. What is not raises an EpisodeError.
"""

from array import array
from collections.abc import Sequence
from math import isfinite
from numbers import Real
from operator import index
from typing import Any, TypeVar

from sparring.core.errors import EpisodeError, shown
from sparring.core.own_code import check_json, list_of, messages_of, text_of
from sparring.core.types import AgentSpec, GenerateResult, Rollout, Step, check_meta

Kind = TypeVar("Kind")
_KINDS = {"I": int, "d": float}
LARGEST_REWARD = 1e30
"""Sums and squares of rewards up to this size are finite."""


def check_result(result: GenerateResult) -> None:
    """Check what an episode has played, sub-episodes included; numbers become Python's own."""
    rollout = _of(Rollout, result.rollout, "the rollout of a result")
    rollout.episode_type = _text(rollout.episode_type, "rollout.episode_type")
    rollout.id = _text(rollout.id, "rollout.id")
    try:
        check_meta(rollout.meta)
    except TypeError as error:
        raise EpisodeError(f"meta of a rollout: {error}") from error
    _of(dict, rollout.extras, "rollout.extras")
    check_played(rollout)
    rollout.advantages = _numbers(rollout.advantages, "rollout.advantages")
    rollout.metrics = _numbers(rollout.metrics, "rollout.metrics")
    rollout.started_at = finite_number(rollout.started_at, "rollout.started_at")
    if rollout.ended_at is not None:
        rollout.ended_at = finite_number(rollout.ended_at, "rollout.ended_at")
    for agent in _of(dict, rollout.agents, "rollout.agents").values():
        _of(AgentSpec, agent, "an agent of a rollout")
    if result.is_trainable not in (True, False):
        raise EpisodeError(f"result.is_trainable is {shown(result.is_trainable)}, not true or false")
    result.is_trainable = bool(result.is_trainable)
    check_json(rollout.extras, "rollout.extras, which get_extras returned,")
    check_json([step.info for step in rollout.steps], "info of the steps")
    check_json([rollout.artifact, rollout.meta], "artifact or meta")
    for child in list_of(GenerateResult, result.children, "result.children"):
        check_result(child)


def check_played(rollout: Rollout) -> None:
    """Check the steps of a rollout, and that every role that acted has a reward."""
    for step in list_of(Step, rollout.steps, "rollout.steps"):
        check_step(step)
    rollout.rewards = _numbers(rollout.rewards, "rollout.rewards")
    check_rewards(rollout.rewards, rollout.steps)


def check_step(step: Step) -> None:
    """Check the fields of a step; numbers become Python's own."""
    step.role_id = _text(step.role_id, "role_id of a step")
    source = f"a step of role {step.role_id}"
    step.policy = _text(step.policy, f"policy of {source}")
    step.env_id = _text(step.env_id, f"env_id of {source}")
    said = f"prompt or completion of {source}"
    for messages in (step.prompt, step.completion):
        messages_of(_of(list, messages, said), said)
    step.pid = _integer(step.pid, f"pid of {source}")
    # A client without versions says None, which an episode may copy.
    step.policy_version = (
        0 if step.policy_version is None else _integer(step.policy_version, f"policy_version of {source}")
    )
    step.temperature = finite_number(step.temperature, f"temperature of {source}")
    step.reward = finite_number(step.reward, f"reward of {source}")
    step.advantage = finite_number(step.advantage, f"advantage of {source}")
    info = _of(dict, step.info, f"info of {source}")
    list_of(str, info.get("legal_answers", []), f"legal_answers of {source}")
    step.prompt_token_ids = _array("I", step.prompt_token_ids, f"prompt_token_ids of {source}")
    ids = step.completion_token_ids = _array(
        "I", step.completion_token_ids, f"completion_token_ids of {source}"
    )
    logprobs = step.completion_logprobs = _array(
        "d", step.completion_logprobs, f"completion_logprobs of {source}"
    )
    if ids is not None and logprobs is not None:
        check_logprobs(ids, logprobs, source)


def _of(kind: type[Kind], value: object, source: str) -> Kind:
    if not isinstance(value, kind):
        raise EpisodeError(f"{source} is {shown(value)}, not of the type {kind.__name__}")
    return value


def _text(value: object, source: str) -> str:
    return text_of(str.__str__(_of(str, value, source)), source)


def _integer(value: object, source: str) -> int:
    try:
        return int(index(value))  # type: ignore[arg-type]
    except TypeError as error:
        raise EpisodeError(f"{source} is {shown(value)}, not a whole number") from error


def _numbers(value: object, source: str) -> dict[str, float]:
    return {
        _text(key, source): finite_number(one, f"{source} of {shown(key)}")
        for key, one in _of(dict, value, source).items()
    }


def _array(code: str, value: object, source: str) -> list[Any] | None:
    """Return a list of ids (``I``) or of floating-point numbers (``d``), which C checks and converts.

    A list of Python's own numbers is returned itself: all answers to a prompt share its ids.
    """
    if value is None:
        return None
    numbers = _of(list, value, source)
    try:
        checked = array(code, numbers)
    except (TypeError, OverflowError) as error:
        raise EpisodeError(f"{source} is {shown(value)}: {error}") from error
    return numbers if set(map(type, numbers)) <= {_KINDS[code]} else checked.tolist()


def check_rewards(rewards: dict[str, float], steps: list[Step]) -> None:
    """Check that every role that acted has a reward, which is a finite number."""
    for step in steps:
        if step.role_id not in rewards:
            raise EpisodeError(f"role {step.role_id} acted but no reward function scored it")
    for role_id, reward in rewards.items():
        finite_reward(reward, f"the weighted sum for role {role_id}")


def finite_reward(value: object, source: str) -> float:
    """Return the reward ``value``, which ``source`` gave, as a float; ``True`` becomes 1. It must be so small
    that sums and squares are finite, too."""
    return _finite(value, f"{source} gave", "which is not")


def finite_number(value: object, name: str) -> float:
    """Return the field ``name`` as a float, as :func:`finite_reward` does."""
    return _finite(value, f"{name} is", "not")


def _finite(value: object, before: str, after: str) -> float:
    if not is_bounded(value) or not is_bounded(number := float(value)):  # type: ignore[arg-type]
        raise EpisodeError(f"{before} {shown(value)}, {after} a finite number up to 1e30")
    return number


def is_bounded(value: object) -> bool:
    """Return whether ``value`` is a real number of at most ``LARGEST_REWARD`` in either direction."""
    is_number = type(value) is float or isinstance(value, Real)  # the second is ten times slower
    return is_number and -LARGEST_REWARD <= value <= LARGEST_REWARD  # type: ignore[operator]


def check_logprobs(drawn: Sequence[int], logprobs: Sequence[float], source: str) -> None:
    """Check that each of the ids that ``source`` has drawn has one finite log-probability."""
    if len(drawn) != len(logprobs):
        problem = f"has {len(drawn)} drawn tokens but {len(logprobs)} log-probabilities"
        raise EpisodeError(f"{source} {problem}; the client that answered is at fault")
    if not isfinite(sum(logprobs)):
        raise EpisodeError(f"{source} has a log-probability that is not a finite number")
