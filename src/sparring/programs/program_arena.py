"""ProgramArena, what the programs of this package have in common, and QuestionArena, the simplest of them."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, TypeVar

from sparring.config.base import ProgramSettings
from sparring.config.programs import QuestionsSettings
from sparring.core import (
    Arena,
    CreditAssigner,
    EpisodeRequest,
    InferenceClient,
    Role,
    Rollout,
    VerboseLogger,
)
from sparring.programs.task_sources import load_split
from sparring.programs.tasks import OwnScores, TaskEpisode, in_turns

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
        found = in_turns(places, self.seed, self.step_num - 1, size, each)
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


SOLVER = "Solver"
FIELD = "program.questions"


class QuestionArena(ProgramArena[QuestionsSettings]):
    """Questions of a file, a dataset, a generator or a function, each answered several times in an update.

    All questions are asked once before one is asked again, in a new order. The answers to a question in an
    update are compared with each other (``meta["group"]``). An answer's score, from 0 to 1, is its reward.
    """

    def set_up(self) -> None:
        """Load the questions, and add the role that answers them."""
        settings = self.settings
        self.task, self.trained, self.held_out = load_split(settings.questions, FIELD, settings.score)
        self.add_role(Role(SOLVER, policy=settings.solver_policy))
        self.add_episode("task", TaskEpisode(self.task, SOLVER))

    def get_batch(self) -> list[EpisodeRequest]:
        """Return ``batch_size`` requests for the next questions, ``answers_per_question`` for each."""
        size, each = self.settings.batch_size, self.settings.answers_per_question
        return self.requests_in_turns("task", self.trained, size, each, self.task.asked)

    async def evaluate(self) -> dict[str, list[float]]:
        """Ask held-out questions, always the same; failed episodes are left out.

        ``held-out score``: one for each question. ``held-out answer stated``: 1, or 0 if there is no answer
        in a form that is read. A score of your own reads whatever is said: ``held-out answer not empty``.
        """
        numbers = self.held_out[: self.settings.evaluation_questions]
        answered = await self.finished(self.evaluation_requests("task", numbers, self.task.asked))
        read = "held-out answer not empty" if isinstance(self.task, OwnScores) else "held-out answer stated"
        return {
            "held-out score": [one.rewards[SOLVER] for one in answered],
            read: [float(one.extras["read"] is not None) for one in answered],
        }
