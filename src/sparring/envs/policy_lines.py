"""A policy in a file: the probability of each legal action in each information state of an OpenSpiel game.

Each line is a JSON object, ``{"state": "0pb", "policy": {"0": 0.25, "1": 0.75}}``. The state is the text of
OpenSpiel's ``information_state_string``, and actions are OpenSpiel's numbers. Actions that are left out have
probability 0. A state has one line; lines about states of other games are skipped. So any framework can have
its policy measured, or met by a best response.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path

import msgspec

from sparring.core import InputError
from sparring.core.adapters import MIXTURE_FILE
from sparring.core.errors import NOT_JSON
from sparring.core.files import open_regular

ROUNDING = 1e-4
"""So far from 1 the sum of probabilities may be, as texts have few digits."""
ENDINGS = (".json", ".jsonl")


class PolicyLine(msgspec.Struct):
    """A line: an information state, and the probability of each action by its number."""

    state: str
    policy: dict[int, float]


Lines = Mapping[str, tuple[str, Mapping[int, float]]]
"""By information state: the line's place, for errors, and the probability of each action by its number."""


def is_policy_file(name: str) -> bool:
    """Whether a name is that of a file with a policy; a mixture's file is none."""
    path = Path(name)
    return path.suffix in ENDINGS and path.name != MIXTURE_FILE and path.is_file()


def read_lines(path: Path) -> Lines:
    """Return the lines of a policy's file, which is read again only if it has changed.

    Raises:
        InputError: the file cannot be read, or a line is none.
    """
    try:
        known = path.stat()
        return _lines_of(path, known.st_mtime_ns, known.st_size)
    except OSError as error:
        raise InputError(str(path), f"cannot be read ({error.strerror})", "Name a policy file") from error


@lru_cache(maxsize=8)
def _lines_of(path: Path, changed: int, size: int) -> Lines:
    with open_regular(path) as file:
        content = file.read()
    found: dict[str, tuple[str, Mapping[int, float]]] = {}
    for number, line in enumerate(content.splitlines(), start=1):
        where = f"{path}, line {number}"
        if line.strip():
            try:
                one = msgspec.json.decode(line, type=PolicyLine)
            except (*NOT_JSON, msgspec.DecodeError) as error:
                example = '{"state": "0pb", "policy": {"0": 0.25, "1": 0.75}}'
                raise InputError(where, "is no line of a policy", f"Write it like {example}") from error
            if one.state in found:
                first = found[one.state][0].removeprefix(f"{path}, ")
                raise InputError(where, f"is about the same state as {first}", "Keep one of them")
            found[one.state] = where, one.policy
    return found


def checked_chances(actions: Sequence[int], where: str, policy: Mapping[int, float]) -> list[float]:
    """Return the probabilities of the legal ``actions``; raise an InputError if the line has others, or
    probabilities that are none."""
    illegal = [action for action in policy if action not in actions]
    if illegal:
        legal = ", ".join(map(str, actions))
        raise InputError(where, f"action {illegal[0]} is not legal there", f"Legal actions: {legal}")
    total = sum(policy.values())
    if min(policy.values(), default=0.0) < 0 or not abs(total - 1) <= ROUNDING:
        raise InputError(where, f"the probabilities have the sum {total:g}", "Let it be 1, and none below 0")
    return [policy.get(action, 0.0) / total for action in actions]
