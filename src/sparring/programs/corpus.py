"""A proposer who reads documents, and solvers who do not (Liu et al. 2025, arXiv 2510.24684).

The proposer sees one document and writes a question and its answer, of which solvers see the question alone.
Their right answers, each 1 or 0, have the variance p (1 - p), which is largest for the pass rate p = 1/2.
"""

import math
import random
from itertools import cycle, islice
from typing import Any

from sparring.config.adversarial_programs import CorpusSettings
from sparring.core import (
    Arena,
    EpisodeRequest,
    EpisodeState,
    GenerateResult,
    Role,
    Rollout,
    Rubric,
    Utterance,
    derive_seed,
)
from sparring.programs.documents import Document, load_documents
from sparring.programs.program_arena import ProgramArena
from sparring.programs.proposer_episodes import (
    PROPOSER,
    SOLVER,
    ProposerEpisode,
    SolveEpisode,
    make_proposer_rubric,
)
from sparring.programs.questions import Domain, OpenQuestions, Question, Turns
from sparring.programs.tasks import hold_out

BEST_VARIANCE, WIDTH = 0.25, 0.01
INVALID_REWARD = -0.1
_REQUEST = (
    "Write a question whose short, certain answer stands in this text, and the answer. The question must "
    "make sense without the text. Use this form:\nQuestion: ...\nAnswer: ..."
)
_EXAMPLES = [
    Document(
        "A spider is not an insect. It has eight legs, and most spiders have eight eyes.",
        ({"question": "How many legs has a spider?", "ground_truth": "8"},),
    ),
    Document(
        "Sydney and Melbourne both wanted to be the capital of Australia, so Canberra was built.",
        ({"question": "What is the capital of Australia?", "ground_truth": "Canberra"},),
    ),
    Document(
        "Ice is frozen water. It floats because it is lighter than water.",
        ({"question": "What is frozen water called?", "ground_truth": "Ice"},),
    ),
    Document(
        "A trumpet is made of brass. Its three valves are pressed with the fingers.",
        ({"question": "How many valves has a trumpet?", "ground_truth": "3"},),
    ),
]
"""Texts, and the question that a proposer may ask about each."""


class CorpusQuestions(OpenQuestions):
    """Questions in words with short answers, and examples of both roles that small models can follow."""

    def __init__(self) -> None:
        super().__init__([question for one in _EXAMPLES for question in one.questions])

    def solver_turns(self) -> Turns:
        return [
            (self.solver_prompt(one), f"The answer is: {one['ground_truth']}")
            for one in self.seed_questions()
        ]


def variance_reward(pass_rate: float) -> float:
    """Return exp(-(p (1 - p) - 0.25)^2 / (2 * 0.01)) for a pass rate p: 1 at 1/2, 0.044 at 0 and at 1."""
    variance = pass_rate * (1.0 - pass_rate)
    return math.exp(-((variance - BEST_VARIANCE) ** 2) / (2 * WIDTH))


class CorpusProposerEpisode(ProposerEpisode):
    """One proposal on a document, followed by ``solver_rollouts`` sub-episodes ``solve`` on it.

    The artifact is ``{"document": text}``. A question that lacks the requested form, or is cut, earns -0.1.
    """

    def __init__(self, solver_rollouts: int, domain: Domain, held_out: frozenset[str]) -> None:
        super().__init__(PROPOSER, solver_rollouts, domain=domain, train_solvers=True, held_out=held_out)
        metrics = make_proposer_rubric(PROPOSER)
        self._own = Rubric([self.variance, *metrics.funcs[1:]], metrics.weights)

    @property
    def rubric(self) -> Rubric:
        return self._own

    def get_initial_prompt(self, arena: Arena, artifact: Any, state: EpisodeState) -> str:
        answered = self.domain.proposer_turns(self.domain.seed_questions())
        for one, (_, written) in zip(_EXAMPLES, answered, strict=True):
            state.transcript += [Utterance("", _asked(one.text)), Utterance(PROPOSER, written)]
        return _asked(artifact["document"])

    def variance(self, rollout: Rollout, arena: Arena) -> dict[str, float]:
        """Return the proposer's reward."""
        extras = rollout.extras
        return {PROPOSER: variance_reward(extras["pass_rate"]) if extras["valid"] else INVALID_REWARD}


def _asked(text: str) -> str:
    return f"{text}\n\n{_REQUEST}"


class CorpusArena(ProgramArena[CorpusSettings]):
    """Proposals on documents, each of which comes once before one comes again, and their solvers.

    The proposals on a document are compared with each other, and so are the answers to a question. The solver
    learns from one valid question of each document, drawn by chance. ``credit_assigner`` is by default GRPO
    without a division by the deviation (Liu et al. 2025, arXiv 2503.20783).
    """

    def set_up(self) -> None:
        settings = self.settings
        self.documents = load_documents(settings.documents, "program.documents")
        texts = [one.text for one in self.documents]
        self.shown, self.held_out = hold_out(texts, settings.test_size, settings.seed, "program.documents")
        domain = CorpusQuestions()
        self.add_role(Role(PROPOSER, max_tokens=domain.proposal_tokens, policy=settings.proposer_policy))
        self.add_role(Role(SOLVER, max_tokens=domain.answer_tokens, policy=settings.solver_policy))
        keys = frozenset(map(domain.key, self._held_out_questions()))
        self.add_episode("solve", SolveEpisode(SOLVER, domain))
        self.add_episode("propose", CorpusProposerEpisode(settings.solver_rollouts, domain, keys))

    def get_batch(self) -> list[EpisodeRequest]:
        """Return ``batch_size`` proposals, ``proposals_per_document`` on each document."""
        size, each = self.settings.batch_size, self.settings.proposals_per_document
        return self.requests_in_turns("propose", self.shown, size, each, self._shown_text)

    def adjust_rewards(self, results: list[GenerateResult]) -> None:
        """Leave one valid question of each document for the solver to learn from."""
        rng = random.Random(derive_seed(self.seed, "learned from", self.step_num))
        proposals: dict[Any, list[GenerateResult]] = {}
        for result in results:
            if result.children:
                proposals.setdefault(result.rollout.meta.get("group"), []).append(result)
        for some in proposals.values():
            chosen = rng.randrange(len(some))
            for place, result in enumerate(some):
                for child in result.children:
                    child.is_trainable = child.is_trainable and place == chosen

    def outcomes(self, result: GenerateResult) -> list[dict[str, float]]:
        """Return one match per valid proposal, in which the solver's score is the pass rate."""
        pass_rate = result.rollout.extras.get("pass_rate")
        return [] if pass_rate is None else [{PROPOSER: 1.0 - pass_rate, SOLVER: pass_rate}]

    async def evaluate(self) -> dict[str, list[float]]:
        """Measure both roles on held-out documents, always the same; failed episodes are left out.

        ``solver exact match``: 1 or 0 for each question on a held-out document. ``proposer
        valid``: 1 or 0 for each proposal. ``pass rate``: one for each valid proposal.
        """
        solve = [
            self.evaluation_request("solve", question, "solve", index)
            for index, question in enumerate(self._held_out_questions())
        ]
        places = islice(cycle(self.held_out), self.settings.evaluation_proposals)
        propose = [
            self.evaluation_request("propose", self._shown_text(place), "propose", index)
            for index, place in enumerate(places)
        ]
        rollouts = await self.finished(solve + propose)
        solved = [one.rewards[SOLVER] for one in rollouts if one.episode_type == "solve"]
        proposed = [one.extras for one in rollouts if one.episode_type == "propose"]
        return ({"solver exact match": solved} if solve else {}) | {
            "proposer valid": [float(one["valid"]) for one in proposed],
            "pass rate": [one["pass_rate"] for one in proposed if one["valid"]],
        }

    def _held_out_questions(self) -> list[Question]:
        return [question for place in self.held_out for question in self.documents[place].questions]

    def _shown_text(self, place: int) -> dict[str, str]:
        return {"document": self.documents[place].text}
