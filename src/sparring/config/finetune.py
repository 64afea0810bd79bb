"""Settings of trainers over fine-tuning jobs, with the names and defaults of Neural Interactive Proofs."""

from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, Field

from sparring.config.base import FilePath, Line, Name, Settings, at_field
from sparring.config.facts import CLASS_FILE
from sparring.core.own_code import is_class_path

JobState = Literal["validating_files", "queued", "running", "succeeded", "failed", "cancelled"]
JobField = Literal[
    "id", "status", "fine_tuned_model", "model", "training_file", "method", "suffix", "metadata", "seed"
]


METHODS = ("supervised", "dpo")
"""The methods of jobs, which may have hyperparameters of their own."""
DEFAULT_AGENT = "_default"
"""The agent whose table completes those of the others, and holds for agents without one."""
BundledTrainer = Literal["pure_text_ei", "pure_text_malt"]


def _is_trainer(name: str) -> str:
    if name not in get_args(BundledTrainer) and not is_class_path(name):
        fix = f"Use {' or '.join(get_args(BundledTrainer))}, or my_file.py:MyTrainer"
        raise at_field(f"there is no trainer {name}", fix)
    return name


TrainerName = Annotated[FilePath, AfterValidator(_is_trainer)]
"""A trainer of the package, or the file and the name of a subclass of PureTextRlTrainer."""


class RlParameters(Settings):
    """How much is sampled."""

    rollouts_per_iteration: int | None = Field(default=None, ge=1, le=10_000_000)
    """Number of rollouts in each iteration; by default one for each claim."""
    num_iterations: int = Field(default=8, ge=1, le=100_000)
    """Number of iterations; all but the last are followed by fine-tuning."""
    num_test_iterations: int = Field(default=1, ge=1, le=100_000)
    """How often each test claim is judged; without `text_rl.test_on_whole_dataset`, how many times
    `rollouts_per_iteration` rollouts a test has."""


class TextRlParameters(Settings):
    """What all trainers over fine-tuning jobs share."""

    fine_tune_on_all_previous_rollouts: bool = False
    """Learn from the rollouts of earlier iterations as well."""
    verifier_guess_replacement_proportion: float = Field(default=0.0, ge=0, le=1)
    """Share of the rollouts in which the verifier's verdict is replaced by the true one before it is
    imitated."""
    verifier_guess_replacement_annealing: Literal["none", "linear", "exponential"] = "none"
    """How the share p falls: at iteration i it is p, max(p - i r, 0) or p (1 - r)^i, with r the rate."""
    verifier_guess_replacement_annealing_rate: float = Field(default=0.1, ge=0, le=1)
    """The rate at which the share falls."""
    save_transcripts: bool = True
    """Write transcripts for people to read."""
    transcript_format: Literal["yaml", "json"] = "yaml"
    """The format of transcripts."""
    test_scheme: Literal["none", "all", "last", "first_and_last"] = "none"
    """The iterations in which the test claims are judged."""
    test_on_whole_dataset: bool = True
    """Judge every held-out claim."""


class PureTextEiParameters(Settings):
    """Which rollouts expert iteration imitates."""

    rollout_selection_method: Literal["threshold", "weighted_sampling"] = "threshold"
    """All from a reward upwards, or a draw whose weights grow with the reward."""
    reward_threshold: float = Field(default=0.9, ge=-1e6, le=1e6)
    """The least reward of an agent whose conversation is imitated."""
    weighting_sample_size_factor: float = Field(default=0.5, ge=1e-6, le=1e3)
    """Number of drawn rollouts, as a share of all."""
    weighting_minimum: float | None = Field(default=None, ge=-1e6, le=1e6)
    """The reward of weight 0; by default the iteration's lowest."""
    weighting_use_replacement: bool = True
    """Whether a rollout may be drawn twice."""
    weighting_epsilon: float = Field(default=0.01, ge=0, le=1e6)
    """Divided by the number of rollouts, this is added to each weight once the weights sum to 1."""


class PureTextMaltParameters(Settings):
    """How MALT makes trees of responses, and pairs of them."""

    num_responses_per_timestep: int = Field(default=2, ge=2, le=1000)
    """Number of responses to each prefix of an episode."""
    pair_selection_method: Literal["positive_negative", "interval"] = "interval"
    """`positive_negative`: a response whose reward is at least the middle of the possible rewards, and one
    below. `interval`: two whose rewards differ by more than a share of their range."""
    interval_threshold_proportion: float = Field(default=0.5, ge=0, le=1)
    """The share of the range of rewards that `interval` requires."""
    num_initial_ei_iterations: int = Field(default=0, ge=0, le=100_000)
    """Number of iterations of expert iteration before the first one of MALT."""
    frozen_agents_generate_one_response: bool = True
    """One response where only frozen agents speak."""


class BaseRunParameters(Settings):
    """What is taken from an earlier run."""

    base_run_type: Literal["none", "parameters", "rerun_tests"] = "none"
    """`parameters`: the seed, the program, the roles, the `[model]` of a local provider and the parameters of
    `[finetune]`, apart from the provider, `rl.num_test_iterations`, `text_rl.test_scheme` and
    `text_rl.test_on_whole_dataset`.
    `rerun_tests`: the same, and instead of training, its tests are played again with the models of each
    iteration."""
    run_id: FilePath | None = None
    """The earlier run: its name or path."""


def _by_method(hyperparameters: dict[str, Any]) -> dict[str, Any]:
    for method in METHODS:
        if not isinstance(hyperparameters.get(method, {}), dict):
            problem = f"is {hyperparameters[method]!r}, but holds the hyperparameters of a method"
            raise at_field(problem, f"Write {method} = {{n_epochs = 2}}", method)
    return hyperparameters


Hyperparameters = Annotated[dict[Name, Any], Field(max_length=100), AfterValidator(_by_method)]


class AgentParameters(Settings):
    """The model of an agent. Missing fields come from the table `_default`."""

    model_name: FilePath = "default"
    """The model that it starts from, by the API's name. `sparring serve` has `default`, the model that it
    serves, and `base`, the same without its adapter; other APIs have neither."""
    shared_model_group: Name | None = None
    """Agents with the same group share one model; by default the agent has its own."""
    freeze_agent: bool = False
    """Never train it."""
    fine_tune_from_scratch: bool = True
    """Start each job from `model_name`, not from the last model."""
    dpo_beta: float | None = Field(default=None, ge=1e-6, le=1e6)
    """DPO's beta; by default the provider's."""
    temperature: float | None = Field(default=None, ge=0, le=100)
    """Its temperature; by default the program's."""
    test_temperature: float | None = Field(default=None, ge=0, le=100)
    """Its temperature in tests; by default its role's `test_temperature`, or the training temperature. 0
    takes the most likely token."""
    hyperparameters: Hyperparameters = {}
    """Further hyperparameters of its jobs, by OpenAI's names, such as `n_epochs`. A table `supervised` or
    `dpo` is for jobs with this method alone."""


def _completed(agents: dict[str, AgentParameters]) -> dict[str, AgentParameters]:
    """Complete the table of each agent by that of ``_default``."""
    default = agents.get(DEFAULT_AGENT, AgentParameters())
    return {
        name: one.model_copy(
            update={
                field: getattr(default, field) for field in default.model_fields_set - one.model_fields_set
            }
        )
        for name, one in agents.items()
    }


Agents = Annotated[dict[Name, AgentParameters], Field(max_length=1000), AfterValidator(_completed)]


def parameters_of(agents: dict[str, AgentParameters], name: str) -> AgentParameters:
    """Return the parameters of an agent."""
    return agents.get(name) or agents.get(DEFAULT_AGENT) or AgentParameters()


LOCAL_SERVER = "http://127.0.0.1:8000/v1"
"""``sparring serve`` on this machine, with its default port."""


class ProviderSettings(Settings):
    """Where models answer and jobs are made."""

    type: Literal["openai", "tinker", "local", "dry_run"] = "openai"
    """An API with OpenAI's routes; a service with Tinker's training API; the model of `[model]` in this
    process, with the settings of `[inference]` and jobs in the run's directory, so that no server is needed;
    or jobs that train nothing."""
    base_url: Line | None = None
    """Address of the API; by default `sparring serve` on this machine, http://127.0.0.1:8000/v1. With
    `dry_run` and no address, answers are drawn and nobody is asked. OpenAI's is https://api.openai.com/v1."""
    concurrency: int = Field(default=64, ge=1, le=1_000_000)
    """Maximum number of rollouts, and of model calls, in progress. A kill costs the calls in progress."""
    least_examples: int = Field(default=10, ge=1, le=10_000_000)
    """The smallest number of examples that the API accepts; with fewer, an agent keeps its model."""
    fields: dict[JobField, Name] = Field(default={}, max_length=100)
    """Names of fields in requests and replies by OpenAI's name, where an API differs."""
    states: dict[Name, JobState] = Field(default={}, max_length=100)
    """OpenAI's names of a job's states by the API's, where an API differs."""
    poll_seconds: float = Field(default=5.0, ge=0.001, le=1e6)
    """Time between two questions about a job."""
    job_timeout: float = Field(default=86400.0, ge=0.001, le=1e8)
    """Seconds to wait for a job. Then the run stops; the job goes on, and `--resume` continues to wait."""
    recreate_failed_jobs: int = Field(default=0, ge=0, le=1000)
    """How often a failed job is made again."""

    @property
    def address(self) -> str:
        """The address of the API."""
        return self.base_url or LOCAL_SERVER

    @property
    def draws_answers(self) -> bool:
        """Whether answers are drawn, and no API is asked."""
        return self.type == "dry_run" and self.base_url is None


class FinetuneSettings(Settings):
    """Training through fine-tuning jobs: `sparring finetune`."""

    trainer: Annotated[TrainerName, CLASS_FILE] = "pure_text_ei"
    """Expert iteration (`pure_text_ei`), MALT (`pure_text_malt`), or the file and the name of a subclass of
    PureTextRlTrainer: `my_file.py:MyTrainer`."""
    provider: ProviderSettings = ProviderSettings()
    """Where models answer and jobs are made."""
    agents: Agents = {}
    """The agents' models, by agent. `_default` holds for agents without a table, and for fields that a table
    lacks."""
    rl: RlParameters = RlParameters()
    """How much is sampled."""
    text_rl: TextRlParameters = TextRlParameters()
    """What both trainers share."""
    pure_text_ei: PureTextEiParameters = PureTextEiParameters()
    """Which rollouts expert iteration imitates."""
    pure_text_malt: PureTextMaltParameters = PureTextMaltParameters()
    """How MALT makes trees of responses, and pairs of them."""
    base_run: BaseRunParameters = BaseRunParameters()
    """What is taken from an earlier run."""
