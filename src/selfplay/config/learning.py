"""The learner and its algorithm."""

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from selfplay.config.base import ClassPath, Settings


class AlgorithmSettings(Settings):
    """Base of all algorithms: what the learner does with the algorithm's regulariser."""

    type: str
    """Names the algorithm."""
    regulariser_weight: float = Field(default=0.2, ge=0)
    """Weight of the regulariser at the first update, in units of reward."""
    regulariser_weight_end: float = Field(default=0.02, ge=0)
    """Weight of the regulariser at the last update; it changes geometrically in between."""


class ReinforceSettings(AlgorithmSettings):
    """REINFORCE with Dr.GRPO's constant normaliser."""

    type: Literal["reinforce"] = "reinforce"
    """Names this algorithm."""
    regulariser: Literal["none", "uniform", "base"] = "uniform"
    """The cross-entropy from a reference distribution over the legal answers to the policy is added to the
    loss. The reference is uniform, or the untrained model's distribution."""
    kl_weight: float = Field(default=0.0, ge=0)
    """Weight of the KL divergence to the untrained model on the sampled tokens."""
    max_importance_weight: float = Field(default=2.0, gt=0)
    """Upper bound of the importance weights: the learner's probability of a token divided by the engine's."""


class PythonAlgorithm(AlgorithmSettings):
    """An algorithm of your own: a subclass of BaseAlgo in a file."""

    type: Literal["python"] = "python"
    """Names this kind of algorithm."""
    path: ClassPath
    """The file and the class, such as `my_algorithm.py:MyAlgorithm`. The file is relative to the
    configuration file and, on the command line, to the working directory."""
    options: dict[str, Any] = {}
    """Keyword arguments for the class."""


Algorithm = Annotated[ReinforceSettings | PythonAlgorithm, Field(discriminator="type")]


class LearningSettings(Settings):
    """The learner."""

    steps: int = Field(default=100, ge=1)
    """Number of updates in the whole run."""
    algorithm: Algorithm = ReinforceSettings()
    """The policy-gradient algorithm. A table without `type` is `python` if it has a `path`, and `reinforce`
    otherwise."""
    learning_rate: float = Field(default=1e-4, gt=0)
    """Learning rate of AdamW after warm-up."""
    learning_rate_end: float = Field(default=5e-6, ge=0)
    """Learning rate at the last update; it follows a cosine in between."""
    policy_rates: dict[str, Annotated[float, Field(gt=0)]] = {}
    """Factors by which both rates are multiplied for some policies, by the policy's name."""
    warmup_steps: int = Field(default=4, ge=0)
    """Number of updates over which the learning rate rises."""
    grad_clip: float = Field(default=1.0, gt=0)
    """Maximum global L2 norm of the gradient."""
    average_decay: float = Field(default=0.0, ge=0, lt=1)
    """Decay of a running average of the adapter's weights, which is the adapter that is evaluated and kept; 0
    for no average."""
    max_generation_len: int | None = Field(default=None, ge=1)
    """Constant normaliser of the loss, in tokens; `inference.max_tokens` if not given."""
    max_train_len: int | None = Field(default=None, ge=2)
    """Maximum number of tokens of prompt and answer that are trained on; if not given, there is no limit."""
    max_batch_tokens: int = Field(default=6144, ge=16)
    """Maximum number of tokens in one forward pass; larger trees go through the model in sections."""
    max_mismatch: float = Field(default=0.2, gt=0)
    """Mean difference between the log-probabilities of engine and learner, in nats per token, above which the
    run stops; the limit for tokens of older versions is 1 nat higher."""

    @field_validator("algorithm", mode="before")
    @classmethod
    def _with_type(cls, algorithm: Any) -> Any:
        if not isinstance(algorithm, dict):
            return algorithm
        return {"type": "python" if "path" in algorithm else "reinforce", **algorithm}
