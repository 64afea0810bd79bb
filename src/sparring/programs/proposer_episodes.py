"""The episodes of a proposer and its solvers: a proposal, which is answered several times, and an answer."""

from typing import Any

from sparring.config.programs import ProposerSolverSettings
from sparring.core import (
    Arena,
    EpisodeError,
    EpisodeRequest,
    EpisodeState,
    RewardFn,
    Rollout,
    Rubric,
    SingleTurnEpisode,
    Utterance,
)
from sparring.core.current_episode import current_episode
from sparring.programs.data_gate import DataGate
from sparring.programs.labels import Labels, failure_reward, lowest_reward, question_reward
from sparring.programs.questions import Arithmetic, Domain, Question, Turns

PROPOSER, SOLVER = "Proposer", "Solver"
DEFAULTS = ProposerSolverSettings()


def named(name: str, kind: str) -> str:
    """Return the name of an episode: each kind of question has its own, and so its own baselines."""
    return f"{name} {kind}".strip()


def make_proposer_rubric(
    proposer_role: str, target_pass_rate: float = 0.5, settings: ProposerSolverSettings = DEFAULTS
) -> Rubric:
    """Return a rubric with the reward of ``question_reward``: by default 1 - 2 |pass rate - target|, but at
    least -0.5. A repeated question earns -0.5, an invalid one -1, unless the settings say otherwise.

    With ``penalties``, one that is invalid earns -0.5, or -1 if it lacks the requested form.

    Metrics without a reward: ``valid``, ``leaked`` and ``repeated`` (1 or 0), ``failed_solvers``, and of
    questions that were asked ``pass_rate`` and ``agreement``, the share of the most common answer.
    ``label_right`` says whether that answer is the true one, and ``stated_right`` whether the proposer's is,
    where the truth is known; 0 where there is none.
    """
    kind = settings.proposer_reward

    def goldilocks(rollout: Rollout, arena: Arena) -> dict[str, float]:
        extras = rollout.extras
        if not extras["valid"] and not extras.get("leaked"):
            lost = failure_reward(extras["well_formed"]) if settings.penalties else settings.invalid_reward
            return {proposer_role: lost}
        if extras["repeated"] and settings.repetitions == "stored":
            return {proposer_role: lowest_reward(kind)}
        return {proposer_role: question_reward(kind, extras["pass_rate"], target_pass_rate)}

    def measured(name: str) -> RewardFn:
        def measure(rollout: Rollout, arena: Arena) -> dict[str, float]:
            return {proposer_role: float(rollout.extras[name])} if name in rollout.extras else {}

        measure.__name__ = name
        return measure

    names = ("valid", "leaked", "repeated", "failed_solvers", "pass_rate", "agreement")
    metrics = [measured(name) for name in (*names, "label_right", "stated_right")]
    return Rubric([goldilocks, *metrics], [1.0] + [0.0] * len(metrics))


class SolveEpisode(SingleTurnEpisode):
    """One question and one answer, with reward 1 if it is right and not truncated, else 0, which labels may
    replace in training. The artifact is a Question. With ``penalties``, an answer that is wrong earns -0.5,
    and one that states none -1. With a ``kind``, the episode's name is ``solve KIND``."""

    episode_type = "solve"

    def __init__(
        self,
        solver_role: str = SOLVER,
        domain: Domain | None = None,
        *,
        kind: str = "",
        penalties: bool = False,
    ) -> None:
        super().__init__()
        self.episode_type = named("solve", kind)
        self.solver_role = solver_role
        self.domain = domain or Arithmetic()
        self._turns = self.domain.solver_turns()
        self._rubric = Rubric([self.exact_match, self.penalty] if penalties else [self.exact_match])

    @property
    def rubric(self) -> Rubric:
        return self._rubric

    def get_initial_actor(self, artifact: Any, state: EpisodeState) -> str:
        return self.solver_role

    def get_initial_prompt(self, arena: Arena, artifact: Any, state: EpisodeState) -> str:
        _show(state, self.solver_role, self._turns)
        return self.domain.solver_prompt(artifact)

    def get_extras(self, state: EpisodeState) -> dict[str, Any]:
        """Return ``result``, which the solver stated; it is ``None`` if there is none."""
        step = state.trajectory[-1]
        cut = step.info["finish_reason"] == "length"
        return {"result": None if cut else self.domain.parse_answer(step.completion_text)}

    async def exact_match(self, rollout: Rollout, arena: Arena) -> dict[str, float]:
        """Return 1 for the question's own answer, else 0; a metric as well, whatever the labels are. The
        extra ``right`` says the same."""
        result = rollout.extras["result"]
        right = result is not None and await self.domain.judge(result, rollout.artifact)
        rollout.extras["right"] = right
        return {self.solver_role: float(right)}

    def penalty(self, rollout: Rollout, arena: Arena) -> dict[str, float]:
        """Return what an answer loses that is not right."""
        extras = rollout.extras
        lost = 0.0 if extras["right"] else failure_reward(extras["result"] is not None)
        return {self.solver_role: lost}


class ProposerEpisode(SingleTurnEpisode):
    """One proposal, followed by ``solver_rollouts`` sub-episodes ``solve`` on it.

    The artifact is ``{"examples": [Question, ...]}``. A question that cannot be parsed or is truncated is
    invalid and has no sub-episodes, unless it can be asked and leaks through the gate. One that is already in
    the arena's store ``questions`` is a repetition; without that rule, a proposer soon writes the same good
    question every time. Failed sub-episodes are left out of the pass rate and counted; if all of them fail,
    this episode fails too.

    Solvers are trained on sub-episodes with ``train_solvers``, but never on questions whose keys are
    ``held_out``. ``settings`` say what the rewards are, and what leaks. With a ``kind``, the episodes' names
    are ``propose KIND`` and ``solve KIND``.
    """

    episode_type = "propose"

    def __init__(
        self,
        proposer_role: str = PROPOSER,
        solver_rollouts: int = 8,
        target_pass_rate: float = 0.5,
        domain: Domain | None = None,
        *,
        train_solvers: bool = False,
        held_out: frozenset[str] = frozenset(),
        settings: ProposerSolverSettings = DEFAULTS,
        solver_role: str = SOLVER,
        kind: str = "",
    ) -> None:
        super().__init__()
        self.episode_type = named("propose", kind)
        self.solve = named("solve", kind)
        self.proposer_role = proposer_role
        self.solver_role = solver_role
        self.solver_rollouts = solver_rollouts
        self.domain = domain or Arithmetic()
        self.train_solvers = train_solvers
        self.held_out = held_out
        self.labels = Labels(self.domain, settings.solver_labels, settings.proposer_labels)
        self.gate = DataGate(settings.gate)
        self._rubric = make_proposer_rubric(proposer_role, target_pass_rate, settings)

    @property
    def rubric(self) -> Rubric:
        return self._rubric

    def get_initial_actor(self, artifact: Any, state: EpisodeState) -> str:
        return self.proposer_role

    def get_initial_prompt(self, arena: Arena, artifact: Any, state: EpisodeState) -> str:
        _show(state, self.proposer_role, self.domain.proposer_turns(artifact["examples"]))
        return self.domain.proposer_prompt()

    async def rollout(self, arena: Arena, artifact: Any, state: EpisodeState | None = None) -> EpisodeState:
        state = await super().rollout(arena, artifact, state)
        step = state.trajectory[-1]
        cut = step.info["finish_reason"] == "length"
        written = None if cut else self.domain.parse_question(step.completion_text)
        question = None if written is None else await self.domain.checked(written)
        leaked = self._leaked(step.completion_text) if question is None and not cut else None
        asked = question or leaked
        found = {"question": asked, "valid": question is not None, "leaked": leaked is not None}
        state.data |= found | {"well_formed": written is not None, "held_out": False, "repeated": False}
        if asked is not None:
            key = self.domain.key(asked)
            store = arena.stores.get("questions")
            state.data["held_out"] = key in self.held_out
            state.data["repeated"] = store is not None and store.get(key) is not None
            trained = self.train_solvers and key not in self.held_out
            request = EpisodeRequest(self.solve, asked, is_trainable=trained)
            state.child_results += await arena.generate_rollouts([request] * self.solver_rollouts)
            solved = [one.rollout for one in state.child_results if one.rollout.error is None]
            state.data["judged"] = self._judged(asked, solved) if solved else {}
        return state

    def _leaked(self, text: str) -> Question | None:
        """Return an invalid question that can be asked, if it passes for a valid one."""
        question = self.domain.parse_invalid(text)
        episode = current_episode.get()
        seed = (episode.seed if episode is not None else None) or 0
        return question if question is not None and self.gate.leaks(seed) else None

    def get_extras(self, state: EpisodeState) -> dict[str, Any]:
        """Return ``valid``, ``leaked``, ``well_formed``, ``question`` (``None`` if it was not asked),
        ``held_out``, ``repeated``, ``solver_rewards`` and ``failed_solvers``; for a question that was asked
        also ``pass_rate``, ``agreement``, ``label_agrees`` and whether labels are true."""
        solved = [result.rollout for result in state.child_results]
        finished = [rollout for rollout in solved if rollout.error is None]
        names = ("valid", "leaked", "well_formed", "question", "held_out", "repeated")
        extras = {
            **{name: state.data[name] for name in names},
            "solver_rewards": [sum(rollout.rewards.values()) for rollout in finished],
            "failed_solvers": len(solved) - len(finished),
        }
        if solved and not finished:
            raise EpisodeError(f"all {len(solved)} solvers failed; the last: {solved[-1].error}")
        judged: dict[str, float] = state.data.get("judged", {})
        return extras | judged

    def _judged(self, question: Question, solved: list[Rollout]) -> dict[str, float]:
        """Reward the solvers by their labels, and return what is known about the question."""
        answers = [rollout.extras["result"] for rollout in solved]
        counted = self.labels.vote(answers)
        self.labels.reward_solvers(self.solver_role, solved, counted)
        common = None if counted.answer is None else solved[answers.index(counted.answer)]
        stated = question.get("stated")
        judged: dict[str, float] = {
            "pass_rate": self.labels.pass_rate(question, solved, counted),
            "agreement": counted.share,
            "label_agrees": common is not None and self.labels.is_right(common, question),
        }
        if self.domain.truth_is_known:
            judged["label_right"] = float(common is not None and common.extras["right"])
            if stated is not None:
                judged["stated_right"] = float(self.domain.is_correct(stated, question))
        return judged


def _show(state: EpisodeState, role_id: str, turns: Turns) -> None:
    for asked, answered in turns:
        state.transcript += [Utterance("", asked), Utterance(role_id, answered)]
