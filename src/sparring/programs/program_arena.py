"""ProgramArena: what the programs of this package have in common."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, TypeVar

from sparring.config.program_base import ProgramSettings
from sparring.core import (
    Arena,
    CreditAssigner,
    EpisodeRequest,
    InferenceClient,
    Rollout,
    VerboseLogger,
)
from sparring.programs.tasks import in_turns

SettingsT = TypeVar("SettingsT", bound=ProgramSettings)


class ProgramArena(Arena, Generic[SettingsT]):
    """An arena that plays what its settings say; ``credit_assigner`` is GRPO by default."""

    def __init__(
        self,
        client: InferenceClient,
        settings: SettingsT,
        *,
        seed: int = 0,
        credit_assigner: CreditAssigner | None = None,
        logger: VerboseLogger | None = None,
    ) -> None:
        super().__init__(client, credit_assigner, seed=seed, logger=logger)
        self.settings = settings
        self.set_up()

    def set_up(self) -> None:
        """Add the roles, the episodes and the stores; the settings are there."""

    def requests_in_turns(
        self, episode_type: str, places: Sequence[int], size: int, each: int, asked: Callable[[int], Any]
    ) -> list[EpisodeRequest]:
        """Return ``size`` requests for the next places, ``each`` of them that often, which are compared.

        ``asked`` gives the artifact of a place; see :func:`in_turns` for their order.
        """
        found = in_turns(places, self.seed, self.step_num, size, each)
        return [EpisodeRequest(episode_type, asked(place), {"group": place}) for place in found]

    def evaluation_requests(
        self, episode_type: str, places: Iterable[int], asked: Callable[[int], Any]
    ) -> list[EpisodeRequest]:
        """Return requests that measure, one for each place, with the artifact that ``asked`` gives."""
        return [self.evaluation_request(episode_type, asked(place), place) for place in places]

    async def finished(self, requests: list[EpisodeRequest]) -> list[Rollout]:
        """Play requests, and return the rollouts of those that did not fail."""
        results = await self.generate_rollouts(requests)
        return [result.rollout for result in results if result.rollout.error is None]
