"""A protocol as data: who speaks when to whom, how long, and what each agent earns for."""

from dataclasses import dataclass, field
from typing import Literal

from sparring.config.proofs import ProtocolSettings, ScaleName
from sparring.core import InputError

AgentKind = Literal["prover", "verifier"]
Stance = Literal["accept", "reject"]
"""The verdict that a prover argues for."""


@dataclass(frozen=True)
class Agent:
    """A prover or a verifier. Its name is a role of the arena and says nothing about its kind.

    A verifier decides, and earns for a right decision. A prover earns for a decision that agrees with its
    stance, or as the verifier does if it has none.
    """

    name: str
    kind: AgentKind
    stance: Stance | None = None


@dataclass(frozen=True)
class Channel:
    """Messages that only the agents in ``seen_by`` see."""

    name: str
    seen_by: tuple[str, ...]


@dataclass(frozen=True)
class Turn:
    """An agent speaks, and may write to these channels."""

    agent: str
    channels: tuple[str, ...]


@dataclass(frozen=True)
class Protocol:
    """Who speaks when to whom.

    In round n (from 0) the turns ``cycle[n % len(cycle)]`` are taken at once: nobody sees what the others say
    in that round. The first decision that a verifier makes in round ``min_rounds`` - 1 or later ends the
    episode; what verifiers say before is a message. If the last turn of a verifier within ``max_rounds``
    passes without a decision, the episode ends as terminated. (In the original, the rounds that are left are
    played first.)

    Args:
        name: names the protocol.
        agents: who takes part.
        channels: where they speak.
        cycle: the turns of each round, repeated.
        max_rounds: the greatest number of rounds.
        min_rounds: the least number of rounds before a decision counts.
        coin: two agents, of which only one takes its turns: the first one in an episode with an even
            seed.
        anonymous: whether provers are all called "prover" in what others read.
        random_stance: whether all provers get the stance that the claim's text decides.
        shuffled_channels: whether a verifier reads its channels in an order that the seed decides.
        settings: what the agents earn, the scale of decisions and the decision that is forced, if one is.
    """

    name: str
    agents: tuple[Agent, ...]
    channels: tuple[Channel, ...]
    cycle: tuple[tuple[Turn, ...], ...]
    max_rounds: int
    min_rounds: int = 1
    coin: tuple[str, str] | None = None
    anonymous: bool = False
    random_stance: bool = False
    shuffled_channels: bool = False
    settings: ProtocolSettings = field(default_factory=ProtocolSettings)

    def __post_init__(self) -> None:
        _check_names(self)
        _check_turns(self)
        if self.min_rounds > self.max_rounds:
            raise InputError(
                "min_message_rounds",
                f"{self.min_rounds} rounds are more than max_message_rounds, {self.max_rounds}",
                "Give it a smaller number",
            )
        if not self.deciding_rounds:
            raise InputError(
                "max_message_rounds",
                f"{self.max_rounds} leaves the verifier of {self.name} no turn to decide",
                "Allow more rounds, or lower min_message_rounds",
            )

    @property
    def scale(self) -> ScaleName:
        """The scale of decisions."""
        return self.settings.verifier_decision_spectrum

    def agent(self, name: str) -> Agent:
        """Return the agent of this name."""
        return next(agent for agent in self.agents if agent.name == name)

    def is_verifier(self, name: str) -> bool:
        """Return whether the agent of this name is a verifier."""
        return self.agent(name).kind == "verifier"

    @property
    def verifiers(self) -> list[str]:
        """The names of the verifiers."""
        return [agent.name for agent in self.agents if agent.kind == "verifier"]

    @property
    def provers(self) -> list[str]:
        """The names of the provers."""
        return [agent.name for agent in self.agents if agent.kind == "prover"]

    def turns(self, round_number: int, seed: int) -> tuple[Turn, ...]:
        """Return who takes which turn in a round of an episode with this seed."""
        turns = self.cycle[round_number % len(self.cycle)]
        if self.coin is None:
            return turns
        silent = self.coin[1 - seed % 2]
        return tuple(turn for turn in turns if turn.agent != silent)

    def seen_by(self, agent: str) -> list[str]:
        """Return the channels that an agent sees, in the order of the table."""
        return [channel.name for channel in self.channels if agent in channel.seen_by]

    def rounds_of(self, agent: str) -> list[int]:
        """Return the rounds in which an agent may have a turn."""
        rounds = range(self.max_rounds)
        return [n for n in rounds if agent in [turn.agent for turn in self.cycle[n % len(self.cycle)]]]

    @property
    def deciding_rounds(self) -> list[int]:
        """The rounds in which a decision counts."""
        rounds = {n for name in self.verifiers for n in self.rounds_of(name)}
        return sorted(n for n in rounds if n >= self.min_rounds - 1)

    @property
    def last_round(self) -> int:
        """The round in which an episode ends at the latest."""
        return self.deciding_rounds[-1]

    @property
    def max_verifier_questions(self) -> int:
        """The greatest number of turns of one verifier, the last of which is its decision."""
        return max(len(self.rounds_of(name)) for name in self.verifiers)


def _check_names(protocol: Protocol) -> None:
    agents = [agent.name for agent in protocol.agents]
    channels = [channel.name for channel in protocol.channels]
    for kind, names in (("agent", agents), ("channel", channels)):
        twice = [name for place, name in enumerate(names) if name in names[:place]]
        if twice:
            raise _wrong(protocol, f"has two {kind}s named {twice[0]}", "Rename one of them")
    if not protocol.verifiers:
        raise _wrong(protocol, "has no verifier, so nobody decides", 'Give an agent the kind "verifier"')
    if not protocol.cycle:
        raise _wrong(protocol, "has no round", "Say in cycle who speaks when")
    seen = {name for channel in protocol.channels for name in channel.seen_by}
    spoken = {turn.agent for turns in protocol.cycle for turn in turns} | set(protocol.coin or ())
    for name in sorted((seen | spoken) - set(agents)):
        raise _wrong(protocol, f"names {name}, which is not an agent", f"There are: {', '.join(agents)}")
    if any(agent.kind == "verifier" and agent.stance for agent in protocol.agents):
        raise _wrong(protocol, "gives a verifier a stance", "Leave it out")


def _check_turns(protocol: Protocol) -> None:
    for number, turns in enumerate(protocol.cycle):
        names = [turn.agent for turn in turns]
        if len(set(names)) < len(names):
            raise _wrong(protocol, f"lets an agent speak twice in round {number}", "Give it one turn")
        for turn in turns:
            unseen = [name for name in turn.channels if name not in protocol.seen_by(turn.agent)]
            if unseen:
                raise _wrong(
                    protocol,
                    f"lets {turn.agent} write to {unseen[0]}, which it does not see",
                    "Add it to seen_by",
                )
            if not turn.channels:
                raise _wrong(protocol, f"lets {turn.agent} speak to no channel", "Name one")


def _wrong(protocol: Protocol, problem: str, fix: str) -> InputError:
    return InputError("protocol", f"{protocol.name} {problem}", fix)
