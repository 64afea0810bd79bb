"""The episodes of provers and a verifier: a solution that it scores, and one whose truth it is taught."""

from typing import Any

from sparring.core import Arena, Episode, EpisodeError, EpisodeState, Rollout, Rubric
from sparring.core.credit.assigners import TARGET
from sparring.programs.solutions import (
    RIGHT_VERDICT,
    VERIFIER,
    WRONG_VERDICT,
    is_aligned,
    log_probability,
    prover_messages,
    score_of,
    truth_of,
    verifier_messages,
)
from sparring.programs.tasks import Task


class ProveEpisode(Episode):
    """One prover's solution, which the verifier scores while it stands still.

    The artifact is ``{"number": ..., "question": ..., "author": role}``. Until the update is complete, the
    reward is the score, with a minus if the solution is not aligned.
    """

    episode_type = "prove"

    def __init__(self, task: Task) -> None:
        self.task = task
        self._rubric = Rubric([self.score, self.right, self.aligned], [1.0, 0.0, 0.0])

    @property
    def rubric(self) -> Rubric:
        return self._rubric

    async def rollout(self, arena: Arena, artifact: Any, state: EpisodeState | None = None) -> EpisodeState:
        """Let the prover solve the question, and the verifier score the solution."""
        state = state or EpisodeState()
        author, number = artifact["author"], artifact["number"]
        messages = prover_messages(arena, author, self.task.prompt(number))
        response = await self.call_model(author, messages, arena)
        state.trajectory.append(response.to_step(author, messages, tokens=len(response.drawn or [])))
        states, right = await truth_of(
            self.task, number, response.text, cut=response.finish_reason == "length"
        )
        score = await score_of(arena, artifact["question"], response.text)
        fits = is_aligned(author, states=states, right=right)
        state.data |= {"states": states, "right": right, "aligned": fits, "score": _bounded(score)}
        return state

    def get_extras(self, state: EpisodeState) -> dict[str, Any]:
        """Return whether an answer is stated (``states``), ``right`` and ``aligned``, and the ``score``."""
        return dict(state.data)

    def score(self, rollout: Rollout, arena: Arena) -> dict[str, float]:
        """Return the score, with its sign."""
        extras = rollout.extras
        return {rollout.artifact["author"]: extras["score"] if extras["aligned"] else -extras["score"]}

    def right(self, rollout: Rollout, arena: Arena) -> dict[str, float]:
        """Return whether the answer is right."""
        return {rollout.artifact["author"]: float(rollout.extras["right"])}

    def aligned(self, rollout: Rollout, arena: Arena) -> dict[str, float]:
        """Return whether the solution is what the role asks for."""
        return {rollout.artifact["author"]: float(rollout.extras["aligned"])}


class VerifyEpisode(Episode):
    """A solution whose truth is known, and the verifier's right verdict on it, which it is given.

    The artifact is ``{"number": ..., "question": ..., "author": role, "round": ...}``, with the ``text`` and
    whether it is ``right`` if the solution was kept. Otherwise the author writes one now, of which nobody
    learns. The verifier's reward is the log-probability of the truth.
    """

    episode_type = "verify"

    def __init__(self, task: Task) -> None:
        self.task = task
        self._rubric = Rubric([self.log_score, self.accuracy], [1.0, 0.0])

    @property
    def rubric(self) -> Rubric:
        return self._rubric

    async def rollout(self, arena: Arena, artifact: Any, state: EpisodeState | None = None) -> EpisodeState:
        """Get the solution, let the verifier score it, and give it the right verdict."""
        state = state or EpisodeState()
        text, right = await self._solution(arena, artifact)
        state.data |= {"text": text, "right": right}
        state.data["score"] = _bounded(await score_of(arena, artifact["question"], text))
        messages = verifier_messages(arena, artifact["question"], text)
        verdict = RIGHT_VERDICT if right else WRONG_VERDICT
        response = await arena.call_model(messages, role_id=VERIFIER, given=verdict)
        step = response.to_step(VERIFIER, messages)
        step.info[TARGET] = 1.0
        state.trajectory.append(step)
        return state

    async def _solution(self, arena: Arena, artifact: Any) -> tuple[str, bool]:
        if "text" in artifact:
            return artifact["text"], artifact["right"]
        author, number = artifact["author"], artifact["number"]
        messages = prover_messages(arena, author, self.task.prompt(number))
        response = await arena.call_model(messages, role_id=author, return_tokens=False)
        cut = response.finish_reason == "length"
        _, right = await truth_of(self.task, number, response.text, cut=cut)
        return response.text, right

    def get_extras(self, state: EpisodeState) -> dict[str, Any]:
        """Return the solution's ``text``, whether it is ``right``, and the ``score`` that it had."""
        return dict(state.data)

    def log_score(self, rollout: Rollout, arena: Arena) -> dict[str, float]:
        """Return the log-probability of the truth."""
        return {VERIFIER: log_probability(rollout.extras["score"], rollout.extras["right"])}

    def accuracy(self, rollout: Rollout, arena: Arena) -> dict[str, float]:
        """Return whether the truth was the likelier verdict."""
        return {VERIFIER: float((rollout.extras["score"] > 0) == rollout.extras["right"])}


def _bounded(score: float) -> float:
    """Return a finite score. Raises an EpisodeError for any other: both verdicts are impossible."""
    if not -1e6 < score < 1e6:
        raise EpisodeError(f"the verifier's score is {score}, so one of its verdicts is impossible")
    return score
