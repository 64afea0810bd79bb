"""ScenarioInstance: the components of an experiment."""

from collections.abc import Mapping
from dataclasses import dataclass

from selfplay.core import AgentSpec
from selfplay.finetune.environment import PureTextEnvironment
from selfplay.finetune.model_groups import PureTextSharedModelGroup
from selfplay.programs.proofs.episode import ProofEpisode
from selfplay.programs.proofs.protocol import Protocol


@dataclass(frozen=True)
class ScenarioInstance:
    """What a trainer works with.

    Args:
        protocol_handler: who speaks when, and what they earn.
        episode: plays the protocol.
        train_environment: what is learned from.
        test_environment: what is only measured.
        shared_model_groups: the models of the agents, by group.
    """

    protocol_handler: Protocol
    episode: ProofEpisode
    train_environment: PureTextEnvironment
    test_environment: PureTextEnvironment
    shared_model_groups: Mapping[str, PureTextSharedModelGroup]

    def group_of(self, agent: str) -> PureTextSharedModelGroup:
        """Return the group whose model an agent uses."""
        return next(one for one in self.shared_model_groups.values() if agent in one.agent_names)


def agents_of(
    groups: Mapping[str, PureTextSharedModelGroup], temperatures: Mapping[str, float | None]
) -> dict[str, AgentSpec]:
    """Return who answers for each agent now: the present model of its group."""
    return {
        name: AgentSpec("model", group.model_name, temperature=temperatures.get(name))
        for group in groups.values()
        for name in group.agent_names
    }
