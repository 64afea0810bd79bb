"""A policy's file, for games whose information states can be listed: written, and read whole.

The form of its lines is that of :mod:`sparring.envs.policy_lines`.
"""

from collections.abc import Mapping
from pathlib import Path

import msgspec

from sparring.core import InputError
from sparring.core.files import write_file
from sparring.envs.policy_lines import PolicyLine, checked_chances, read_lines
from sparring.evaluation.nash_conv import states_of


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
    found, states = read_lines(path), states_of(env_id)
    missing = [state.info_state for state in states if state.info_state not in found]
    if missing:
        problem = f"lacks {len(missing):,} of the {len(states):,} information states of {env_id}"
        raise InputError(str(path), problem, f"The first is {missing[0]!r}")
    return [checked_chances(state.actions, *found[state.info_state]) for state in states]
