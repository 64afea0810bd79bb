"""Programs: conversations between several roles, which replace games; and the adapters that play in a run."""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from sparring.config.adversarial_programs import CorpusSettings, ProverVerifierSettings, SelfJudgedSettings
from sparring.config.base import (
    ClassPath,
    FilePath,
    Name,
    PolicyName,
    ProgramSettings,
    Rule,
    Settings,
    Texts,
    ThoughtTags,
    at_field,
)
from sparring.config.facts import CLASS_FILE, Needs, Only
from sparring.config.model import SamplingSettings
from sparring.config.proofs import WITH_PROVERS, Claims, ProtocolSettings
from sparring.config.questions import QUESTIONS, HeldOutSettings, ScoreSettings, SplitQuestions, named
from sparring.core.adapters import TRAINED
from sparring.core.messages import History
from sparring.core.own_code import is_class_path, name_of

CodeKind = Literal["deduction", "abduction", "induction"]
OnJudgeFailure = Literal["fail", "draw"]
Form = Literal["review", "vote", "plan"]
ProposerReward = Literal["near_target", "hard", "learnability", "mixed"]
SolverLabels = Literal["answer", "majority", "shares"]
ProposerLabels = Literal["answer", "stated", "majority"]
Repetitions = Literal["stored", "clusters", "free"]


class PythonProgram(ProgramSettings):
    """A program of your own: a subclass of Arena in a file."""

    type: Literal["python"]
    """Names this kind of program."""
    path: Annotated[ClassPath, CLASS_FILE]
    """The file and the class, such as `my_program.py:MyArena`. The file is relative to the configuration file
    and, on the command line, to the working directory."""
    options: dict[Name, Any] = Field(default={}, max_length=100)
    """Keyword arguments for the class, as they are written; `Path(__file__).parent` in your file finds what
    lies beside it."""

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


class WorkflowSettings(ScoreSettings, ProgramSettings):
    """Several roles work on a question, and the score of the last answer is the reward of all of them."""

    type: Literal["workflow"] = "workflow"
    """Names this kind of program."""
    form: Form = "review"
    """`review`: a Solver answers, a Reviewer says what is wrong, and the Solver answers again. `vote`:
    several Solvers answer at once, and a Chooser reads them and answers. `plan`: a Planner writes
    instructions, Workers follow them, and the Planner answers."""
    questions: Annotated[SplitQuestions, named(SplitQuestions), QUESTIONS]
    """What is asked: a table, or only the name of its source."""
    workers: Annotated[int, Only("form", ("vote", "plan"))] = Field(default=3, ge=1, le=1000)
    """Number of Solvers or Workers that answer at once."""
    rounds: Annotated[int, Only("form", ("review",))] = Field(default=1, ge=1, le=1000)
    """Number of reviews, at most: a review that begins with the word Right is the last."""
    examples: bool = True
    """Whether prompts begin with worked examples, which show small models the form of answers."""
    batch_size: int = Field(default=32, ge=1, le=10_000_000)
    """Number of episodes in each update."""
    episodes_per_question: int = Field(default=8, ge=1, le=10_000_000)
    """Number of episodes on one question, which are compared with each other."""
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


_IN_WORDS = Only("domain", (None, "words"))


class GateSettings(Settings):
    """Which proposed questions enter training: the solver learns from them, and they are stored. Others are
    asked as well, and earn their proposer what they earn. By default all valid ones enter."""

    leak: float = Field(default=0.0, ge=0, le=1)
    """The probability with which an invalid question passes for a valid one: it is asked, rewarded and
    stored like any other. This is the strictness ε of arXiv 2605.22217: with 0 nothing invalid enters, with 1
    everything that can be asked. Only the domain `expressions` has invalid questions that can be asked."""
    min_pass_rate: float = Field(default=0.0, ge=0, le=1)
    """The least share of right answers, by `proposer_labels`."""
    max_pass_rate: float = Field(default=1.0, ge=0, le=1)
    """The largest share of right answers."""
    min_agreement: float = Field(default=0.0, ge=0, le=1)
    """The least share of the most common answer among all answers."""
    label_agrees: bool = False
    """Whether the most common answer must be the question's own, or the one that its proposer stated if
    `proposer_labels` is `stated`."""
    novelty: float | None = Field(default=None, ge=0, le=1)
    """The least distance (1 - BLEU) from every stored question, and from those of the same update that
    entered before; 0 excludes only repetitions. By default repetitions enter too."""

    def rules(self) -> Iterable[Rule]:
        """The band of pass rates is not empty."""
        return (self._band,)

    def _band(self) -> None:
        if self.min_pass_rate > self.max_pass_rate:
            problem = f"is {self.min_pass_rate:g}, which is above max_pass_rate, {self.max_pass_rate:g}"
            raise at_field(problem, "Make it smaller", "min_pass_rate")


class ProposerSolverSettings(ProgramSettings):
    """A proposer writes questions that its solvers get right as often as wrong."""

    type: Literal["proposer_solver"] = "proposer_solver"
    """Names this kind of program."""
    questions: Annotated[SplitQuestions | None, named(SplitQuestions), QUESTIONS, _IN_WORDS] = None
    """The first examples, in words; held-out ones measure the solver."""
    domain: Literal["words", "arithmetic", "expressions"] | None = None
    """The kind of questions: in `words`, `arithmetic` (`23 + 48`), or `expressions` of a small deterministic
    language (`ADD(3, MUL(2, 4))`), whose proposer also states the value and can be wrong. By default in words
    if `questions` says from where, else arithmetic."""
    code: Annotated[list[CodeKind], Needs("wasmtime", "code")] = Field(default=[], max_length=3)
    """Kinds of questions about Python functions, which are asked in turn instead of arithmetic: `deduction`
    (what does it return?), `abduction` (for which input?), `induction` (which function is it?). Programs run
    in a sandbox; needs the extra `code`."""
    depth: Annotated[int, Only("domain", ("expressions",), refused=True)] = Field(default=2, ge=1, le=6)
    """The levels of operators in the first examples; held-out questions have 1 to as many."""
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
    target_pass_rate: float = Field(default=0.5, ge=1e-9, lt=1)
    """The share of right answers at which a question earns most, if its reward is `near_target`, and is drawn
    most."""
    proposer_reward: ProposerReward = "near_target"
    """What a question earns by its share p of right answers: `near_target` (1 - 2 |p - target|, at least
    -0.5), `hard` (1 - p), `learnability` (1 - p, but 0 if none or all are right), or `mixed` (1 if answers
    are partly right, else 0)."""
    penalties: bool = False
    """What keeps the requested form but is wrong, or cannot be asked, earns -0.5, and what lacks the form -1.
    Otherwise a wrong answer earns 0, and an invalid question `invalid_reward`."""
    invalid_reward: Annotated[float, Only("penalties", (False,))] = Field(default=-1.0, ge=-1e6, le=0)
    """What an invalid question earns."""
    repetitions: Repetitions = "stored"
    """What a repetition earns: with `stored`, one of a stored question earns the least that a valid
    question can (-0.5 with `near_target`, else 0), and copies within an update share the reward of one
    new question. With `clusters`, every question loses the part of the update's proposals that are in its
    cluster of similar ones (by BLEU, average linkage below 0.5), and earns at least 0. With `free`, it
    earns what any other does."""
    proposer_labels: ProposerLabels = "answer"
    """Which answers are right for the proposer's reward and the gate: the `answer` of the question, which the
    domain computes, or its proposer writes where it cannot be computed; what the proposer `stated`, in
    `expressions`; or the solvers' `majority`."""
    solver_labels: SolverLabels = "answer"
    """What solvers earn: 1 for the `answer` of the question; 1 for that of the `majority` of its solvers; or
    the share of its solvers that gave the same (`shares`). Held-out questions are always measured by their
    own answers."""
    gate: GateSettings = GateSettings()
    """Which proposed questions enter training."""
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
        """Words come from somewhere, and what only expressions have is not asked of other questions."""
        return self._words, self._expressions_only, self._about_code_alone, self._penalties

    def _words(self) -> None:
        if self.domain == "words" and self.questions is None:
            raise at_field("is missing, but program.domain is words", "Name a source", "questions")

    def _expressions_only(self) -> None:
        if self.domain == "expressions":
            return
        fix = 'Set program.domain to "expressions", or leave this out'
        if self.gate.leak > 0:
            raise at_field("has no effect: only expressions that are invalid can be asked", fix, "gate.leak")
        if self.proposer_labels == "stated":
            problem = 'is "stated", but only proposers of expressions state an answer that may be wrong'
            raise at_field(problem, fix, "proposer_labels")

    def _penalties(self) -> None:
        if self.penalties and self.solver_labels != "answer":
            problem = f'are for wrong answers, but program.solver_labels is "{self.solver_labels}"'
            raise at_field(problem, 'Leave one of the two out, or set solver_labels = "answer"', "penalties")

    def _about_code_alone(self) -> None:
        if self.code and (self.questions is not None or self.domain is not None):
            other = "domain" if self.questions is None else "questions"
            raise at_field(
                "is set beside code, whose questions are its own", "Leave one of the two out", other
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
    | VerifiersSettings
    | WorkflowSettings
    | ProverVerifierSettings
    | CorpusSettings
    | SelfJudgedSettings,
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
