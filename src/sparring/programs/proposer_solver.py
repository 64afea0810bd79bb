"""A proposer writes questions and solvers answer them; the best question is one that solvers half solve.

Each proposal spawns solver episodes. The share of right answers is the question's pass rate. The nearer it is
to the target, the more the proposer earns. Good questions go to the store ``questions`` and are asked again.
A question earns its full reward only once: a repetition of a stored question earns the lowest reward of a
valid one, and copies within one step share the rewards of one new question and repetitions.
"""

import math
import random
from typing import Any

from sparring.config.programs import ProposerRewards, ProposerSolverSettings
from sparring.config.questions import SplitQuestions
from sparring.core import (
    Arena,
    Artifact,
    ArtifactStore,
    CreditAssigner,
    EpisodeError,
    EpisodeRequest,
    EpisodeState,
    GenerateResult,
    GRPOCredit,
    InferenceClient,
    RewardFn,
    Role,
    Rollout,
    Rubric,
    SingleTurnEpisode,
    TrainingBatch,
    Utterance,
    VerboseLogger,
    derive_seed,
)
from sparring.programs.code.reasoning import KINDS
from sparring.programs.learnability import answer_reward, learnability_rubric
from sparring.programs.questions import Arithmetic, Domain, OpenQuestions, Question, Turns
from sparring.programs.task_sources import load_questions
from sparring.programs.tasks import hold_out

DEFAULTS = ProposerSolverSettings()
INVALID_REWARD = -1.0
LOWEST_VALID_REWARD = -0.5
LEAST_WEIGHT = 0.05
EVALUATION_PROMPTS = 4
HELD_OUT = 300
"""Questions of :meth:`ProposerSolverArena.evaluate` that domains make."""


def make_proposer_rubric(proposer_role: str, target_pass_rate: float = 0.5) -> Rubric:
    """Return a rubric with the reward 1 - 2 |pass rate - target|, but at least -0.5.

    A repeated question earns -0.5, an invalid one -1. Metrics without a reward: ``valid`` and ``repeated`` (1
    or 0), ``pass_rate`` of valid questions, ``failed_solvers``.
    """

    def goldilocks(rollout: Rollout, arena: Arena) -> dict[str, float]:
        if not rollout.extras["valid"]:
            return {proposer_role: INVALID_REWARD}
        if rollout.extras["repeated"]:
            return {proposer_role: LOWEST_VALID_REWARD}
        distance = abs(rollout.extras["pass_rate"] - target_pass_rate)
        return {proposer_role: max(LOWEST_VALID_REWARD, 1.0 - 2.0 * distance)}

    def measured(name: str) -> RewardFn:
        def measure(rollout: Rollout, arena: Arena) -> dict[str, float]:
            return {proposer_role: float(rollout.extras[name])} if name in rollout.extras else {}

        measure.__name__ = name
        return measure

    metrics = [measured(name) for name in ("valid", "repeated", "pass_rate", "failed_solvers")]
    return Rubric([goldilocks, *metrics], [1.0, 0.0, 0.0, 0.0, 0.0])


class SolveEpisode(SingleTurnEpisode):
    """One question and one answer, with reward 1 if it is right and not truncated, else 0. The artifact is a
    Question. With ``penalties``, answers that are not right earn what ``learnability.answer_reward`` says.
    With a ``kind``, its name is ``solve KIND``."""

    episode_type = "solve"

    def __init__(
        self,
        solver_role: str = "Solver",
        domain: Domain | None = None,
        *,
        kind: str = "",
        penalties: bool = False,
    ) -> None:
        super().__init__()
        self.episode_type = _episode("solve", kind)
        self.solver_role = solver_role
        self.penalties = penalties
        self.domain = domain or Arithmetic()
        self._turns = self.domain.solver_turns()
        self._rubric = Rubric([self._exact_match])

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

    async def _exact_match(self, rollout: Rollout, arena: Arena) -> dict[str, float]:
        result = rollout.extras["result"]
        right = result is not None and await self.domain.judge(result, rollout.artifact)
        reward = answer_reward(result is not None, right) if self.penalties else float(right)
        return {self.solver_role: reward}


def _is_right(rollout: Rollout) -> bool:
    """Whether an answer earned what only a right one earns."""
    return sum(rollout.rewards.values()) == 1.0


class ProposerEpisode(SingleTurnEpisode):
    """One proposal, followed by ``solver_rollouts`` sub-episodes ``solve`` on it.

    The artifact is ``{"examples": [Question, ...]}``. A question that cannot be parsed or is truncated is
    invalid and has no sub-episodes. One that is already in the arena's store ``questions`` is a repetition;
    without that rule, a proposer soon writes the same good question every time. Failed sub-episodes are left
    out of the pass rate and counted; if all of them fail, this episode fails too.

    Solvers are trained on sub-episodes with ``train_solvers``, but never on questions whose keys are
    ``held_out``.
    """

    episode_type = "propose"

    def __init__(
        self,
        proposer_role: str = "Proposer",
        solver_rollouts: int = 8,
        target_pass_rate: float = 0.5,
        domain: Domain | None = None,
        *,
        train_solvers: bool = False,
        held_out: frozenset[str] = frozenset(),
        kind: str = "",
        rewards: ProposerRewards = "target",
    ) -> None:
        super().__init__()
        self.episode_type = _episode("propose", kind)
        self.proposer_role = proposer_role
        self.solver_rollouts = solver_rollouts
        self.domain = domain or Arithmetic()
        self.train_solvers = train_solvers
        self.held_out = held_out
        self.solve = _episode("solve", kind)
        rubric = make_proposer_rubric(proposer_role, target_pass_rate)
        self._rubric = learnability_rubric(proposer_role, rubric) if rewards == "learnability" else rubric

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
        well_formed = written is not None
        state.data |= {
            "question": question,
            "well_formed": well_formed,
            "held_out": False,
            "repeated": False,
        }
        if question is not None:
            key = self.domain.key(question)
            store = arena.stores.get("questions")
            state.data["held_out"] = key in self.held_out
            state.data["repeated"] = store is not None and store.get(key) is not None
            trained = self.train_solvers and key not in self.held_out
            request = EpisodeRequest(self.solve, question, is_trainable=trained)
            state.child_results += await arena.generate_rollouts([request] * self.solver_rollouts)
        return state

    def get_extras(self, state: EpisodeState) -> dict[str, Any]:
        """Return ``valid``, ``well_formed``, ``question`` (``None`` if invalid), ``held_out``, ``repeated``,
        ``solver_rewards``, ``failed_solvers`` and, for a valid question, ``pass_rate``."""
        solved = [result.rollout for result in state.child_results]
        finished = [rollout for rollout in solved if rollout.error is None]
        rewards = [sum(rollout.rewards.values()) for rollout in finished]
        extras = {
            "valid": state.data["question"] is not None,
            "well_formed": state.data["well_formed"],
            "question": state.data["question"],
            "held_out": state.data["held_out"],
            "repeated": state.data["repeated"],
            "solver_rewards": rewards,
            "failed_solvers": len(solved) - len(finished),
        }
        if solved and not finished:
            raise EpisodeError(f"all {len(solved)} solvers failed; the last: {solved[-1].error}")
        right = [_is_right(rollout) for rollout in finished]
        return extras | ({"pass_rate": sum(right) / len(right)} if right else {})


def _split_questions(settings: SplitQuestions) -> tuple[list[Question], list[Question]]:
    """Return the questions of a source: those that a proposer may see, and the held-out ones."""
    task = load_questions(settings, "program.questions.name")
    given: list[Question] = [{"question": one.text, "ground_truth": one.answer} for one in task.questions]
    texts = [one["question"] for one in given]
    seen, held_out = hold_out(texts, settings.test_size, settings.seed, "program.questions")
    return [given[place] for place in seen], [given[place] for place in held_out]


def _show(state: EpisodeState, role_id: str, turns: Turns) -> None:
    for asked, answered in turns:
        state.transcript += [Utterance("", asked), Utterance(role_id, answered)]


class ProposerSolverArena(Arena):
    """Proposals, their solvers, and repeated questions from the store ``questions``.

    A proposer sees some of the initial ``questions``, not the store's best: a small model would copy them.
    The proposals of a step come in groups that share a prompt and are compared with each other; so are the
    answers to a question. Of n copies of a new question in one step, one counts as new and the others as
    repetitions; each gets the mean of these rewards, and ``copies`` is a metric.

    Valid questions are stored once each, with a weight that is 1 at the target pass rate and decreases in
    proportion to the distance from it, down to 0.05. Held-out questions get weight 0: they count as
    repetitions if they are proposed again, but are never shown, asked again or trained on.

    Args:
        client: answers for both roles.
        settings: the sizes of batches and evaluations, the roles' policies, and what earns most.
        questions: examples for the proposer and initial contents of the store; those of the settings or the
            domain if not given.
        domain: the kind of questions. By default OpenQuestions on ``questions``, or Arithmetic without
            them.
        held_out: questions of :meth:`evaluate`; those of the settings, or 300 of the domain's, if not given.
        seed: seed of episodes and draws.
        credit_assigner: by default GRPO within the groups, normalised.
        logger: where events are written.
    """

    def __init__(
        self,
        client: InferenceClient,
        settings: ProposerSolverSettings = DEFAULTS,
        *,
        questions: list[Question] | None = None,
        domain: Domain | None = None,
        held_out: list[Question] | None = None,
        seed: int = 0,
        credit_assigner: CreditAssigner | None = None,
        logger: VerboseLogger | None = None,
    ) -> None:
        super().__init__(client, credit_assigner or GRPOCredit(normalize=True), seed=seed, logger=logger)
        self.settings = settings
        if settings.questions is not None and questions is None:
            questions, held_out = _split_questions(settings.questions)
        self.domains: dict[str, Domain] = {kind: KINDS[kind]() for kind in settings.code}
        if not self.domains:
            self.domains = {"": domain or (OpenQuestions(questions) if questions else Arithmetic())}
        domains = self.domains.values()
        self.questions = questions or [one for each in domains for one in each.seed_questions()]
        if held_out is None:
            count = HELD_OUT // len(domains)
            held_out = [one for each in domains for one in each.held_out_questions(count)]
        self.held_out = held_out
        self._held_out_keys = frozenset(map(self._key, self.held_out))
        proposer, solver = settings.proposer_policy, settings.solver_policy
        proposal_tokens = max(one.proposal_tokens for one in domains)
        self.add_role(Role("Proposer", max_tokens=proposal_tokens, policy=proposer))
        self.add_role(Role("Solver", max_tokens=max(one.answer_tokens for one in domains), policy=solver))
        for kind, each in self.domains.items():
            penalties = settings.rewards == "learnability"
            solve = SolveEpisode("Solver", each, kind=kind, penalties=penalties)
            self.add_episode(solve.episode_type, solve)
            propose = ProposerEpisode(
                "Proposer",
                settings.solver_rollouts,
                settings.target_pass_rate,
                each,
                train_solvers=settings.train_solvers,
                held_out=self._held_out_keys,
                kind=kind,
                rewards=settings.rewards,
            )
            self.add_episode(propose.episode_type, propose)
        self.add_store("questions", ArtifactStore(settings.store_size, derive_seed(seed, "questions")))
        for question in self.questions:
            self._store(question, 1.0)

    def _key(self, question: Question) -> str:
        return self.domains[_kind(question)].key(question)

    def _store(self, question: Question, weight: float) -> None:
        key = self._key(question)
        weight = 0.0 if key in self._held_out_keys else weight
        self.stores["questions"].add(Artifact(question, key, weight))

    def get_batch(self) -> list[EpisodeRequest]:
        """Return ``batch_size`` proposals and ``solver_rollouts`` requests for each question asked again."""
        rng = random.Random(derive_seed(self.seed, "examples", self.step_num))
        store = self.stores["questions"]
        requests: list[EpisodeRequest] = []
        each = self.settings.proposals_per_prompt
        earlier = self.step_num * math.ceil(self.settings.batch_size / each)
        for index in range(self.settings.batch_size):
            number = index // each
            if index % each == 0:
                kind, shown = self._examples(rng, earlier + number)
            group = {"group": f"prompt-{number}"}
            requests.append(EpisodeRequest(_episode("propose", kind), {"examples": shown}, group))
        for one in store.sample(self.settings.asked_again, weighted=True):
            again = EpisodeRequest(_episode("solve", _kind(one.data)), one.data, {"group": one.id})
            requests += [again] * self.settings.solver_rollouts
        return requests

    def _examples(self, rng: random.Random, number: int) -> tuple[str, list[Question]]:
        """Return what a prompt asks for, the kinds in turn, and the examples that it shows."""
        kind = [*self.domains][number % len(self.domains)]
        known = [one for one in self.questions if _kind(one) == kind]
        return kind, rng.sample(known, min(self.settings.examples, len(known)))

    def adjust_rewards(self, results: list[GenerateResult]) -> None:
        """Let the copies of a new question share its reward, but for rewards by learnability."""
        if self.settings.rewards == "learnability":
            return
        copies: dict[str, list[Rollout]] = {}
        for result in results:
            extras = result.rollout.extras
            if extras.get("valid") and not extras["repeated"]:
                copies.setdefault(self._key(extras["question"]), []).append(result.rollout)
        for rollouts in copies.values():
            count = len(rollouts)
            for rollout in rollouts:
                rollout.metrics["copies/Proposer"] = float(count)
                repetitions = (count - 1) * LOWEST_VALID_REWARD
                rollout.set_reward("Proposer", (rollout.rewards["Proposer"] + repetitions) / count)

    def end_step(self, number: int, results: list[GenerateResult], verbose: bool = False) -> TrainingBatch:
        """Store the step's questions, in the order of the requests."""
        batch = super().end_step(number, results, verbose)
        again: dict[str, list[Rollout]] = {}
        for result in results:
            rollout = result.rollout
            if rollout.error is not None:
                continue
            if rollout.episode_type.startswith("solve"):
                again.setdefault(self._key(rollout.artifact), []).append(rollout)
            elif rollout.extras["valid"]:
                self._store(rollout.extras["question"], self._weight(rollout.extras["pass_rate"]))
        for rollouts in again.values():
            pass_rate = sum(map(_is_right, rollouts)) / len(rollouts)
            self._store(rollouts[0].artifact, self._weight(pass_rate))
        return batch

    def _weight(self, pass_rate: float) -> float:
        farthest = max(self.settings.target_pass_rate, 1 - self.settings.target_pass_rate)
        return max(LEAST_WEIGHT, 1.0 - abs(pass_rate - self.settings.target_pass_rate) / farthest)

    def outcomes(self, result: GenerateResult) -> list[dict[str, float]]:
        """Return one match per valid proposal, in which the solver's score is the pass rate."""
        pass_rate = result.rollout.extras.get("pass_rate")
        return [] if pass_rate is None else [{"Proposer": 1.0 - pass_rate, "Solver": pass_rate}]

    async def evaluate(self) -> dict[str, list[float]]:
        """Measure the solver on the held-out questions and the proposer on new proposals, always the same.

        ``solver exact match``: 1 or 0 per question. ``proposer distance``: |pass rate - target| per proposal,
        with the largest possible value for an invalid one. ``proposer valid``: 1 or 0 per proposal. Failed
        episodes are left out.
        """
        solve = [
            self.evaluation_request(_episode("solve", _kind(question)), question, "solve", index)
            for index, question in enumerate(self.held_out)
        ]
        propose = self._evaluation_proposals()
        results = await self.generate_rollouts(solve + propose)
        rollouts = [result.rollout for result in results if result.rollout.error is None]
        solved = [one for one in rollouts if one.episode_type.startswith("solve")]
        proposed = [one.extras for one in rollouts if one.episode_type.startswith("propose")]
        farthest = max(self.settings.target_pass_rate, 1 - self.settings.target_pass_rate)
        of_solver = {"solver exact match": [float(_is_right(one)) for one in solved]} if solve else {}
        return of_solver | {
            "proposer distance": [
                abs(one["pass_rate"] - self.settings.target_pass_rate) if one["valid"] else farthest
                for one in proposed
            ],
            "proposer valid": [float(one["valid"]) for one in proposed],
        }

    def _evaluation_proposals(self) -> list[EpisodeRequest]:
        rng = random.Random(derive_seed(self.seed, "evaluation"))
        prompts = [self._examples(rng, number) for number in range(EVALUATION_PROMPTS * len(self.domains))]
        asked = [prompts[index % len(prompts)] for index in range(self.settings.evaluation_proposals)]
        return [
            self.evaluation_request(_episode("propose", kind), {"examples": shown}, "propose", index)
            for index, (kind, shown) in enumerate(asked)
        ]


def _kind(question: Question) -> str:
    return question.get("kind", "")


def _episode(name: str, kind: str) -> str:
    """Return the name of an episode: each kind has its own, and so its own baselines."""
    return f"{name} {kind}".strip()
