"""The components of an experiment: what is played, by whom, and what is sampled in an iteration."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sparring.core import AgentSpec, Arena, EpisodeRequest, Rollout, derive_seed
from sparring.finetune.model_groups import PureTextSharedModelGroup
from sparring.programs.proofs.claims import Claim
from sparring.programs.proofs.episode import ProofEpisode
from sparring.programs.proofs.protocol import Protocol
from sparring.programs.proofs.state import ProofState

Row = tuple[int, Claim]
"""The number of a rollout in its iteration, and its claim."""


class PureTextEnvironment:
    """The ``num_envs`` rollouts of each iteration: claims of one split, played by whoever ``agents()`` names.

    Training goes on through the claims from iteration to iteration, in a new order after each pass; a test
    begins anew each time.
    """

    def __init__(
        self,
        arena: Arena,
        protocol: Protocol,
        claims: Sequence[Claim],
        num_envs: int,
        agents: Callable[[], Mapping[str, AgentSpec]],
        *,
        seed: int,
        train: bool,
    ) -> None:
        self.arena = arena
        self.protocol = protocol
        self.claims = claims
        self.num_envs = num_envs
        self.agents = agents
        self.seed = seed
        self.train = train
        self._drawn = 0

    @property
    def split(self) -> str:
        """``train`` or ``test``."""
        return "train" if self.train else "test"

    def rows(self, iteration: int) -> list[Row]:
        """Return what is played in an iteration."""
        first = iteration * self.num_envs if self.train else 0
        last = first + self.num_envs - 1
        passes = range(first // len(self.claims), last // len(self.claims) + 1)
        drawn = [claim for number in passes for claim in self._shuffled(number)]
        skipped = first - passes.start * len(self.claims)
        return list(enumerate(drawn[skipped : skipped + self.num_envs]))

    def draw(self) -> Row:
        """Draw a claim, another at each call, for a rollout beside those of :meth:`rows`."""
        number = self.num_envs + self._drawn
        self._drawn += 1
        return number, random.Random(derive_seed(self.seed, self.split, "drawn", number)).choice(self.claims)

    def _shuffled(self, number: int) -> list[Claim]:
        order = list(self.claims)
        random.Random(derive_seed(self.seed, self.split, "order", number)).shuffle(order)
        return order

    def get_datapoint_from_env_state_as_dict(self, env_state: ProofState) -> dict[str, Any]:
        """Return what an episode is about: its claim, the claim's truth, and the provers' stances."""
        return {
            "id": env_state["id"],
            "question": env_state["question"],
            "solution": env_state["claim"],
            "y": env_state["y"],
            "prover_stance": dict(env_state["stances"]),
        }

    async def play(self, iteration: int, row: Row, episode_type: str = "proof") -> Rollout:
        """Play one row; what happens follows from the seed, the split, the iteration and the row alone."""
        index, claim = row
        name = f"{self.split}-{iteration:06d}-{index:05d}"
        meta = {
            "seed": derive_seed(self.seed, self.split, iteration, index),
            "rollout_id": name,
            "step": iteration,
        }
        request = EpisodeRequest(
            episode_type, claim.to_dict(), meta, is_trainable=False, agents=self.agents()
        )
        (result,) = await self.arena.generate_rollouts([request])
        return result.rollout


@dataclass(frozen=True)
class ScenarioInstance:
    """What a trainer works with: who speaks when, what plays that, what is learned from and only measured,
    and the models of the agents by group."""

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
