"""Programs: conversations between several roles, which replace games; and the adapters that play in a run."""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from sparring.config.base import (
    ClassPath,
    FilePath,
    Name,
    PolicyName,
    Rule,
    Settings,
    Texts,
    ThoughtTags,
    at_field,
)
from sparring.config.facts import CLASS_FILE, Needs, Only
from sparring.config.proofs import WITH_PROVERS, Claims, ProtocolSettings
from sparring.config.questions import QUESTIONS, HeldOutSettings, ScoreSettings, SplitQuestions, named
from sparring.config.sampling import SamplingSettings
from sparring.core.adapters import TRAINED
from sparring.core.messages import History
from sparring.core.own_code import is_class_path, name_of

CodeKind = Literal["deduction", "abduction", "induction"]
ProposerRewards = Literal["target", "learnability"]
OnJudgeFailure = Literal["fail", "draw"]


class ProgramSettings(Settings):
    """Base of all programs."""

    type: Name
    """Names the kind of program."""

    @property
    def names(self) -> list[str]:
        """The names of what is played."""
        return [self.type]


class PythonProgram(ProgramSettings):
    """A program of your own: a subclass of Arena in a file."""

    type: Literal["python"]
    """Names this kind of program."""
    path: Annotated[ClassPath, CLASS_FILE]
    """The file and the class, such as `my_program.py:MyArena`. The file is relative to the configuration file
    and, on the command line, to the working directory."""
    options: dict[Name, Any] = Field(default={}, max_length=100)
    """Keyword arguments for the class."""

    @property
    def names(self) -> list[str]:
        """The names of what is played."""
        return [Path(self.path).name]


class DebateSettings(ProgramSettings):
    """Two sides argue about a topic, and a judge that is not trained names the winner."""

    type: Literal["debate"] = "debate"
    """Names this kind of program."""
    topics: Texts = Field(min_length=1)
    """Motions; each debate draws one."""
    batch_size: int = Field(default=8, ge=1, le=10_000_000)
    """Number of debates in each update."""
    debates_per_topic: int = Field(default=4, ge=1, le=10_000_000)
    """Number of debates that share a topic and are compared with each other."""
    num_rounds: int = Field(default=3, ge=1, le=10_000)
    """Number of speeches of each side."""
    max_tokens: int = Field(default=128, ge=1, le=1_000_000)
    """Maximum length of a speech, in tokens."""
    aff_policy: Name = TRAINED
    """The policy that argues for the motion."""
    neg_policy: Name = TRAINED
    """The policy that argues against it; another name gives it an adapter of its own."""
    judge_model: Name | None = None
    """The model that judges: `base`, a policy, or a name in `[frozen]`; by default the untrained model."""
    judge_by_score: bool = False
    """Judge by the likelihood of each verdict, for models that are too weak to write one."""
    judge_sampling: Annotated[SamplingSettings | None, Only("judge_by_score", (False,), refused=True)] = None
    """How the judge draws its words. It is asked at temperature 0 first, then at 0.7; with `from_model`, at
    the model's own each time."""
    on_judge_failure: OnJudgeFailure = "fail"
    """Whether a debate without a verdict fails or is a draw; the judge's failure is counted in both cases. If
    the judge cannot be reached, the debate is tried again, and fails after the last attempt."""
    evaluation_topics: Texts | None = Field(default=None, min_length=1)
    """Motions of the evaluation; by default the training topics."""
    evaluation_debates: int = Field(default=32, ge=1, le=10_000_000)
    """Number of debates in each evaluation."""

    def rules(self) -> Iterable[Rule]:
        """No motion stands twice."""
        return (self._topics_differ,)

    def _topics_differ(self) -> None:
        seen: dict[str, str] = {}
        for field, topics in (("topics", self.topics), ("evaluation_topics", self.evaluation_topics or [])):
            for topic in topics:
                words = " ".join(topic.split()).casefold()
                if not words:
                    raise at_field("one of them is empty", "Write a motion", field)
                if words in seen:
                    raise at_field(f"{topic[:60]!r} is in {seen[words]} already", "Name it once", field)
                seen[words] = field


class QuestionsSettings(ScoreSettings, ProgramSettings):
    """Questions with one answer each, whose score is the reward."""

    type: Literal["questions"] = "questions"
    """Names this kind of program."""
    questions: Annotated[SplitQuestions, named(SplitQuestions), QUESTIONS]
    """What is asked: a table, or only the name of its source."""
    batch_size: int = Field(default=64, ge=1, le=10_000_000)
    """Number of answers in each update."""
    answers_per_question: int = Field(default=8, ge=1, le=10_000_000)
    """Number of answers to one question, which are compared with each other."""
    solver_policy: Name = TRAINED
    """The policy that answers."""
    evaluation_questions: int = Field(default=64, ge=1, le=10_000_000)
    """Number of held-out questions in each evaluation, or all of them if there are fewer."""

    @property
    def names(self) -> list[str]:
        """The names of what is played."""
        return [self.questions.label]


class VerifiersSettings(HeldOutSettings, ProgramSettings):
    """An environment of verifiers, whose agents are roles; needs the extra `verifiers`."""

    type: Annotated[Literal["verifiers"], Needs("verifiers", "verifiers")] = "verifiers"
    """Names this kind of program."""
    taskset: Name
    """The name of an installed package with tasks, and the environment if it has one: `kuhn-poker`."""
    environment: Name | None = None
    """An environment to play the tasks in, such as `best-of-n`."""
    options: dict[Name, Any] = Field(default={}, max_length=100)
    """The fields of the environment's own `[env]` table, such as `taskset` and its agents."""
    tasks: int = Field(default=1000, ge=2, le=10_000_000)
    """Number of tasks that are loaded, the held-out ones included, or all of them if there are fewer."""
    batch_size: int = Field(default=32, ge=1, le=10_000_000)
    """Number of episodes in each update."""
    episodes_per_task: int = Field(default=8, ge=1, le=10_000_000)
    """Number of episodes on one task, which are compared with each other."""
    evaluation_tasks: int = Field(default=64, ge=1, le=10_000_000)
    """Number of held-out tasks in each evaluation, or all of them if there are fewer."""

    @property
    def names(self) -> list[str]:
        """The names of what is played."""
        return [self.taskset]


class ProposerSolverSettings(ProgramSettings):
    """A proposer writes questions that its solvers get right as often as wrong."""

    type: Literal["proposer_solver"] = "proposer_solver"
    """Names this kind of program."""
    questions: Annotated[SplitQuestions | None, named(SplitQuestions), QUESTIONS] = None
    """The first examples, in words; held-out ones measure the solver. By default arithmetic questions."""
    code: Annotated[list[CodeKind], Needs("wasmtime", "code")] = Field(default=[], max_length=3)
    """Kinds of questions about Python functions, which are asked in turn instead of arithmetic: `deduction`
    (what does it return?), `abduction` (for which input?), `induction` (which function is it?). Programs run
    in a sandbox; needs the extra `code`."""
    batch_size: int = Field(default=32, ge=1, le=10_000_000)
    """Number of proposals in each update."""
    proposals_per_prompt: int = Field(default=16, ge=1, le=10_000_000)
    """Number of proposals that share a prompt and are compared with each other."""
    examples: int = Field(default=8, ge=0, le=10_000)
    """Number of questions that the proposer sees as examples."""
    solver_rollouts: int = Field(default=8, ge=1, le=1_000_000)
    """Number of answers to each question."""
    asked_again: int = Field(default=0, ge=0, le=10_000_000)
    """Number of stored questions that are asked again in each update; good questions are drawn more often."""
    rewards: ProposerRewards = "target"
    """What is paid. With `target`, a question earns most at `target_pass_rate`, and a right answer 1. With
    `learnability` (Absolute Zero), a question earns 1 less the share of right answers, or 0 if none or all
    are right; a right answer earns 1, what is wrong or cannot be used -0.5, what lacks its form -1."""
    target_pass_rate: Annotated[float, Only("rewards", ("target",))] = Field(default=0.5, ge=1e-9, lt=1)
    """The share of right answers at which a question earns most."""
    proposer_policy: Name = "proposer"
    """The policy that writes questions."""
    solver_policy: Name = "solver"
    """The policy that answers them."""
    train_solvers: bool = True
    """Whether the solver learns too."""
    evaluation_proposals: int = Field(default=64, ge=1, le=10_000_000)
    """Number of proposals in each evaluation."""
    store_size: int = Field(default=500, ge=1, le=10_000_000)
    """Maximum number of stored questions."""

    def rules(self) -> Iterable[Rule]:
        """Questions are about code or are given."""
        return (self._about_code_or_given,)

    def _about_code_or_given(self) -> None:
        if self.code and self.questions is not None:
            raise at_field(
                "is set beside code, whose questions are its own", "Leave one of the two out", "questions"
            )


class ProofsSettings(ProtocolSettings, ProgramSettings):
    """A verifier judges claims by questioning provers that want to convince it."""

    type: Literal["proofs"] = "proofs"
    """Names this kind of program."""
    protocol: Annotated[FilePath, CLASS_FILE] = "nip"
    """`nip`, `adp`, `debate`, `mnip`, `merlin_arthur`, `solo_verifier`, or the file and the name of a
    function of your own, such as `court.py:court`."""
    claims: Claims
    """What is judged."""
    batch_size: int = Field(default=32, ge=1, le=10_000_000)
    """Number of proofs in each update."""
    proofs_per_claim: int = Field(default=4, ge=1, le=10_000_000)
    """Number of proofs that share a claim and are compared with each other."""
    verifier_policy: Name = "verifier"
    """The policy of verifiers."""
    prover_policy: Annotated[Name, WITH_PROVERS] = "prover"
    """The policy of provers; `[roles.NAME]` gives one of them another."""
    max_response_words: int = Field(default=150, ge=1, le=1_000_000)
    """The word limit that agents are told."""
    max_tokens_per_message: int | None = Field(default=None, ge=1, le=1_000_000)
    """Maximum length of an answer, in tokens; by default 1.5 times `max_response_words`."""
    num_invalid_generation_retries: int = Field(default=20, ge=0, le=10_000)
    """How often an agent is asked again after an invalid answer. Training by tokens never sees invalid
    answers that were replaced; with 0, agents learn to avoid them."""
    examples: bool = True
    """Whether prompts begin with two short proofs, which show small models the form of answers."""
    evaluation_claims: int = Field(default=64, ge=1, le=10_000_000)
    """Number of held-out claims in each evaluation, or all of them if there are fewer."""
    evaluation_proofs: int = Field(default=2, ge=1, le=10_000_000)
    """Number of proofs of each evaluation claim."""

    @property
    def names(self) -> list[str]:
        """The names of what is played."""
        return [name_of(self.protocol)]

    @property
    def uses_order_of_provers(self) -> bool:
        """Whether ``prover0_first`` may matter; what a protocol of your own uses is not known."""
        return self.sequential or is_class_path(self.protocol)

    @property
    def uses_reward_of_provers(self) -> bool:
        """Whether ``prover_reward`` may matter; what a protocol of your own uses is not known."""
        return not self.shared_reward or is_class_path(self.protocol)


Program = Annotated[
    DebateSettings
    | ProposerSolverSettings
    | PythonProgram
    | ProofsSettings
    | QuestionsSettings
    | VerifiersSettings,
    Field(discriminator="type"),
]


class RoleSettings(Settings):
    """A role's settings where they differ from the program's own."""

    policy: Name | None = None
    """The policy that the role plays and trains. With `base`, or a name in `[frozen]`, it is not trained."""
    temperature: float | None = Field(default=None, ge=0, le=100)
    """Sampling temperature; at least 0.01 for a role that is trained."""
    test_temperature: float | None = Field(default=None, ge=0, le=100)
    """Sampling temperature when the program is measured; by default the training temperature. 0 takes the
    most likely token."""
    sampling: SamplingSettings | None = None
    """How a role draws whose policy is not trained."""
    test_sampling: SamplingSettings | None = None
    """How the role draws when the program is measured; by default as otherwise."""
    max_tokens: int | None = Field(default=None, ge=1, le=1_000_000)
    """Maximum length of an answer, in tokens."""
    stop: Texts | None = Field(default=None, max_length=100)
    """Texts that end an answer; they are not part of its text."""
    reasoning: ThoughtTags | None = None
    """The tags around the role's thoughts, as in `inference.reasoning`."""
    max_reasoning: int | None = Field(default=None, ge=1, le=1_000_000)
    """Number of tokens of a thought after which the engine ends it."""
    history: History | None = None
    """What later prompts show the role of its own answers: `keep` (as they were drawn), `drop_reasoning`
    (only what it said), or `summary` (the latest `<summary>...</summary>` in place of
    everything between the beginning and it)."""


Adapters = Annotated[dict[PolicyName, FilePath], Field(max_length=1000)]
"""Adapters by name: a run's checkpoint (``RUN``, ``RUN@40``, ``RUN@best``), or an adapter's directory."""
