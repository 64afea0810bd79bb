"""HyperParameters: everything that decides the results of a stage trainer, under nip's names.

The rules of a protocol (``protocol_common``, ``nip_protocol``, ...) belong to the program that is played;
see ``selfplay.programs.proofs``.
"""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from selfplay.core import InputError

Annealing = Literal["none", "linear", "exponential"]
TestScheme = Literal["none", "all", "last", "first_and_last"]
RolloutSelection = Literal["threshold", "weighted_sampling"]
PairSelection = Literal["positive_negative", "interval"]
BaseRunType = Literal["none", "parameters", "rerun_tests"]


@dataclass(frozen=True)
class RlParameters:
    """How much is sampled.

    Args:
        rollouts_per_iteration: rollouts of each iteration; ``None`` takes one for each row of the dataset.
        num_iterations: number of iterations; one fewer is followed by fine-tuning.
        num_test_iterations: how often each test row is played, or, without ``test_on_whole_dataset``, how
            many times ``rollouts_per_iteration`` test rollouts there are.
    """

    rollouts_per_iteration: int | None = None
    num_iterations: int = 8
    num_test_iterations: int = 1


@dataclass(frozen=True)
class TextRlParameters:
    """What all trainers of text share.

    Args:
        fine_tune_on_all_previous_rollouts: learn from the rollouts of earlier iterations as well.
        verifier_guess_replacement_proportion: share of the rollouts in which the verifier's verdict is
            replaced by the true one before it is imitated.
        verifier_guess_replacement_annealing: how the share falls with the iteration.
        verifier_guess_replacement_annealing_rate: by how much.
        save_transcripts: write transcripts that people read.
        transcript_format: in which format.
        test_scheme: in which iterations the test set is played.
        test_on_whole_dataset: play each row of it.
    """

    fine_tune_on_all_previous_rollouts: bool = False
    verifier_guess_replacement_proportion: float = 0.0
    verifier_guess_replacement_annealing: Annealing = "none"
    verifier_guess_replacement_annealing_rate: float = 0.1
    save_transcripts: bool = True
    transcript_format: Literal["yaml", "json"] = "yaml"
    test_scheme: TestScheme = "none"
    test_on_whole_dataset: bool = True


@dataclass(frozen=True)
class PureTextEiParameters:
    """Which rollouts expert iteration imitates.

    Args:
        rollout_selection_method: all from a reward on, or a draw with weights that grow with the reward.
        reward_threshold: the least reward of an agent whose conversation is imitated.
        weighting_sample_size_factor: number of drawn rollouts, as a share of all.
        weighting_minimum: the reward of weight 0; ``None`` takes the least of the iteration.
        weighting_use_replacement: whether a rollout may be drawn twice.
        weighting_epsilon: a share of uniform weight that is added, so that no weight is 0.
    """

    rollout_selection_method: RolloutSelection = "threshold"
    reward_threshold: float = 0.9
    weighting_sample_size_factor: float = 0.5
    weighting_minimum: float | None = None
    weighting_use_replacement: bool = True
    weighting_epsilon: float = 0.01


@dataclass(frozen=True)
class PureTextMaltParameters:
    """How MALT makes trees of responses and pairs of them.

    Args:
        num_responses_per_timestep: responses to each prefix of an episode.
        pair_selection_method: a response above and one below the middle of the rewards, or two that differ
            by more than a share of their range.
        interval_threshold_proportion: that share.
        num_initial_ei_iterations: number of iterations of expert iteration before.
        frozen_agents_generate_one_response: one response where only frozen agents speak.
    """

    num_responses_per_timestep: int = 2
    pair_selection_method: PairSelection = "interval"
    interval_threshold_proportion: float = 0.5
    num_initial_ei_iterations: int = 0
    frozen_agents_generate_one_response: bool = True


@dataclass(frozen=True)
class BaseRunParameters:
    """What is taken from an earlier run: its parameters, or its models, which are tested again.

    Args:
        base_run_type: which of the two.
        run_id: the earlier run.
    """

    base_run_type: BaseRunType = "none"
    run_id: str | None = None


@dataclass(frozen=True)
class AgentParameters:
    """The model of an agent.

    Args:
        model_name: the model that it starts from.
        shared_model_group: agents with the same name share one model; ``None`` gives it its own.
        freeze_agent: never train it.
        fine_tune_from_scratch: start each job from ``model_name``, not from the last model.
        dpo_beta: DPO's ``beta``; ``None`` leaves it to the provider.
        temperature: its temperature; ``None`` keeps the protocol's.
        hyperparameters: further hyperparameters of its jobs, by OpenAI's names.
    """

    model_name: str = "default"
    shared_model_group: str | None = None
    freeze_agent: bool = False
    fine_tune_from_scratch: bool = True
    dpo_beta: float | None = None
    temperature: float | None = None
    hyperparameters: dict[str, Any] = field(default_factory=dict)


DEFAULT_AGENT = "_default"
"""The key of ``agents`` whose parameters hold for agents that are not named."""


@dataclass(frozen=True)
class HyperParameters:
    """Everything that decides results.

    Args:
        trainer: the algorithm.
        dataset: what is judged: a name, a file or a Hugging Face id.
        interaction_protocol: who questions whom.
        seed: root of all seeds.
        agents: parameters by agent; ``_default`` holds for the others.
        protocol: parameters of the protocol, by their names.
    """

    trainer: Literal["pure_text_ei", "pure_text_malt"] = "pure_text_ei"
    dataset: str = "arithmetic_claims"
    interaction_protocol: str = "nip"
    seed: int = 6198
    agents: dict[str, AgentParameters] = field(default_factory=dict)
    protocol: dict[str, Any] = field(default_factory=dict)
    rl: RlParameters = field(default_factory=RlParameters)
    text_rl: TextRlParameters = field(default_factory=TextRlParameters)
    pure_text_ei: PureTextEiParameters = field(default_factory=PureTextEiParameters)
    pure_text_malt: PureTextMaltParameters = field(default_factory=PureTextMaltParameters)
    base_run: BaseRunParameters = field(default_factory=BaseRunParameters)

    def agent(self, name: str) -> AgentParameters:
        """Return the parameters of an agent."""
        return self.agents.get(name) or self.agents.get(DEFAULT_AGENT) or AgentParameters()

    def to_dict(self) -> dict[str, Any]:
        """Return the parameters as plain JSON values."""
        return asdict(self)


@dataclass(frozen=True)
class ExperimentSettings:
    """What must not change results.

    Args:
        run_dir: the run's directory; ``None`` keeps nothing.
        run_id: names the run, also in its jobs; the directory's name by default.
        num_rollout_workers: maximum number of episodes in flight.
        do_not_load_checkpoint: start from the beginning although there is a saved state.
        test_run: go through all stages and write nothing.
        force_more_iterations: continue a run that is done if it has more iterations now.
        accept_changes: resume although parameters that change results have changed.
        poll_seconds: time between two questions about a job.
        job_timeout: seconds after which a job that has not ended is given up.
        recreate_failed_jobs: how often a job that failed is made again.
    """

    run_dir: Path | None = None
    run_id: str | None = None
    num_rollout_workers: int = 16
    do_not_load_checkpoint: bool = False
    test_run: bool = False
    force_more_iterations: bool = False
    accept_changes: bool = False
    poll_seconds: float = 10.0
    job_timeout: float = 24 * 3600.0
    recreate_failed_jobs: int = 0

    def __post_init__(self) -> None:
        if self.run_dir is None and not self.test_run:
            raise InputError("run_dir", "is missing", "Give a directory, or test_run=True to keep nothing")
