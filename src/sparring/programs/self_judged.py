"""A proposer of hard instructions, solvers, and a judge of quality (Kuba et al. 2025, arXiv 2509.07414).

For instructions q_1 to q_N with answers a_i1 to a_iG, V(q_i) is the mean of the rewards R(q_i, a_ij) and V_Q
that of the points for quality R_Q(q_i, a_ij). A solver earns R + w R_Q; the proposer earns -V + w V_Q. Less
the means of their groups, which are GRPOCredit's, these are the paper's advantages:
A(a_ij) = R(q_i, a_ij) - V(q_i) and A(q_i) = mean V - V(q_i), with R_Q in both.
"""

from typing import Any

from sparring.config.adversarial_programs import SelfJudgedSettings
from sparring.core import (
    Arena,
    EpisodeRequest,
    EpisodeState,
    GenerateResult,
    RewardFn,
    Role,
    Rollout,
    Rubric,
)
from sparring.programs.points import OBEDIENCE, QUALITY, PointsJudge
from sparring.programs.program_arena import ProgramArena
from sparring.programs.proposer_episodes import PROPOSER, SOLVER, ProposerEpisode, SolveEpisode
from sparring.programs.questions import Arithmetic, Domain, Question, Turns

EXAMPLES = 8
HELD_OUT = 128


def proposer_reward(rewards: list[float], points: list[float], weight: float) -> float:
    """Return -V + w V_Q: the mean points for the quality of the answers, weighted, less their mean reward."""
    value = sum(rewards) / len(rewards)
    return (weight * sum(points) / len(points) if points else 0.0) - value


class Instructions(Domain):
    """Instructions of a task in words: any text is one, and no answer to it is a right one."""

    proposal_tokens = 128
    answer_tokens = 256

    def __init__(self, task: str) -> None:
        self.task = task

    def seed_questions(self) -> list[Question]:
        return []

    def proposer_turns(self, examples: list[Question]) -> Turns:
        return []

    def proposer_prompt(self) -> str:
        return (
            f"Write one instruction for a language model. The task is: {self.task}. It may be easy, hard or "
            "unusual; it should show what the model cannot do yet. The model reads nothing but your words "
            "and can only write. Write the instruction alone, without an answer or a hint."
        )

    def parse_question(self, text: str) -> Question | None:
        return {"question": text.strip(), "ground_truth": ""} if text.strip() else None

    def solver_turns(self) -> Turns:
        return []

    def solver_prompt(self, question: Question) -> str:
        return question["question"]

    def parse_answer(self, text: str) -> str | None:
        return text.strip() or None

    def is_correct(self, result: str, question: Question) -> bool:
        return False


class JudgedSolveEpisode(SolveEpisode):
    """One instruction and one answer. Its reward is the answer's, plus the weighted points for quality.

    The reward is 1 or 0 for a checked answer, or the points of ``reward`` if there is such a judge. An
    answer without words earns no points and is not judged.
    """

    def __init__(
        self, domain: Domain, quality: PointsJudge, quality_weight: float, reward: PointsJudge | None
    ) -> None:
        super().__init__(SOLVER, domain)
        self._reward, self._quality = reward, quality
        functions: list[RewardFn] = [self.reward, self.quality] if quality_weight else [self.reward]
        self._judged = Rubric(functions, [1.0, quality_weight][: len(functions)])

    @property
    def rubric(self) -> Rubric:
        return self._judged

    async def reward(self, rollout: Rollout, arena: Arena) -> dict[str, float]:
        """Return the reward of the answer."""
        if self._reward is not None:
            return {SOLVER: await self._points(self._reward, rollout, arena)}
        return await self.exact_match(rollout, arena)

    async def quality(self, rollout: Rollout, arena: Arena) -> dict[str, float]:
        """Return the points for the quality of instruction and answer."""
        return {SOLVER: await self._points(self._quality, rollout, arena)}

    async def _points(self, judge: PointsJudge, rollout: Rollout, arena: Arena) -> float:
        said = rollout.steps[-1].completion_text
        return await judge.points(arena, rollout.artifact["question"], said) if said.strip() else 0.0


class InstructionEpisode(ProposerEpisode):
    """One instruction, followed by ``solver_rollouts`` sub-episodes ``solve`` on it.

    An instruction without words, cut, or not of the requested form earns what the worst valid one could.
    Solvers do not learn from one whose key is ``held_out``.
    """

    episode_type = "propose"

    def __init__(self, settings: SelfJudgedSettings, domain: Domain, held_out: frozenset[str]) -> None:
        super().__init__(
            PROPOSER, settings.solver_rollouts, domain=domain, train_solvers=True, held_out=held_out
        )
        self._weight = settings.quality_weight
        self._worst = -float(OBEDIENCE.most if settings.is_open else 1)
        self._own = Rubric([self.hardness, self.valid], [1.0, 0.0])

    @property
    def rubric(self) -> Rubric:
        return self._own

    def get_extras(self, state: EpisodeState) -> dict[str, Any]:
        """Return ``valid``, ``question``, ``failed_solvers``, and the ``rewards`` and the points for
        ``quality`` of the answers."""
        extras = super().get_extras(state)
        solved = [one.rollout.metrics for one in state.child_results if one.rollout.error is None]
        return {name: extras[name] for name in ("valid", "question", "failed_solvers")} | {
            "rewards": [one[f"reward/{SOLVER}"] for one in solved],
            "quality": [one[f"quality/{SOLVER}"] for one in solved if f"quality/{SOLVER}" in one],
        }

    def hardness(self, rollout: Rollout, arena: Arena) -> dict[str, float]:
        """Return the proposer's reward."""
        extras = rollout.extras
        if not extras["valid"]:
            return {PROPOSER: self._worst}
        return {PROPOSER: proposer_reward(extras["rewards"], extras["quality"], self._weight)}

    def valid(self, rollout: Rollout, arena: Arena) -> dict[str, float]:
        """Return whether the instruction has the requested form."""
        return {PROPOSER: float(rollout.extras["valid"])}


class SelfJudgedArena(ProgramArena[SelfJudgedSettings]):
    """Instructions and their answers; all instructions of an update are compared with each other, and so are
    the answers to one.

    ``credit_assigner`` is by default GRPO without a division by the deviation.
    """

    def set_up(self) -> None:
        settings = self.settings
        domain: Domain = Instructions(settings.task) if settings.is_open else Arithmetic()
        by_score = settings.judge_by_score
        quality = PointsJudge(QUALITY, settings.judge_model, by_score)
        reward = PointsJudge(OBEDIENCE, settings.reward_model, by_score) if settings.is_open else None
        self.examples = domain.seed_questions()[:EXAMPLES]
        self.add_role(Role(PROPOSER, max_tokens=domain.proposal_tokens, policy=settings.proposer_policy))
        self.add_role(Role(SOLVER, max_tokens=domain.answer_tokens, policy=settings.solver_policy))
        self.held_out = domain.held_out_questions(HELD_OUT)
        self.add_episode("answer", SolveEpisode(SOLVER, domain))
        self.add_episode("solve", JudgedSolveEpisode(domain, quality, settings.quality_weight, reward))
        keys = frozenset(map(domain.key, self.held_out))
        self.add_episode("propose", InstructionEpisode(settings, domain, keys))

    def get_batch(self) -> list[EpisodeRequest]:
        """Return ``batch_size`` proposals."""
        return [EpisodeRequest("propose", {"examples": self.examples})] * self.settings.batch_size

    def outcomes(self, result: GenerateResult) -> list[dict[str, float]]:
        """Return no match: the two earn together what is judged."""
        return []

    async def evaluate(self) -> dict[str, list[float]]:
        """Let new instructions be written and followed, and held-out calculations answered, always with the
        same seeds.

        ``solver exact match``: 1 or 0 for each held-out calculation, if there are some. ``solver reward`` and
        ``answer quality``: one for each answer to a new instruction, the latter only if it is judged.
        ``proposer valid``: 1 or 0. Failed episodes are left out.
        """
        propose = [
            self.evaluation_request("propose", {"examples": self.examples}, "propose", index)
            for index in range(self.settings.evaluation_proposals)
        ]
        answer = [
            self.evaluation_request("answer", question, "answer", index)
            for index, question in enumerate(self.held_out)
        ]
        finished = await self.finished(propose + answer)
        answered = [one.rewards[SOLVER] for one in finished if one.episode_type == "solve"]
        played = [one.extras for one in finished if one.episode_type == "propose"]
        quality = {"answer quality": [points for one in played for points in one["quality"]]}
        return (
            ({"solver exact match": answered} if answer else {})
            | {
                "solver reward": [reward for one in played for reward in one["rewards"]],
                "proposer valid": [float(one["valid"]) for one in played],
            }
            | (quality if self.settings.quality_weight else {})
        )
