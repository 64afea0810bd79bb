"""The state of an episode: plain JSON values, which are kept in the rollout's ``extras``."""

from typing import Any, NotRequired, TypedDict, cast

from sparring.core import InputError
from sparring.programs.proofs.protocol import Stance


class RoundAnswer(TypedDict):
    """What an agent said in a round.

    ``messages`` are by channel; there are none in a decision or an invalid answer. ``raw`` is the whole text.
    ``decision`` has the fields of a Decision. ``retries`` counts the invalid answers that were asked for
    again and are not kept. ``cut``: the token limit ended the answer. ``token_ids`` are those with which it
    was drawn, if they are known; later prompts contain them, and extras do not.
    """

    messages: dict[str, str]
    raw: str
    decision: dict[str, Any]
    valid: bool
    retries: int
    cut: bool
    token_ids: NotRequired[list[int]]


class Round(TypedDict):
    """The answers of one round by agent, in the order of the table, and what every agent earned."""

    answers: dict[str, RoundAnswer]
    rewards: dict[str, float]


class ProofState(TypedDict):
    """An episode after some rounds.

    ``y`` is the claim's truth, 1 or 0. ``stances`` are those of the provers that have one. ``branches`` has a
    number for each round; rounds that begin alike and differ in it are drawn independently. ``decision`` is
    the one that counts, and ``decided_by`` its verifier; ``terminated``: the episode ended without one.
    """

    protocol: str
    question: str
    claim: str
    y: int
    id: str
    seed: int
    stances: dict[str, Stance]
    branches: list[int]
    rounds: list[Round]
    decision: dict[str, Any]
    decided_by: str | None
    terminated: bool


def without_token_ids(state: ProofState) -> ProofState:
    """Return the state as it is kept: the rollout's steps have the token ids."""

    def as_text(answer: RoundAnswer) -> RoundAnswer:
        answer = answer.copy()
        answer.pop("token_ids", None)
        return answer

    def round_as_text(one: Round) -> Round:
        return {**one, "answers": {name: as_text(answer) for name, answer in one["answers"].items()}}

    return {**state, "rounds": [round_as_text(one) for one in state["rounds"]]}


def total_rewards(state: ProofState) -> dict[str, float]:
    """Return what every agent has earned in all rounds."""
    totals: dict[str, float] = {}
    for one in state["rounds"]:
        for name, reward in one["rewards"].items():
            totals[name] = totals.get(name, 0.0) + reward
    return totals


def is_right(state: ProofState) -> bool:
    """Return whether the verdict is the truth; an episode without a verdict is not right."""
    return str(state["decision"]["verdict"]) == ("accept" if state["y"] else "reject")


def first_rounds(state: ProofState, count: int) -> ProofState:
    """Return the state after the first ``count`` rounds, from which the episode can go on differently.

    ``state`` may be the ``extras`` of a finished rollout.

    Raises:
        InputError: fewer rounds were played.
    """
    if not 0 <= count <= len(state["rounds"]):
        raise InputError("count", f"{len(state['rounds'])} rounds were played, not {count}", "Give fewer")
    kept = cast(ProofState, {key: state[key] for key in ProofState.__annotations__})  # type: ignore[literal-required]
    if count == len(state["rounds"]):
        return kept
    return {
        **kept,
        "branches": state["branches"][:count],
        "rounds": state["rounds"][:count],
        "decision": _UNDECIDED,
        "decided_by": None,
        "terminated": False,
    }


_UNDECIDED: dict[str, Any] = {"verdict": "none", "value": 0.0, "raw": ""}
