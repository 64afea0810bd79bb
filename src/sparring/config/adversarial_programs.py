"""Programs in which one role makes it hard for another: provers for a verifier, proposers for solvers."""

from collections.abc import Callable
from typing import Annotated, Literal

from pydantic import Field

from sparring.config.base import FilePath, Name, ProgramSettings, Words
from sparring.config.facts import Only, Relative
from sparring.config.questions import QUESTIONS, HeldOutSettings, SplitQuestions, named
from sparring.core.adapters import BASE, TRAINED

BUNDLED_CORPUS = "everyday"
"""The documents that ship with the package."""
ARITHMETIC = "arithmetic"
"""The task whose answers are checked."""
ProverReward = Literal["relative", "gated"]


def _with_corpus(text: str, change: Callable[[str], str]) -> str:
    return text if text == BUNDLED_CORPUS else change(text)


class ProverVerifierSettings(ProgramSettings):
    """Provers solve questions so that a verifier believes them: a helpful one rightly, a sneaky one wrongly.

    Rounds of two phases follow each other: the verifier learns from solutions whose truth is known while the
    provers stand still, then the provers learn from its scores. `roles.Sneaky.policy` gives the sneaky prover
    an adapter of its own.
    """

    type: Literal["prover_verifier"] = "prover_verifier"
    """Names this kind of program."""
    questions: Annotated[SplitQuestions, named(SplitQuestions), QUESTIONS]
    """What is solved: a table, or only the name of its source. One half of the questions that are not held
    out is for the provers, the other for the verifier."""
    batch_size: int = Field(default=64, ge=2, le=10_000_000)
    """Number of solutions in each update, of both phases."""
    solutions_per_question: int = Field(default=8, ge=1, le=10_000_000)
    """Number of solutions of one prover to one question, which are compared with each other."""
    verifier_updates: int = Field(default=8, ge=1, le=10_000_000)
    """Number of updates of the verifier at the beginning of each round."""
    prover_updates: int = Field(default=16, ge=1, le=10_000_000)
    """Number of updates of the provers in the rest of the round."""
    reward: ProverReward = "relative"
    """What a prover earns for the verifier's score, the log-odds of "yes" to "is it right?". `relative`: how
    far it is above the mean of its group, negative if the answer's truth is not what the role asks for; -1 at
    the mean or below. `gated`: the score, or else the worst one."""
    gate: Annotated[float, Only("reward", ("gated",))] = Field(default=-2.0, ge=-1e6, le=1e6)
    """With `gated`, what a prover earns whose answer's truth is not what the role asks for: this, or the
    lowest score of the update if that is lower."""
    prover_policy: Name = "prover"
    """The policy of both provers."""
    verifier_policy: Name = "verifier"
    """The policy of the verifier."""
    store_size: int = Field(default=2000, ge=1, le=10_000_000)
    """Maximum number of solutions of past rounds that are kept for the verifier."""
    evaluation_questions: int = Field(default=64, ge=1, le=10_000_000)
    """Number of held-out questions in each evaluation, or all of them if there are fewer."""

    @property
    def names(self) -> list[str]:
        """The names of what is played."""
        return [self.questions.label]


class CorpusSettings(HeldOutSettings, ProgramSettings):
    """A proposer reads documents and writes questions on them; solvers, who do not see them, answer.

    The proposer earns most for a question that is answered right as often as wrong. The solver learns from
    one valid question of each document, drawn by chance.
    """

    type: Literal["corpus"] = "corpus"
    """Names this kind of program."""
    documents: Annotated[FilePath, Relative(_with_corpus)] = BUNDLED_CORPUS
    """`everyday` (short texts that ship with the package), a JSON Lines file with a `text` in each line, or a
    text file whose documents have empty lines between them. A line may also have a `question` and its
    `answer`: those of held-out documents measure the solver. Files are relative as in `envs.id`."""
    batch_size: int = Field(default=64, ge=1, le=10_000_000)
    """Number of proposals in each update."""
    proposals_per_document: int = Field(default=8, ge=1, le=10_000_000)
    """Number of proposals on one document, which are compared with each other."""
    solver_rollouts: int = Field(default=8, ge=1, le=1_000_000)
    """Number of answers to each question."""
    proposer_policy: Name = TRAINED
    """The policy that writes questions."""
    solver_policy: Name = TRAINED
    """The policy that answers them; another name gives it an adapter of its own."""
    evaluation_proposals: int = Field(default=64, ge=1, le=10_000_000)
    """Number of proposals on held-out documents in each evaluation."""


_OPEN = "the answers to arithmetic are checked"


class SelfJudgedSettings(ProgramSettings):
    """A proposer writes instructions that its solvers follow badly; a judge's points for quality keep both
    sensible.

    The solver earns a reward and the points of its answer, the proposer the mean points of the answers less
    their mean reward.
    """

    type: Literal["self_judged"] = "self_judged"
    """Names this kind of program."""
    task: Words = ARITHMETIC
    """What instructions are about. `arithmetic`: calculations, whose right answers earn 1. Any other text,
    such as `everyday advice`, names the task to the proposer; answers then earn the points of
    `reward_model`."""
    reward_model: Annotated[Name, Only("program.is_open", why=_OPEN, fix="Name another task")] = BASE
    """The model that gives 0 to 10 points for how well an answer does what the instruction asks: `base`, a
    policy, or a name in `[frozen]`."""
    judge_model: Name = BASE
    """The model that gives 0 to 7 points for the quality of an instruction and its answer."""
    judge_by_score: bool = False
    """Take the mean of the points by the likelihood of each number, for models that are too weak to write
    them down."""
    quality_weight: float = Field(default=1.0, ge=0, le=1e6)
    """The weight of a point for quality beside the reward; with 0, no quality is judged and the game is
    zero-sum."""
    batch_size: int = Field(default=16, ge=1, le=10_000_000)
    """Number of instructions in each update, which are compared with each other."""
    solver_rollouts: int = Field(default=8, ge=1, le=1_000_000)
    """Number of answers to each instruction."""
    proposer_policy: Name = TRAINED
    """The policy that writes instructions."""
    solver_policy: Name = TRAINED
    """The policy that follows them; another name gives it an adapter of its own."""
    evaluation_proposals: int = Field(default=32, ge=1, le=10_000_000)
    """Number of instructions in each evaluation."""

    @property
    def is_open(self) -> bool:
        """Whether answers cannot be checked."""
        return self.task != ARITHMETIC
