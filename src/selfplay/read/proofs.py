"""Interactive proofs as they are read: the claim, its truth, what was said, and the verdict."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec

from selfplay.read.rollouts import LoggedRollout, LoggedStep, converted

_OUTCOMES = {"none": "no decision", "neither": "undecided"}


class _Decision(msgspec.Struct):
    verdict: str = "none"
    raw: str = ""


class _Answer(msgspec.Struct):
    messages: dict[str, str] = {}
    raw: str = ""
    decision: _Decision = msgspec.field(default_factory=_Decision)
    valid: bool = True
    retries: int = 0
    cut: bool = False


class _Round(msgspec.Struct):
    answers: dict[str, _Answer]
    rewards: dict[str, float] = {}


class _Node(msgspec.Struct):
    id: str
    round: _Round
    decision: _Decision
    parent: str | None = None


class _State(msgspec.Struct):
    """The part of a rollout's ``extras`` that is read; a tree of responses has ``nodes``."""

    question: str
    claim: str
    y: int
    rounds: list[_Round]
    decision: _Decision
    stances: dict[str, str] = {}
    nodes: list[_Node] = []


@dataclass(frozen=True)
class ProofTurn:
    """An agent's answer in a round, counted from 1, and the model call behind it if there is one.

    ``messages`` are by channel; a decision and an invalid answer have none. ``decided`` is the text of a
    decision.
    """

    round: int
    agent: str
    messages: dict[str, str]
    raw: str
    decided: str
    is_valid: bool
    retries: int
    is_cut: bool
    step: LoggedStep | None


@dataclass(frozen=True)
class Proof:
    """A proof; of a tree of responses its first branch. ``ends`` counts the branches."""

    question: str
    claim: str
    is_true: bool
    verdict: str
    stances: dict[str, str]
    turns: list[ProofTurn]
    rewards: dict[str, float] = field(default_factory=dict)
    ends: int = 1

    @property
    def is_right(self) -> bool:
        """Whether the verdict is the truth."""
        return self.verdict == ("accept" if self.is_true else "reject")

    @property
    def truth(self) -> str:
        """What the claim is, in a word."""
        return "right" if self.is_true else "wrong"

    @property
    def outcome(self) -> str:
        """The verdict in words."""
        return _OUTCOMES.get(self.verdict, f"{self.verdict}ed")


def proof_of(rollout: LoggedRollout) -> Proof | None:
    """Return a rollout as a proof; ``None`` if it is another episode, or failed."""
    state = converted(rollout.extras, _State)
    if state is None or rollout.error:
        return None
    path = _first_branch(state.nodes)
    rounds = [node.round for node in path] or state.rounds
    decision = path[-1].decision if path else state.decision
    parents = {node.parent for node in state.nodes}
    places: list[str | int] = [node.id for node in path] or list(range(len(rounds)))
    calls = {(step.info.get("node", step.info.get("round")), step.role_id): step for step in rollout.steps}
    rewards: dict[str, float] = {}
    for one in rounds:
        for agent, reward in one.rewards.items():
            rewards[agent] = rewards.get(agent, 0.0) + reward
    return Proof(
        state.question,
        state.claim,
        state.y == 1,
        decision.verdict,
        state.stances,
        list(_turns(rounds, places, calls)),
        rewards,
        max(1, sum(node.id not in parents for node in state.nodes)),
    )


def _first_branch(nodes: list[_Node]) -> list[_Node]:
    """Return the path from the first round to the first end of a tree."""
    path: list[_Node] = []
    for node in nodes:
        if node.parent == (path[-1].id if path else None):
            path.append(node)
    return path


def _turns(
    rounds: list[_Round], places: list[str | int], calls: dict[tuple[object, str], LoggedStep]
) -> Iterator[ProofTurn]:
    for number, (played, place) in enumerate(zip(rounds, places, strict=True), start=1):
        for agent, answer in played.answers.items():
            decided = answer.decision.raw if answer.decision.verdict != "none" else ""
            yield ProofTurn(
                number,
                agent,
                answer.messages,
                answer.raw,
                decided,
                answer.valid,
                answer.retries,
                answer.cut,
                calls.get((place, agent)),
            )
