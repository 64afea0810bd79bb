"""A proposer writes questions and solvers answer them; the best question is one that solvers half solve.

Each proposal spawns solver episodes. The share of right answers is the question's pass rate, by which the
proposer earns; the settings say which answers are right (``labels.py``) and what that is worth
(``proposer_rewards.py``). A data gate lets questions into training (``data_gate.py``): solvers learn from
them, and they go to the store ``questions`` and are asked again. By default, a question earns its full reward
only once: a repetition of a stored question earns the lowest reward of a valid one, and copies within one
step share the rewards of one new question and repetitions.
"""

import random
from typing import Any

from sparring.config.programs import ProposerSolverSettings
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
from sparring.core.current_episode import current_episode
from sparring.programs.data_gate import DataGate, Proposed
from sparring.programs.expressions import Expressions
from sparring.programs.labels import Labels
from sparring.programs.proposer_rewards import lowest_reward, question_reward
from sparring.programs.questions import Arithmetic, Domain, OpenQuestions, Question, Turns
from sparring.programs.similarity import cluster_shares
from sparring.programs.task_sources import load_questions
from sparring.programs.tasks import hold_out

DEFAULTS = ProposerSolverSettings()
LEAST_WEIGHT = 0.05
EVALUATION_PROMPTS = 4
CLUSTER_DISTANCE = 0.5
"""The mean distance below which clusters of similar questions are one, as in the code of R-Zero."""


def make_proposer_rubric(
    proposer_role: str, target_pass_rate: float = 0.5, settings: ProposerSolverSettings = DEFAULTS
) -> Rubric:
    """Return a rubric with the reward of ``question_reward``: by default 1 - 2 |pass rate - target|, but at
    least -0.5. A repeated question earns -0.5, an invalid one -1, unless the settings say otherwise.

    Metrics without a reward: ``valid``, ``leaked`` and ``repeated`` (1 or 0), ``failed_solvers``, and of
    questions that were asked ``pass_rate`` and ``agreement``, the share of the most common answer.
    ``label_right`` says whether that answer is the true one, and ``stated_right`` whether the proposer's is,
    where the truth is known; 0 where there is none.
    """
    kind = settings.proposer_reward

    def goldilocks(rollout: Rollout, arena: Arena) -> dict[str, float]:
        extras = rollout.extras
        if not extras["valid"] and not extras.get("leaked"):
            return {proposer_role: settings.invalid_reward}
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
    replace in training. The artifact is a Question."""

    episode_type = "solve"

    def __init__(self, solver_role: str = "Solver", domain: Domain | None = None) -> None:
        super().__init__()
        self.solver_role = solver_role
        self.domain = domain or Arithmetic()
        self._turns = self.domain.solver_turns()
        self._rubric = Rubric([self.exact_match])

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

    def exact_match(self, rollout: Rollout, arena: Arena) -> dict[str, float]:
        """Return 1 for the question's own answer, else 0; a metric as well, whatever the labels are."""
        result = rollout.extras["result"]
        right = result is not None and self.domain.is_correct(result, rollout.artifact)
        return {self.solver_role: float(right)}


class ProposerEpisode(SingleTurnEpisode):
    """One proposal, followed by ``solver_rollouts`` sub-episodes ``solve`` on it.

    The artifact is ``{"examples": [Question, ...]}``. A question that cannot be parsed or is truncated is
    invalid and has no sub-episodes, unless it can be asked and leaks through the gate. One that is already in
    the arena's store ``questions`` is a repetition; without that rule, a proposer soon writes the same good
    question every time. Failed sub-episodes are left out of the pass rate and counted; if all of them fail,
    this episode fails too.

    Solvers are trained on sub-episodes with ``train_solvers``, but never on questions whose keys are
    ``held_out``. ``settings`` say what the rewards are, and what leaks.
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
        settings: ProposerSolverSettings = DEFAULTS,
        solver_role: str = "Solver",
    ) -> None:
        super().__init__()
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
        question = None if cut else self.domain.parse_question(step.completion_text)
        leaked = self._leaked(step.completion_text) if question is None and not cut else None
        asked = question or leaked
        found = {"question": asked, "valid": question is not None, "leaked": leaked is not None}
        state.data |= found | {"held_out": False, "repeated": False}
        if asked is not None:
            key = self.domain.key(asked)
            store = arena.stores.get("questions")
            state.data["held_out"] = key in self.held_out
            state.data["repeated"] = store is not None and store.get(key) is not None
            trained = self.train_solvers and key not in self.held_out
            request = EpisodeRequest("solve", asked, is_trainable=trained)
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
        """Return ``valid``, ``leaked``, ``question`` (``None`` if it was not asked), ``held_out``,
        ``repeated``, ``solver_rewards`` and ``failed_solvers``; for a question that was asked also
        ``pass_rate``, ``agreement``, ``label_agrees`` and whether labels are true."""
        solved = [result.rollout for result in state.child_results]
        finished = [rollout for rollout in solved if rollout.error is None]
        extras = {
            **{name: state.data[name] for name in ("valid", "leaked", "question", "held_out", "repeated")},
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
        common, stated = counted.answer, question.get("stated")
        judged: dict[str, float] = {
            "pass_rate": self.labels.pass_rate(question, answers, counted),
            "agreement": counted.share,
            "label_agrees": common is not None and self.labels.is_right(common, question),
        }
        if self.domain.truth_is_known:
            judged["label_right"] = float(common is not None and self.domain.is_correct(common, question))
            if stated is not None:
                judged["stated_right"] = float(self.domain.is_correct(stated, question))
        return judged


def _split_questions(settings: SplitQuestions) -> tuple[list[Question], list[Question]]:
    """Return the questions of a source: those that a proposer may see, and the held-out ones."""
    task = load_questions(settings, "program.questions.name")
    given: list[Question] = [{"question": one.text, "ground_truth": one.answer} for one in task.questions]
    texts = [one["question"] for one in given]
    seen, held_out = hold_out(texts, settings.test_size, settings.seed, "program.questions")
    return [given[place] for place in seen], [given[place] for place in held_out]


def _computed(settings: ProposerSolverSettings) -> Domain:
    return Expressions(settings.depth) if settings.domain == "expressions" else Arithmetic()


def _show(state: EpisodeState, role_id: str, turns: Turns) -> None:
    for asked, answered in turns:
        state.transcript += [Utterance("", asked), Utterance(role_id, answered)]


class ProposerSolverArena(Arena):
    """Proposals, their solvers, and repeated questions from the store ``questions``.

    A proposer sees some of the initial ``questions``, not the store's best: a small model would copy them.
    The proposals of a step come in groups that share a prompt and are compared with each other; so are the
    answers to a question. Of n copies of a new question in one step, one counts as new and the others as
    repetitions; each gets the mean of these rewards, and ``copies`` is a metric.

    Questions that enter through the gate are trained on and stored once each, with a weight that is 1 at the
    target pass rate and decreases in proportion to the distance from it, down to 0.05. Held-out questions get
    weight 0: they count as repetitions if they are proposed again, but are never shown, asked again or
    trained on. The metric ``enters`` is 1 or 0 for each proposal, and ``gate_NAME`` for each of the gate's
    demands on those that were asked.

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
        if settings.questions is not None and questions is None and settings.domain in (None, "words"):
            questions, held_out = _split_questions(settings.questions)
        self.domain = domain or (OpenQuestions(questions) if questions else _computed(settings))
        self.questions = questions or self.domain.seed_questions()
        self.held_out = self.domain.held_out_questions(300) if held_out is None else held_out
        self._held_out_keys = frozenset(map(self.domain.key, self.held_out))
        proposer, solver = settings.proposer_policy, settings.solver_policy
        self.add_role(Role("Proposer", max_tokens=self.domain.proposal_tokens, policy=proposer))
        self.add_role(Role("Solver", max_tokens=self.domain.answer_tokens, policy=solver))
        self.add_episode("solve", SolveEpisode("Solver", self.domain))
        propose = ProposerEpisode(
            "Proposer",
            settings.solver_rollouts,
            settings.target_pass_rate,
            self.domain,
            train_solvers=settings.train_solvers,
            held_out=self._held_out_keys,
            settings=settings,
        )
        self.labels, self.gate = propose.labels, propose.gate
        self.add_episode("propose", propose)
        self.add_store("questions", ArtifactStore(settings.store_size, derive_seed(seed, "questions")))
        for question in self.questions:
            self._store(question, 1.0)

    def _store(self, question: Question, weight: float) -> None:
        key = self.domain.key(question)
        weight = 0.0 if key in self._held_out_keys else weight
        self.stores["questions"].add(Artifact(question, key, weight))

    def get_batch(self) -> list[EpisodeRequest]:
        """Return ``batch_size`` proposals and ``solver_rollouts`` requests for each question asked again."""
        rng = random.Random(derive_seed(self.seed, "examples", self.step_num))
        store = self.stores["questions"]
        requests: list[EpisodeRequest] = []
        for index in range(self.settings.batch_size):
            if index % self.settings.proposals_per_prompt == 0:
                shown = rng.sample(self.questions, min(self.settings.examples, len(self.questions)))
            group = f"prompt-{index // self.settings.proposals_per_prompt}"
            requests.append(EpisodeRequest("propose", {"examples": shown}, {"group": group}))
        for one in store.sample(self.settings.asked_again, weighted=True):
            again = EpisodeRequest("solve", one.data, {"group": one.id})
            requests += [again] * self.settings.solver_rollouts
        return requests

    def adjust_rewards(self, results: list[GenerateResult]) -> None:
        """Pay for repetitions what the settings say, reward answers to questions that were asked again by
        their labels, and let questions into training."""
        asked = [one for one in results if one.rollout.extras.get("question") and one.rollout.error is None]
        if self.settings.repetitions == "stored":
            self._share_among_copies([one.rollout for one in asked if not one.rollout.extras["repeated"]])
        elif self.settings.repetitions == "clusters":
            proposals = sum(one.rollout.episode_type == "propose" for one in results)
            self._subtract_cluster_shares([one.rollout for one in asked], proposals)
        for rollouts in self._asked_again(results):
            counted = self.labels.vote([rollout.extras["result"] for rollout in rollouts])
            self.labels.reward_solvers("Solver", rollouts, counted)
        self._pass_gate(results, asked)

    def _share_among_copies(self, new: list[Rollout]) -> None:
        """Let the copies of a new question share its reward."""
        lowest = lowest_reward(self.settings.proposer_reward)
        copies: dict[str, list[Rollout]] = {}
        for rollout in new:
            copies.setdefault(self.domain.key(rollout.extras["question"]), []).append(rollout)
        for rollouts in copies.values():
            count = len(rollouts)
            for rollout in rollouts:
                rollout.metrics["copies/Proposer"] = float(count)
                repetitions = (count - 1) * lowest
                rollout.set_reward("Proposer", (rollout.rewards["Proposer"] + repetitions) / count)

    def _subtract_cluster_shares(self, asked: list[Rollout], proposals: int) -> None:
        """Take from each question's reward the part of the proposals that are like it; 0 is the least."""
        texts = [rollout.extras["question"]["question"] for rollout in asked]
        for rollout, share in zip(asked, cluster_shares(texts, CLUSTER_DISTANCE, proposals), strict=True):
            rollout.metrics["cluster_share/Proposer"] = share
            rollout.set_reward("Proposer", max(0.0, rollout.rewards["Proposer"] - share))

    def _pass_gate(self, results: list[GenerateResult], asked: list[GenerateResult]) -> None:
        """Leave the solvers of questions that do not enter out of training, and say why in the metrics."""
        known = {one.id: one.data["question"] for one in self.stores["questions"].all()}
        verdicts = self.gate.judge([self._proposed(one.rollout) for one in asked], known)
        for result in results:
            if result.rollout.episode_type == "propose" and result.rollout.error is None:
                result.rollout.metrics["enters/Proposer"] = 0.0
        for result, verdict in zip(asked, verdicts, strict=True):
            named = {f"gate_{name}/Proposer": float(has) for name, has in verdict.items()}
            enters = all(verdict.values())
            result.rollout.metrics |= named | {"enters/Proposer": float(enters)}
            for child in result.children:
                child.is_trainable = child.is_trainable and enters

    def _proposed(self, rollout: Rollout) -> Proposed:
        extras = rollout.extras
        found = (extras["pass_rate"], extras["agreement"], extras["label_agrees"])
        return Proposed(self.domain.key(extras["question"]), extras["question"]["question"], *found)

    def _asked_again(self, results: list[GenerateResult]) -> list[list[Rollout]]:
        """Return the answers to each question that was asked again, without failures."""
        again: dict[str, list[Rollout]] = {}
        for result in results:
            rollout = result.rollout
            if rollout.episode_type == "solve" and rollout.error is None:
                again.setdefault(self.domain.key(rollout.artifact), []).append(rollout)
        return list(again.values())

    def end_step(self, number: int, results: list[GenerateResult], verbose: bool = False) -> TrainingBatch:
        """Store the step's questions, in the order of the requests."""
        batch = super().end_step(number, results, verbose)
        for rollout in (result.rollout for result in results):
            if rollout.metrics.get("enters/Proposer"):
                self._store(rollout.extras["question"], self._weight(rollout.extras["pass_rate"]))
        for rollouts in self._asked_again(results):
            question, answers = rollouts[0].artifact, [rollout.extras["result"] for rollout in rollouts]
            pass_rate = self.labels.pass_rate(question, answers, self.labels.vote(answers))
            self._store(question, self._weight(pass_rate))
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
            self.evaluation_request("solve", question, "solve", index)
            for index, question in enumerate(self.held_out)
        ]
        propose = self._evaluation_proposals()
        results = await self.generate_rollouts(solve + propose)
        rollouts = [result.rollout for result in results if result.rollout.error is None]
        solved = [one for one in rollouts if one.episode_type == "solve"]
        proposed = [one.extras for one in rollouts if one.episode_type == "propose"]
        farthest = max(self.settings.target_pass_rate, 1 - self.settings.target_pass_rate)
        of_solver = {"solver exact match": [one.rewards["Solver"] for one in solved]} if solve else {}
        return of_solver | {
            "proposer distance": [
                abs(one["pass_rate"] - self.settings.target_pass_rate) if one["valid"] else farthest
                for one in proposed
            ],
            "proposer valid": [float(one["valid"]) for one in proposed],
        }

    def _evaluation_proposals(self) -> list[EpisodeRequest]:
        rng = random.Random(derive_seed(self.seed, "evaluation"))
        count = min(self.settings.examples, len(self.questions))
        shown = [rng.sample(self.questions, count) for _ in range(EVALUATION_PROMPTS)]
        return [
            self.evaluation_request(
                "propose", {"examples": shown[index % EVALUATION_PROMPTS]}, "propose", index
            )
            for index in range(self.settings.evaluation_proposals)
        ]
