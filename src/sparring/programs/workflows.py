"""Workflows: several roles work on one question, and the score of the last answer is the reward of all.

The three forms are those of Zeng et al., "When does multi-agent RL improve LLM workflows?", 2026, arXiv
2605.24202, in words of our own:

- ``review``: a Solver answers, a Reviewer says whether it is right and why, and the Solver answers again.
- ``vote``: several Solvers answer the same prompt at once, and a Chooser, who reads all of them, answers.
- ``plan``: a Planner writes instructions, a Worker follows each of them at once, and the Planner answers.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

from sparring.config.programs import Form, WorkflowSettings
from sparring.core import (
    Arena,
    Episode,
    EpisodeRequest,
    EpisodeState,
    Messages,
    Role,
    Rollout,
    Rubric,
)
from sparring.core.concurrency import all_results
from sparring.core.messages import said
from sparring.core.text import speech
from sparring.programs.program_arena import ProgramArena
from sparring.programs.task_sources import load_split
from sparring.programs.tasks import Asked, ShortAnswers, Task, TaskQuestion

FIELD = "program.questions"
ROLES = {"review": ("Solver", "Reviewer"), "vote": ("Solver", "Chooser"), "plan": ("Planner", "Worker")}
"""The roles of each form, first the one that every question goes to first."""
ACCEPTED = "right"
_REVIEW = "Is this answer right? Begin with the word Right or Wrong. Then say why, in one sentence."
_AGAIN = "Answer the question again."
_CHOOSE = "Answer the question. Several people have tried; some of them may be wrong."
_PLAN = (
    "Do not answer yet. Write {count} short instructions, one a line, each for a helper who will not see the "
    "others."
)


_SOLVED = {"What is 2 + 3?": "5", "What is 14 + 5?": "19", "What is 9 + 8?": "17"}
"""The questions of the examples, with their answers."""


def example_turns(form: Form, workers: int) -> dict[str, Messages]:
    """Return for each role of a form how it would answer to questions that are solved."""
    asked = ShortAnswers([TaskQuestion(question, answer) for question, answer in _SOLVED.items()])
    turns: dict[str, Messages] = {role_id: [] for role_id in ROLES[form]}

    def add(role_id: str, prompt: str, answer: str) -> None:
        turns[role_id] += [{"role": "user", "content": prompt}, said("assistant", answer)]

    for number, (question, right) in enumerate(_SOLVED.items()):
        solved, wrong = _stated(right), _stated(str(int(right) + 10))
        prompt = asked.prompt(number)
        match form:
            case "review":
                is_wrong = number == 1
                answer = speech("Answer", wrong if is_wrong else solved)
                verdict = f"Wrong. It is {right}." if is_wrong else "Right."
                add("Solver", prompt, solved)
                add("Reviewer", _paragraphs(question, answer, _REVIEW), verdict)
                if is_wrong:
                    add("Solver", _paragraphs(prompt, answer, speech("Review", verdict), _AGAIN), solved)
            case "vote":
                answers = [wrong if one == number else solved for one in range(workers)]
                add("Solver", prompt, solved)
                add("Chooser", _paragraphs(_CHOOSE, *_numbered("Answer", answers), prompt), solved)
            case "plan":
                plan = [f"Count up from {question.split()[2]}.", "Add the tens, then the ones."] * workers
                add("Planner", _paragraphs(question, _PLAN.format(count=workers)), "\n".join(plan[:workers]))
                parts = speech("Question", question), speech("Planner", plan[number % 2])
                add("Worker", _paragraphs(*parts), f"It is {right}.")
                helped = _numbered("Helper", [f"It is {right}."] * workers)
                add("Planner", _paragraphs(*helped, prompt), solved)
    return turns


def _stated(answer: str) -> str:
    return f"The answer is: {answer}"


class WorkflowEpisode(Episode):
    """One question, worked on in a form. The artifact is the question that is Asked."""

    episode_type = "workflow"

    def __init__(self, task: Task, settings: WorkflowSettings) -> None:
        self.task = task
        self.settings = settings
        self._work = {"review": self._review, "vote": self._vote, "plan": self._plan}[settings.form]
        self._turns = example_turns(settings.form, settings.workers) if settings.examples else {}
        self._rubric = Rubric([self.scored])

    @property
    def rubric(self) -> Rubric:
        """The score is the reward of each role that acted."""
        return self._rubric

    async def rollout(self, arena: Arena, artifact: Asked, state: EpisodeState | None = None) -> EpisodeState:
        """Let the roles work. ``first`` is the first answer and ``read`` the last, as the task reads them."""
        state = state or EpisodeState()
        first, last = await self._work(arena, artifact, state)
        read = partial(self.task.read, artifact.number)
        state.data |= {"first": read(first), "read": read(last)}
        return state

    def get_extras(self, state: EpisodeState) -> dict[str, Any]:
        """Return the first and the last answer that were read."""
        return dict(state.data)

    async def score(self, asked: Asked, read: str | None) -> float:
        """Return the score of an answer that was read; 0 if there is none."""
        return 0.0 if read is None else await self.task.grade(asked.number, read)

    async def scored(self, rollout: Rollout, arena: Arena) -> dict[str, float]:
        """Return the score of the last answer for each role that acted."""
        score = await self.score(rollout.artifact, rollout.extras["read"])
        return dict.fromkeys((step.role_id for step in rollout.steps), score)

    async def _review(self, arena: Arena, asked: Asked, state: EpisodeState) -> tuple[str, str]:
        (first,) = answers = await self._ask("Solver", [self._question(asked)], arena, state)
        for _ in range(self.settings.rounds):
            shown = [asked.question, speech("Answer", answers[0].strip())]
            (review,) = await self._ask("Reviewer", [_paragraphs(*shown, _REVIEW)], arena, state)
            if review.strip().lower().startswith(ACCEPTED):
                break
            prompt = _paragraphs(self._question(asked), *shown[1:], speech("Review", review.strip()), _AGAIN)
            answers = await self._ask("Solver", [prompt], arena, state)
        return first, answers[0]

    async def _vote(self, arena: Arena, asked: Asked, state: EpisodeState) -> tuple[str, str]:
        answers = await self._ask("Solver", [self._question(asked)] * self.settings.workers, arena, state)
        shown = _numbered("Answer", answers)
        prompt = _paragraphs(_CHOOSE, *shown, self._question(asked))
        (chosen,) = await self._ask("Chooser", [prompt], arena, state)
        return answers[0], chosen

    async def _plan(self, arena: Arena, asked: Asked, state: EpisodeState) -> tuple[str, str]:
        workers = self.settings.workers
        (plan,) = await self._ask(
            "Planner", [_paragraphs(asked.question, _PLAN.format(count=workers))], arena, state
        )
        parts = [line.strip() for line in plan.splitlines() if line.strip()][:workers]
        prompts = [_paragraphs(speech("Question", asked.question), speech("Planner", one)) for one in parts]
        done = await self._ask("Worker", prompts, arena, state)
        prompt = _paragraphs(*_numbered("Helper", done), self._question(asked))
        (answer,) = await self._ask("Planner", [prompt], arena, state)
        return done[0] if done else "", answer

    def _question(self, asked: Asked) -> str:
        return self.task.prompt(asked.number)

    async def _ask(
        self, role_id: str, prompts: Sequence[str], arena: Arena, state: EpisodeState
    ) -> list[str]:
        """Ask a role all prompts at once, and return what it says."""
        role, before = arena.get_role(role_id), self._turns.get(role_id)
        asked = [role.build_messages(prompt, before) for prompt in prompts]
        answers = await all_results(self.call_model(role_id, messages, arena) for messages in asked)
        state.trajectory += [
            answer.to_step(role_id, messages) for answer, messages in zip(answers, asked, strict=True)
        ]
        return [answer.text for answer in answers]


def _paragraphs(*parts: str) -> str:
    return "\n\n".join(parts)


def _numbered(name: str, texts: Sequence[str]) -> list[str]:
    return [speech(f"{name} {number}", text.strip()) for number, text in enumerate(texts, start=1)]


class WorkflowArena(ProgramArena[WorkflowSettings]):
    """Questions of a source, each worked on several times in an update.

    The episodes on a question in an update are compared with each other (``meta["group"]``). All roles have
    one policy, unless the settings' ``policies`` are ``isolated``.
    """

    def set_up(self) -> None:
        """Load the questions, and add the roles of the form."""
        settings = self.settings
        task, self.trained, self.held_out = load_split(settings.questions, FIELD, settings.score)
        self.episode = WorkflowEpisode(task, settings)
        for role_id in ROLES[settings.form]:
            self.add_role(Role(role_id))
        self.add_episode("workflow", self.episode)

    def get_batch(self) -> list[EpisodeRequest]:
        """Return ``batch_size`` requests for the next questions, ``episodes_per_question`` for each."""
        size, each = self.settings.batch_size, self.settings.episodes_per_question
        return self.requests_in_turns("workflow", self.trained, size, each, self.episode.task.asked)

    async def evaluate(self) -> dict[str, list[float]]:
        """Work on held-out questions, always the same; failed episodes are left out.

        ``held-out score``: of the last answer, for each question. ``held-out first answer``: the score of the
        first one, of a Solver or Worker. ``held-out answer stated``: 1, or 0 if no last answer could be read.
        """
        numbers = self.held_out[: self.settings.evaluation_questions]
        done = await self.finished(self.evaluation_requests("workflow", numbers, self.episode.task.asked))
        scores = {
            name: await all_results(self.episode.score(one.artifact, one.extras[read]) for one in done)
            for name, read in (("held-out score", "read"), ("held-out first answer", "first"))
        }
        return scores | {"held-out answer stated": [float(one.extras["read"] is not None) for one in done]}
