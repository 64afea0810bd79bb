"""QuestionArena: single-turn questions whose answers are scored; the held-out ones measure the policy."""

from sparring.config.programs import QuestionsSettings
from sparring.core import EpisodeRequest, Role
from sparring.programs.program_arena import ProgramArena
from sparring.programs.task_sources import load_split
from sparring.programs.tasks import OwnScores, TaskEpisode

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
