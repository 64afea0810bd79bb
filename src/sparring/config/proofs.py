"""Settings of interactive proofs: the protocol, what the agents earn, and what is judged."""

from typing import Annotated, Any, Literal

from pydantic import Field

from sparring.config.base import FilePath, Name, Settings
from sparring.config.facts import FILE, Only
from sparring.config.questions import QUESTIONS, HeldOutSettings, SplitQuestions


class ColumnSettings(Settings):
    """Which columns of the data are which."""

    question: Name = "question"
    """The question."""
    claim: Name = "claim"
    """The claimed answer to it."""
    y: Name = "y"
    """The truth: 1 or true for a right claim, 0 or false for a wrong one."""
    right: Name | None = None
    """In place of `claim` and `y`: a list of right claims, texts or tables with the text in `entry`."""
    wrong: Name | None = None
    """The same for wrong claims."""
    entry: Name = "solution"
    """The text in a table of `right` and `wrong`."""
    where: dict[Name, Any] = Field(default={}, max_length=100)
    """Only rows in which these columns have these values are read."""


class _Claims(HeldOutSettings):
    """Base of all kinds of claims."""

    type: Name
    """Names the kind of claims."""


class ArithmeticClaims(_Claims):
    """Worked sums, differences and products, half of them with a slip."""

    type: Literal["arithmetic_claims"] = "arithmetic_claims"
    """Names this kind of claims."""
    count: int = Field(default=1000, ge=10, le=10_000_000)
    """Number of claims, including the held-out ones."""
    difficulty: int = Field(default=2, ge=1, le=100)
    """Digits of the numbers; with 1, one of the two has two digits."""


class CodeClaims(_Claims):
    """Small Python functions, half of them with a bug that fails a test."""

    type: Literal["code_claims"] = "code_claims"
    """Names this kind of claims."""


class FileClaims(_Claims):
    """A JSON Lines file."""

    type: Literal["file"] = "file"
    """Names this kind of claims."""
    path: Annotated[FilePath, FILE]
    """The file, relative to the configuration file and, on the command line, to the working directory."""
    columns: ColumnSettings = ColumnSettings()
    """Which fields of the file are which."""


class DatasetClaims(_Claims):
    """A dataset of the Hugging Face Hub, or a directory of files; needs the extra `datasets`."""

    type: Literal["dataset"] = "dataset"
    """Names this kind of claims."""
    name: Annotated[FilePath, QUESTIONS]
    """The dataset, such as `lrhammond/buggy-apps`."""
    split: Name = "train"
    """The part that is read; a share of it is held out."""
    columns: ColumnSettings | None = None
    """Which columns of the dataset are which; known for `lrhammond/buggy-apps`."""


class QuestionClaims(SplitQuestions, _Claims):
    """Questions, each claimed to have its own answer and to have that of another one."""

    type: Literal["questions"] = "questions"
    """Names this kind of claims."""


Claims = Annotated[
    ArithmeticClaims | CodeClaims | FileClaims | DatasetClaims | QuestionClaims, Field(discriminator="type")
]


ScaleName = Literal[
    "accept_reject",
    "likert_scale",
    "likert_scale_no_undecided",
    "out_of_10",
    "out_of_100",
    "likert_int_scale_11",
    "likert_scale_4",
    "likert_scale_5",
    "likert_scale_6",
    "likert_scale_7",
]
"""The scale on which verifiers decide; see ``programs.proofs.decisions``."""
ForceGuess = Literal["zero", "one", "y"]
"""What a verifier is taken to decide. The forced decision is also the one that is rewarded; in Neural
Interactive Proofs it only ended the episode."""


_ROUNDS = Only("protocol", ("nip", "debate", "mnip"))
_TWO_PROVERS = Only("protocol", ("debate", "mnip"))
_ORDER = Only("program.uses_order_of_provers", why="program.sequential is false")
_REWARD = Only("program.uses_reward_of_provers", why="program.shared_reward is true")
WITH_PROVERS = Only("protocol", ("nip", "adp", "debate", "mnip", "merlin_arthur"))


class ProtocolSettings(Settings):
    """The parameters of protocols, under their names in Neural Interactive Proofs."""

    verifier_first: Annotated[bool, _ROUNDS] = True
    """Whether the verifier speaks in the first round; in `nip`, `debate` and `mnip`."""
    max_message_rounds: Annotated[int, _ROUNDS] = Field(default=8, ge=1, le=10_000)
    """The maximum number of rounds; in `nip`, `debate` and `mnip`."""
    min_message_rounds: Annotated[int, _ROUNDS] = Field(default=1, ge=1, le=10_000)
    """The minimum number of rounds before a decision counts; in `nip`, `debate` and `mnip`."""
    sequential: Annotated[bool, _TWO_PROVERS] = False
    """Whether two provers speak one after the other; in `debate` and `mnip`."""
    prover0_first: Annotated[bool, _ORDER] = True
    """With `sequential`, whether the first prover begins."""
    randomize_channel_order: Annotated[bool, _TWO_PROVERS] = True
    """Whether the verifier reads the channels of two provers in random order."""
    randomize_prover_stance: Annotated[bool, Only("protocol", ("nip", "adp", "mnip"))] = False
    """Whether the claim's text decides what provers argue for; in `nip`, `adp` and `mnip`."""
    verifier_decision_spectrum: ScaleName = "accept_reject"
    """The scale of decisions."""
    force_guess: ForceGuess | None = None
    """What the verifier is taken to decide at its first turn that counts, whatever it says: reject (`zero`),
    accept (`one`) or the truth (`y`). It shows what the other agents can learn from a verifier that does not
    learn."""
    prover_reward: Annotated[float, _REWARD] = Field(default=1.0, ge=-1e6, le=1e6)
    """A prover's reward for a decision that agrees entirely with its stance."""
    verifier_reward: float = Field(default=1.0, ge=-1e6, le=1e6)
    """The verifier's reward for a decision that is entirely right."""
    verifier_incorrect_penalty: float = Field(default=-1.0, ge=-1e6, le=1e6)
    """The verifier's reward for a decision that is entirely wrong."""
    verifier_terminated_penalty: float = Field(default=-1.0, ge=-1e6, le=1e6)
    """The verifier's reward if it never decides."""
    verifier_no_guess_reward: float = Field(default=0.0, ge=-1e6, le=1e6)
    """The verifier's reward for a turn without a decision, except its last."""
    verifier_neither_accept_nor_reject_reward: float | None = Field(default=None, ge=-1e6, le=1e6)
    """The verifier's reward for a decision in the middle of the scale; by default the mean of
    `verifier_reward` and `verifier_incorrect_penalty`."""
    shared_reward: Annotated[bool, WITH_PROVERS] = False
    """Whether provers earn what the verifier earns."""
    prover_invalid_response_penalty: float | None = Field(default=None, ge=-1e6, le=1e6)
    """A prover's reward for an invalid answer, which then ends the proof. By default, an invalid answer costs
    nothing."""
