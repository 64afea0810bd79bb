"""A proposer writes questions and solvers answer them; the best question is one that solvers half solve.

Each proposal spawns solver episodes. The share of right answers is the question's pass rate, by which the
proposer earns; the settings say which answers are right and what that is worth (``labels.py``). A data gate
lets questions into training (``data_gate.py``): solvers learn from them, and they go to the store
``questions`` and are asked again. By default, a question earns its full reward only once: a repetition of a
stored question earns the lowest reward of a valid one, and copies within one step share the rewards of one
new question and repetitions.
"""

import math
import random

from sparring.config.programs import ProposerSolverSettings
from sparring.config.questions import SplitQuestions
from sparring.core import (
    Artifact,
    ArtifactStore,
    CreditAssigner,
    EpisodeRequest,
    GenerateResult,
    GRPOCredit,
    InferenceClient,
    Role,
    Rollout,
    TrainingBatch,
    VerboseLogger,
    derive_seed,
)
from sparring.programs.code.reasoning import KINDS
from sparring.programs.data_gate import DataGate, Proposed
from sparring.programs.expressions import Expressions
from sparring.programs.labels import Labels, lowest_reward
from sparring.programs.program_arena import ProgramArena
from sparring.programs.proposer_episodes import (
    DEFAULTS,
    ProposerEpisode,
    SolveEpisode,
    make_proposer_rubric,
    named,
)
from sparring.programs.questions import Arithmetic, Domain, OpenQuestions, Question
from sparring.programs.similarity import cluster_shares
from sparring.programs.task_sources import load_split

__all__ = ["ProposerEpisode", "ProposerSolverArena", "SolveEpisode", "make_proposer_rubric"]

LEAST_WEIGHT = 0.05
EVALUATION_PROMPTS = 4
HELD_OUT = 300
"""Questions of :meth:`ProposerSolverArena.evaluate` that domains make."""
CLUSTER_DISTANCE = 0.5
"""The mean distance below which clusters of similar questions are one, as in the code of R-Zero."""


def _split_questions(settings: SplitQuestions) -> tuple[list[Question], list[Question]]:
    """Return the questions of a source: those that a proposer may see, and the held-out ones."""
    task, seen, held_out = load_split(settings, "program.questions")
    given: list[Question] = [{"question": one.text, "ground_truth": one.answer} for one in task.questions]
    return [given[place] for place in seen], [given[place] for place in held_out]


def _computed(settings: ProposerSolverSettings) -> Domain:
    return Expressions(settings.depth) if settings.domain == "expressions" else Arithmetic()


class ProposerSolverArena(ProgramArena[ProposerSolverSettings]):
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
        credit_assigner = credit_assigner or GRPOCredit(normalize=True)
        super().__init__(client, settings, seed=seed, credit_assigner=credit_assigner, logger=logger)
        if settings.questions is not None and questions is None and settings.domain in (None, "words"):
            questions, held_out = _split_questions(settings.questions)
        self.domains: dict[str, Domain] = {kind: KINDS[kind]() for kind in settings.code}
        if not self.domains:
            one = domain or (OpenQuestions(questions) if questions else _computed(settings))
            self.domains = {"": one}
        domains = self.domains.values()
        self.questions = questions or [one for each in domains for one in each.seed_questions()]
        if held_out is None:
            count = HELD_OUT // len(domains)
            held_out = [one for each in domains for one in each.held_out_questions(count)]
        self.held_out = held_out
        self._held_out_keys = frozenset(map(self._key, self.held_out))
        self.gate = DataGate(settings.gate)
        self.labels = {
            kind: Labels(each, settings.solver_labels, settings.proposer_labels)
            for kind, each in self.domains.items()
        }
        self._add_roles()
        for kind, each in self.domains.items():
            self._add_episodes(kind, each)
        self.add_store("questions", ArtifactStore(settings.store_size, derive_seed(seed, "questions")))
        for question in self.questions:
            self._store(question, 1.0)

    def _add_roles(self) -> None:
        settings, domains = self.settings, self.domains.values()
        longest = max(each.proposal_tokens for each in domains)
        self.add_role(Role("Proposer", max_tokens=longest, policy=settings.proposer_policy))
        longest = max(each.answer_tokens for each in domains)
        self.add_role(Role("Solver", max_tokens=longest, policy=settings.solver_policy))

    def _add_episodes(self, kind: str, domain: Domain) -> None:
        settings = self.settings
        solve = SolveEpisode("Solver", domain, kind=kind, penalties=settings.penalties)
        self.add_episode(solve.episode_type, solve)
        propose = ProposerEpisode(
            "Proposer",
            settings.solver_rollouts,
            settings.target_pass_rate,
            domain,
            train_solvers=settings.train_solvers,
            held_out=self._held_out_keys,
            settings=settings,
            kind=kind,
        )
        self.add_episode(propose.episode_type, propose)

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
        earlier = (self.step_num - 1) * math.ceil(self.settings.batch_size / each)
        for index in range(self.settings.batch_size):
            number = index // each
            if index % each == 0:
                kind, shown = self._examples(rng, earlier + number)
            group = {"group": f"prompt-{number}"}
            requests.append(EpisodeRequest(named("propose", kind), {"examples": shown}, group))
        for one in store.sample(self.settings.asked_again, weighted=True):
            kind, group = named("solve", _kind(one.data)), {"group": one.id}
            again = EpisodeRequest(kind, one.data, group, is_trainable=self.settings.train_solvers)
            requests += [again] * self.settings.solver_rollouts
        return requests

    def _examples(self, rng: random.Random, number: int) -> tuple[str, list[Question]]:
        """Return what a prompt asks for, the kinds in turn, and the examples that it shows."""
        kind = [*self.domains][number % len(self.domains)]
        known = [one for one in self.questions if _kind(one) == kind]
        return kind, rng.sample(known, min(self.settings.examples, len(known)))

    def adjust_rewards(self, results: list[GenerateResult]) -> None:
        """Pay for repetitions what the settings say, reward answers to questions that were asked again by
        their labels, and let questions into training."""
        asked = [one for one in results if one.rollout.extras.get("question") and one.rollout.error is None]
        if self.settings.repetitions == "stored":
            self._share_among_copies([one.rollout for one in asked if not one.rollout.extras["repeated"]])
        elif self.settings.repetitions == "clusters":
            proposals = sum(_is_proposal(one.rollout) for one in results)
            self._subtract_cluster_shares([one.rollout for one in asked], proposals)
        for rollouts in self._asked_again(results):
            labels = self.labels[_kind(rollouts[0].artifact)]
            counted = labels.vote([rollout.extras["result"] for rollout in rollouts])
            labels.reward_solvers("Solver", rollouts, counted)
        self._pass_gate(results, asked)

    def _share_among_copies(self, new: list[Rollout]) -> None:
        """Let the copies of a new question share its reward."""
        lowest = lowest_reward(self.settings.proposer_reward)
        copies: dict[str, list[Rollout]] = {}
        for rollout in new:
            copies.setdefault(self._key(rollout.extras["question"]), []).append(rollout)
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
            if _is_proposal(result.rollout) and result.rollout.error is None:
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
        return Proposed(self._key(extras["question"]), extras["question"]["question"], *found)

    def _asked_again(self, results: list[GenerateResult]) -> list[list[Rollout]]:
        """Return the answers to each question that was asked again, without failures."""
        again: dict[str, list[Rollout]] = {}
        for result in results:
            rollout = result.rollout
            if not _is_proposal(rollout) and rollout.error is None:
                again.setdefault(self._key(rollout.artifact), []).append(rollout)
        return list(again.values())

    def end_step(self, number: int, results: list[GenerateResult], verbose: bool = False) -> TrainingBatch:
        """Store the step's questions, in the order of the requests."""
        batch = super().end_step(number, results, verbose)
        for rollout in (result.rollout for result in results):
            if rollout.metrics.get("enters/Proposer"):
                self._store(rollout.extras["question"], self._weight(rollout.extras["pass_rate"]))
        for rollouts in self._asked_again(results):
            question, answers = rollouts[0].artifact, [rollout.extras["result"] for rollout in rollouts]
            labels = self.labels[_kind(question)]
            pass_rate = labels.pass_rate(question, rollouts, labels.vote(answers))
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
            self.evaluation_request(named("solve", _kind(question)), question, "solve", index)
            for index, question in enumerate(self.held_out)
        ]
        propose = self._evaluation_proposals()
        rollouts = await self.finished(solve + propose)
        solved = [one.extras["right"] for one in rollouts if not _is_proposal(one)]
        proposed = [one.extras for one in rollouts if _is_proposal(one)]
        farthest = max(self.settings.target_pass_rate, 1 - self.settings.target_pass_rate)
        of_solver = {"solver exact match": [float(right) for right in solved]} if solve else {}
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
            self.evaluation_request(named("propose", kind), {"examples": shown}, "propose", index)
            for index, (kind, shown) in enumerate(asked)
        ]


def _kind(question: Question) -> str:
    return question.get("kind", "")


def _is_proposal(rollout: Rollout) -> bool:
    return rollout.episode_type.split()[0] == "propose"
