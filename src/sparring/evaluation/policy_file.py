"""A policy as a text file: the probability of each legal action in each information state of a game.

Each line is a JSON object, ``{"state": "0pb", "policy": {"0": 0.25, "1": 0.75}}``. The state is the text of
OpenSpiel's ``information_state_string``, and actions are OpenSpiel's numbers. Actions that are left out have
probability 0. A state has one line; lines about states of other games are skipped. So any framework can have
its policy measured.
"""

from collections.abc import Mapping
from pathlib import Path

import msgspec

from sparring.collection.serialization import UNREADABLE
from sparring.core import InputError
from sparring.core.files import open_regular, write_file
from sparring.envs.openspiel_game import InformationState
from sparring.evaluation.nash_conv import states_of

ROUNDING = 1e-4
"""So far from 1 the sum of probabilities may be, as texts have few digits."""


class PolicyLine(msgspec.Struct):
    """A line: an information state, and the probability of each action by its number."""

    state: str
    policy: dict[int, float]


def write_policy(path: Path, policy: Mapping[str, Mapping[int, float]]) -> None:
    """Write a policy by information state and action; numbers of numpy are numbers too."""
    lines = (
        msgspec.json.encode(PolicyLine(state, {int(one): float(chances[one]) for one in chances}))
        for state, chances in policy.items()
    )
    write_file(path, b"".join(line + b"\n" for line in lines))


def read_policy(path: Path, env_id: str) -> list[list[float]]:
    """Return the probabilities of the legal actions of each of the game's ``states_of``.

    Raises:
        InputError: the file cannot be read, lacks a state, or has probabilities that are none.
    """
    try:
        with open_regular(path) as file:
            content = file.read()
    except OSError as error:
        raise InputError(str(path), f"cannot be read ({error.strerror})", "Name a policy file") from error
    found: dict[str, tuple[str, Mapping[int, float]]] = {}
    for number, line in enumerate(content.splitlines(), start=1):
        where = f"{path}, line {number}"
        if line.strip():
            try:
                one = msgspec.json.decode(line, type=PolicyLine)
            except UNREADABLE as error:
                example = '{"state": "0pb", "policy": {"0": 0.25, "1": 0.75}}'
                raise InputError(where, "is no line of a policy", f"Write it like {example}") from error
            if one.state in found:
                first = found[one.state][0].removeprefix(f"{path}, ")
                raise InputError(where, f"is about the same state as {first}", "Keep one of them")
            found[one.state] = where, one.policy
    states = states_of(env_id)
    missing = [state.info_state for state in states if state.info_state not in found]
    if missing:
        problem = f"lacks {len(missing):,} of the {len(states):,} information states of {env_id}"
        raise InputError(str(path), problem, f"The first is {missing[0]!r}")
    return [_chances(state, *found[state.info_state]) for state in states]


def _chances(state: InformationState, where: str, policy: Mapping[int, float]) -> list[float]:
    illegal = [action for action in policy if action not in state.actions]
    if illegal:
        legal = ", ".join(map(str, state.actions))
        raise InputError(where, f"action {illegal[0]} is not legal there", f"Legal actions: {legal}")
    total = sum(policy.values())
    if min(policy.values(), default=0.0) < 0 or not abs(total - 1) <= ROUNDING:
        raise InputError(where, f"the probabilities have the sum {total:g}", "Let it be 1, and none below 0")
    return [policy.get(action, 0.0) / total for action in state.actions]
