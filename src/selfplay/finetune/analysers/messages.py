"""The messages of a proof, each with what its author could read before it."""

from collections.abc import Iterator
from dataclasses import dataclass

from selfplay.core import Rollout
from selfplay.finetune.tree_episode import ends_of
from selfplay.programs.proofs.protocol import AgentKind, Protocol, Stance
from selfplay.programs.proofs.state import ProofState


@dataclass(frozen=True)
class Said:
    """A message that was there before: its author, the author's kind, its channel and its text."""

    author: str
    kind: AgentKind
    channel: str
    text: str


@dataclass(frozen=True)
class SentMessage:
    """A message of an agent to a channel.

    Args:
        rollout_id: the rollout.
        place: the branches that lead to its round, such as ``0.0.1``: unique within a tree of responses.
        agent: who wrote it.
        kind: the kind of the agent.
        stance: the verdict that a prover argues for, if it has one.
        channel: where.
        text: the message.
        question: the question.
        claim: the claim.
        before: what the agent could read before, in order; its own messages are among them.
    """

    rollout_id: str
    place: str
    agent: str
    kind: AgentKind
    stance: Stance | None
    channel: str
    text: str
    question: str
    claim: str
    before: tuple[Said, ...]

    @property
    def key(self) -> tuple[str, str, str, str]:
        """What names the message in a run."""
        return (self.rollout_id, self.place, self.agent, self.channel)


def messages_of(protocol: Protocol, rollout: Rollout) -> list[SentMessage]:
    """Return the messages of a proof, or of all branches of a tree, each once; a failed rollout has none.

    Decisions and invalid answers are not messages.
    """
    if rollout.error is not None:
        return []
    found = {
        message.key: message
        for state in ends_of(rollout)
        for message in _of_state(protocol, rollout.id, state)
    }
    return list(found.values())


def _of_state(protocol: Protocol, rollout_id: str, state: ProofState) -> Iterator[SentMessage]:
    said: list[Said] = []
    for number, played in enumerate(state["rounds"]):
        place = ".".join(map(str, state["branches"][: number + 1]))
        in_round = [
            Said(name, protocol.agent(name).kind, channel, text)
            for name, answer in played["answers"].items()
            for channel, text in answer["messages"].items()
        ]
        for one in in_round:
            seen = protocol.seen_by(one.author)
            yield SentMessage(
                rollout_id,
                place,
                one.author,
                one.kind,
                state["stances"].get(one.author),
                one.channel,
                one.text,
                state["question"],
                state["claim"],
                tuple(earlier for earlier in said if earlier.channel in seen),
            )
        said += in_round
