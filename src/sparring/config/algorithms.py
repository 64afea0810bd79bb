"""The table of algorithms: one settings class each, and the class that computes with it.

To add an algorithm, add its settings class here and to :data:`Algorithm`, and write the class that its
``made_by`` names. torch must not load with the configuration, so that class is named, not imported.
"""

from collections.abc import Iterable
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from sparring.config.base import ClassPath, Name, Rule, Settings, at_field, with_own_type
from sparring.config.facts import CLASS_FILE, Only

Regulariser = Literal["none", "uniform", "base", "reference"]
"""The distribution over legal answers that a regulariser pulls to; see ``learn.algorithms.base``."""
Aggregation = Literal["token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm"]
"""How the losses of tokens become the loss of a batch; see ``BaseAlgo.aggregate``."""
Correction = Literal["none", "tis", "mis", "icepop", "kpop"]
"""What happens where engine and learner disagree about a token; see ``learn.algorithms.terms``."""
Level = Literal["token", "sequence", "geometric"]
"""Whether a correction looks at each token or at whole answers, and there at the product or at the geometric
mean of the tokens' weights; see ``learn.algorithms.terms``."""
KLEstimator = Literal["k1", "k2", "k3", "k3+"]
"""An estimator of a KL divergence from sampled tokens; see ``learn.algorithms.terms``."""
Reference = Literal["base", "reference"]
"""What a policy is compared with: the untrained model, or the adapter that follows the policy."""
KLPlace = Literal["loss", "reward"]
"""Whether a KL divergence is a term of the loss or is subtracted from the rewards of the tokens."""
AnswerValues = Literal["returns", "tree"]
"""What legal answers are worth; see ``learn.action_values`` and ``learn.tree_values``."""
AnswerGradient = Literal["policy", "neurd"]
"""How a policy follows the values of all legal answers; see ``learn.algorithms.all_actions``."""


class AlgorithmSettings(Settings):
    """Base of all algorithms, with what others need to know of one."""

    made_by: ClassVar[str]
    """The class that takes these settings: its module in ``learn.algorithms``, and its name."""
    needs_critic: ClassVar[bool] = False
    """Whether the policy must have a critic."""
    bounds_of_ratio: ClassVar[tuple[str, ...]] = ()
    """The fields about the ratio of a policy after and before a step, which an update of one step lacks."""

    type: str = ""
    """Names the algorithm."""

    @property
    def regulariser_ends(self) -> tuple[float, float]:
        """The weight of the regulariser at the first and at the last update; 0 if there is none."""
        return 0.0, 0.0

    @property
    def may_follow(self) -> bool:
        """Whether the policy may be compared with the reference that follows it."""
        return True

    @property
    def may_normalise(self) -> bool:
        """Whether the loss may be divided by ``learning.max_generation_len``."""
        return True


class WeightedSettings(AlgorithmSettings):
    """Base of the losses of tokens, your own included: what the learner does with their regulariser."""

    regulariser_weight: float = Field(default=0.2, ge=0, le=1e6)
    """Weight of the regulariser at the first update, in units of reward; with a critic, in units of the
    rewards' running deviation."""
    regulariser_weight_end: float = Field(default=0.02, ge=0, le=1e6)
    """Weight of the regulariser at the last update. In between it changes geometrically, or along a cosine if
    one of the two is 0."""

    @property
    def regulariser_ends(self) -> tuple[float, float]:
        """The weight of the regulariser at the first and at the last update."""
        return self.regulariser_weight, self.regulariser_weight_end


_KL = Only("kl_weight")


class LossSettings(WeightedSettings):
    """The terms that any loss of tokens may have, and base of those of the package."""

    regulariser: Regulariser = "none"
    """Adds to the loss the policy's cross-entropy against a distribution over the legal answers: `uniform`,
    the untrained model's (`base`), or the `reference`'s, which follows the policy."""
    kl_weight: float = Field(default=0.0, ge=0, le=1e6)
    """Weight of the KL divergence to another model on the sampled tokens."""
    kl_to: Annotated[Reference, _KL] = "base"
    """The other model: the untrained one (`base`), or the reference that follows the policy
    (`learning.reference_decay`)."""
    kl_estimator: Annotated[KLEstimator, _KL] = "k3"
    """How the KL divergence is estimated from sampled tokens. In the loss, `k1` has no effect on average, and
    each estimate is multiplied by the factor of `correction` (by 1 with `none` and in `dppo`). `k3` caps the
    logarithm of the other model's probability divided by the policy's at 2.6."""
    kl_in: Annotated[KLPlace, _KL] = "loss"
    """Whether the KL divergence is added to the loss or subtracted from the advantages, after their baseline
    and their normalisation: a token's advantage then falls by the divergence from that token to the end of
    its answer."""
    entropy_weight: float = Field(default=0.0, ge=0, le=1e6)
    """Weight of the entropy over the vocabulary at the sampled tokens, which is subtracted from the loss."""
    aggregation: Aggregation = "seq-mean-token-sum-norm"
    """How the losses of tokens, the KL divergence and the entropy are combined: as a mean over all tokens, or
    as a mean over answers of their tokens' mean, sum, or sum divided by `learning.max_generation_len`."""
    opsm_threshold: float | None = Field(default=None, ge=1e-9, le=1e6)
    """Answers with a negative advantage are left out if the learner's mean log-probability of their tokens is
    lower than the engine's by more than this, in nats."""

    @property
    def regulariser_ends(self) -> tuple[float, float]:
        """The weight of the regulariser at the first and at the last update; 0 if there is none."""
        return (0.0, 0.0) if self.regulariser == "none" else super().regulariser_ends

    def rules(self) -> Iterable[Rule]:
        """No two settings have one purpose."""
        return (self._one_purpose,)

    def _one_purpose(self) -> None:
        if self.kl_weight and self.regulariser == self.kl_to:
            problem = f"{self.regulariser} is the model of kl_weight too"
            raise at_field(problem, "Set one of the two: none, or a kl_weight of 0", "regulariser")

    @property
    def compared_with(self) -> set[str]:
        """What the policy is compared with: ``base``, ``reference``, both or neither."""
        return {self.regulariser} & {"base", "reference"} | ({self.kl_to} if self.kl_weight else set())

    @property
    def may_follow(self) -> bool:
        """Whether the policy is compared with the reference that follows it."""
        return "reference" in self.compared_with

    @property
    def may_normalise(self) -> bool:
        """Whether the loss is divided by ``learning.max_generation_len``."""
        return self.regulariser != "none" or self.aggregation == "seq-mean-token-sum-norm"


_CORRECTED = Only("correction", ("tis", "mis", "icepop", "kpop"))


class CorrectedSettings(LossSettings):
    """Base of the algorithms whose loss a correction multiplies."""

    correction: Correction = "tis"
    """What happens to tokens whose probability differs between engine and learner: `tis` bounds the
    importance weight; `mis`, `icepop` and `kpop` leave out tokens that differ much."""
    correction_level: Annotated[Level, _CORRECTED] = "token"
    """Whether the correction weights and leaves out tokens or whole answers. The weight of an answer is the
    product of its tokens' weights (`sequence`) or their geometric mean (`geometric`)."""
    max_importance_weight: Annotated[float, _CORRECTED] = Field(default=2.0, ge=1e-6, le=1e9)
    """Upper bound of the correction's importance weights: the learner's probability of a token divided by the
    engine's."""
    min_importance_weight: Annotated[float, Only("correction", ("icepop",))] = Field(
        default=0.5, ge=0, le=1e6
    )
    """Importance weight below which `icepop` leaves out a token. Its authors use 0.5, with a
    `max_importance_weight` of 5."""
    kpop_threshold: Annotated[float, Only("correction", ("kpop",))] = Field(default=2.0, ge=1e-9, le=1e6)
    """KL divergence between engine and learner, in nats, above which `kpop` leaves out a token."""

    def rules(self) -> Iterable[Rule]:
        """As the base's; a correction keeps tokens on which engine and learner agree."""
        return (*super().rules(), self._keeps_tokens_that_agree)

    def _keeps_tokens_that_agree(self) -> None:
        most, least = self.max_importance_weight, self.min_importance_weight
        if self.correction in ("mis", "icepop") and most < 1:
            problem = f"must be at least 1 with {self.correction} (got {most:g})"
            raise at_field(problem, "Choose 1 or more", "max_importance_weight")
        if self.correction == "icepop" and least > 1:
            problem = f"must be at most 1 with icepop (got {least:g})"
            raise at_field(problem, "Choose 1 or less", "min_importance_weight")


class ReinforceSettings(CorrectedSettings):
    """REINFORCE with Dr.GRPO's constant normaliser."""

    made_by = "reinforce:Reinforce"
    type: Literal["reinforce"] = "reinforce"
    """Names this algorithm."""
    regulariser: Regulariser = "uniform"
    """As for other algorithms, which have none by default. `reinforce`, the default, has one because
    self-play on few legal moves may otherwise collapse to one of them."""


class A2cSettings(CorrectedSettings):
    """REINFORCE with the advantages of a critic. It needs one, by `learning.critic` or by
    `learning.policies.NAME.critic`."""

    made_by = "reinforce:A2c"
    needs_critic = True
    type: Literal["a2c"] = "a2c"
    """Names this algorithm."""


class PpoSettings(CorrectedSettings):
    """PPO's clipped objective, with a critic if there is a table `learning.critic`."""

    made_by = "ppo:Ppo"
    bounds_of_ratio = ("clip_low", "clip_high", "dual_clip")
    type: Literal["ppo"] = "ppo"
    """Names this algorithm."""
    clip_low: float = Field(default=0.2, ge=0, le=1)
    """How far the ratio of a token's probabilities after and before the update may fall below 1."""
    clip_high: float = Field(default=0.2, ge=0, le=1e6)
    """How far the ratio may rise above 1. DAPO uses 0.28."""
    dual_clip: float | None = Field(default=None, gt=1, le=1e6)
    """Upper bound of the ratio's effect on tokens with a negative advantage. 3 is usual."""


class GspoSettings(CorrectedSettings):
    """GSPO, PPO's clip for whole answers."""

    made_by = "gspo:Gspo"
    bounds_of_ratio = ("clip_low", "clip_high")
    type: Literal["gspo"] = "gspo"
    """Names this algorithm."""
    aggregation: Aggregation = "seq-mean-token-mean"
    """As for other algorithms."""
    clip_low: float = Field(default=3e-4, ge=0, le=1)
    """How far the geometric mean of an answer's ratios may fall below 1."""
    clip_high: float = Field(default=4e-4, ge=0, le=1e6)
    """How far it may rise above 1."""


class CispoSettings(CorrectedSettings):
    """CISPO, which bounds importance weights and keeps the gradient of every token."""

    made_by = "cispo:Cispo"
    bounds_of_ratio = ("clip_low", "clip_high")
    type: Literal["cispo"] = "cispo"
    """Names this algorithm."""
    clip_low: float = Field(default=1.0, ge=0, le=1)
    """How far the weight of a token may fall below 1; 1 for no bound."""
    clip_high: float = Field(default=4.0, ge=0, le=1e6)
    """How far it may rise above 1."""


class SapoSettings(CorrectedSettings):
    """SAPO, a soft gate in the place of PPO's clip."""

    made_by = "sapo:Sapo"
    bounds_of_ratio = ("tau_positive", "tau_negative")
    type: Literal["sapo"] = "sapo"
    """Names this algorithm."""
    tau_positive: float = Field(default=1.0, ge=1e-6, le=1e6)
    """How fast the gate closes for tokens with a positive advantage."""
    tau_negative: float = Field(default=1.05, ge=1e-6, le=1e6)
    """How fast it closes for the others."""


class DppoSettings(LossSettings):
    """DPPO with binary total variation: it leaves out tokens whose probability has changed much."""

    made_by = "dppo:Dppo"
    type: Literal["dppo"] = "dppo"
    """Names this algorithm."""
    max_importance_weight: float = Field(default=20.0, ge=1e-6, le=1e9)
    """Upper bound of the weight of a token's loss: the learner's probability divided by the engine's."""
    clip_low: float = Field(default=0.2, ge=0, le=1)
    """A token is made no less likely once the learner's probability is this far below the engine's."""
    clip_high: float = Field(default=0.2, ge=0, le=1)
    """A token is made no likelier once the learner's probability is this far above the engine's."""


class OverAnswersSettings(AlgorithmSettings):
    """Base of the algorithms that learn from all legal answers."""

    values: AnswerValues = "returns"
    """What answers are worth: by the `returns` of the games in which they were given, or by the `tree` of all
    games with the same history, in this batch and earlier ones. The tree costs one more forward pass, and is
    of use where the same histories return: all that all seats were asked and answered."""

    alpha: float = Field(default=0.8, ge=1e-6, le=1e6)
    """Weight of the divergence from the reference, in units of the root mean square of the same game's
    advantages: in units of reward, it falls as games end more alike. With a smaller value, an update moves
    further."""
    uniform: float = Field(default=0.05, ge=1e-9, lt=1)
    """Share of the uniform distribution over the legal answers that is mixed with the reference's
    distribution, which covers all answers. Among legal answers alone the share is larger while the reference
    also answers illegally."""
    memory: float = Field(default=16.0, ge=0, le=1e6)
    """Maximum number of earlier answers to a prompt that count beside the batch's; they lose a fifth of their
    weight with every update. 0 for the batch alone."""


class MagnetSettings(OverAnswersSettings):
    """Moves to the best reply of the moment, as far as the reference that follows the policy allows. It needs
    answers that can be listed."""

    made_by = "magnet:Magnet"
    type: Literal["magnet"] = "magnet"
    """Names this algorithm."""
    eta: float | None = Field(default=None, ge=1e-6, le=1e6)
    """Step size of magnetic mirror descent, towards the best reply within reach of the reference; by default,
    an update goes all the way. It costs one more forward pass."""
    pace: float | None = Field(default=None, ge=1e-3, le=1)
    """Share of the way to that reply that a step may go: the learning rate falls as far as this needs, and
    rises again, up to `learning.learning_rate`. By default it stays there, and where all positions turn
    together a step may go too far. It needs several `learning.epochs`, because each measures the last."""


class AllActionsSettings(OverAnswersSettings):
    """The expected gradient over all legal answers, less the divergence from the reference that follows the
    policy. It needs answers that can be listed."""

    made_by = "all_actions:AllActions"
    type: Literal["all_actions"] = "all_actions"
    """Names this algorithm."""
    gradient: AnswerGradient = "policy"
    """The exact policy gradient, or `neurd`, with which rare answers return as fast as others."""
    beta: float = Field(default=4.0, ge=1e-6, le=1e6)
    """With `neurd`, an answer whose log-probability differs from the mean of the legal answers by more than
    this, in nats, is not pushed further away from it by its own gain."""


class PythonAlgorithm(WeightedSettings):
    """An algorithm of your own: a subclass of BaseAlgo in a file."""

    type: Annotated[Literal["python"], CLASS_FILE] = "python"
    """Names this kind of algorithm."""
    path: Annotated[ClassPath, CLASS_FILE]
    """The file and the class, such as `my_algorithm.py:MyAlgorithm`. The file is relative to the
    configuration file and, on the command line, to the working directory."""
    options: dict[Name, Any] = Field(default={}, max_length=100)
    """Keyword arguments for the class, as they are written; `Path(__file__).parent` in your file finds what
    lies beside it."""


Algorithm = Annotated[
    ReinforceSettings
    | A2cSettings
    | PpoSettings
    | GspoSettings
    | CispoSettings
    | SapoSettings
    | DppoSettings
    | MagnetSettings
    | AllActionsSettings
    | PythonAlgorithm,
    Field(discriminator="type"),
]


def with_type(algorithm: Any) -> Any:
    """Return an algorithm's table with its ``type``: ``python`` if it has a ``path``, or ``reinforce``."""
    table = with_own_type(algorithm)
    return {"type": "reinforce", **table} if isinstance(table, dict) else table
