"""A client that plays an interactive proof by a script, and an arena for one episode."""

import re

from sparring.config.proofs import ProtocolSettings
from sparring.core import Arena, MockInferenceClient, Role
from sparring.programs.proofs.episode import ProofEpisode
from sparring.programs.proofs.protocols import build_protocol

CLAIM = {"question": "What is 2 + 2?", "claim": "2 + 2 = 5", "y": 0, "id": "sum"}


def agent_of(messages):
    """The agent that a prompt is for."""
    return re.match(r"You are (\w+)\.", messages[0]["content"])[1]


def turn_of(messages):
    """How many turns it has had, if there are no examples."""
    return sum(message["role"] == "assistant" for message in messages)


class Script(MockInferenceClient):
    """Answers with the agent's next line; keeps the prompts.

    ``lines`` are by agent: one for each turn (the last is repeated), or a function of messages and seed.
    """

    def __init__(self, **lines):
        super().__init__(self._line)
        self.lines = lines
        self.prompts = []
        self.cut = False

    def _line(self, messages, seed):
        agent = agent_of(messages)
        self.prompts.append((agent, messages, seed))
        lines = self.lines[agent]
        return lines(messages, seed) if callable(lines) else lines[min(turn_of(messages), len(lines) - 1)]

    async def complete(self, messages, *args, **kwargs):
        response = await super().complete(messages, *args, **kwargs)
        response.finish_reason = "length" if self.cut else "stop"
        return response

    def prompts_of(self, agent):
        return [messages for name, messages, _ in self.prompts if name == agent]


def make(client, name="nip", *, rewards=None, words=20, retries=20, examples=False, **parameters):
    """An arena with the protocol's agents, and the episode."""
    given = ProtocolSettings(**(rewards or {}), **parameters)
    protocol = build_protocol(name, given)
    arena = Arena(client)
    for agent in protocol.agents:
        arena.add_role(Role(agent.name, policy=agent.kind))
    episode = ProofEpisode(
        protocol,
        max_response_words=words,
        num_invalid_generation_retries=retries,
        examples=examples,
    )
    arena.add_episode("proof", episode)
    return arena, episode


async def play(client, name="nip", *, claim=CLAIM, seed=0, **options):
    """One episode's rollout."""
    arena, _ = make(client, name, **options)
    return (await arena.run_episode("proof", claim, {"seed": seed})).rollout
