"""TokenLoss: policy gradients that are weighted sums over tokens.

With N answers, the loss of a batch is the aggregate (``aggregation``) of

    1/N * f_t * loss(token t),

where the factor f corrects for what engine and learner disagree about (``corrections``). Three policies meet
in it: mu, with which the engine drew a token; old, the learner's before the update's first step; and pi. The
correction is about old / mu, and the loss about r = pi / old, so that a clip of r bounds what the update
changes and not what the engine does (decoupled PPO: Hilton et al. 2021, arXiv 2110.00641). In an update of
one step, pi is old and r is 1.

The KL divergence in the loss and the entropy are aggregated like the loss, as in verl. So their weights are
relative to the loss of a token, whatever the aggregation. (TRL does this with the divergence only; its
entropy is always a mean over tokens.)

The terms of the divergence are multiplied by the correction's factor, with its bounds and its zeros, and not
by that of off-policy sequence masking. So with the correction ``none`` they have no weight, as in TRL with
``use_bias_correction_kl = False`` and in verl. In later steps of an update, they then estimate the divergence
from tokens that old drew; only a loss without r corrects for that too.
"""

from abc import abstractmethod
from typing import TypedDict, Unpack

from torch import Tensor

from selfplay.core.algorithm_names import (
    Aggregation,
    Correction,
    KLEstimator,
    KLPlace,
    Level,
    Reference,
    Regulariser,
    check_name,
)
from selfplay.learning.aggregation import aggregate
from selfplay.learning.algorithms.base import BaseAlgo
from selfplay.learning.batch import Tokens
from selfplay.learning.corrections import EngineCorrection, is_off_policy


class LossOptions(TypedDict, total=False):
    """The keyword arguments of :class:`TokenLoss`, which all its subclasses take."""

    regulariser: Regulariser
    kl_weight: float
    max_importance_weight: float
    kl_to: Reference
    kl_estimator: KLEstimator
    kl_in: KLPlace
    entropy_weight: float
    aggregation: Aggregation
    correction: Correction
    correction_level: Level
    min_importance_weight: float
    kpop_threshold: float
    opsm_threshold: float | None


class BaseOptions(TypedDict, total=False):
    """The keyword arguments of :class:`BaseAlgo` that :class:`TokenLoss` passes on."""

    kl_to: Reference
    kl_estimator: KLEstimator
    kl_in: KLPlace
    entropy_weight: float


class TokenLoss(BaseAlgo):
    """The loss that the module's docstring describes; subclasses define the loss of a token.

    Args:
        regulariser, kl_weight, options: see :class:`BaseAlgo`.
        max_importance_weight: C, the upper bound of the correction's factor.
        aggregation: how the losses of tokens are added up, and with them the KL divergence and the entropy.
        correction: the kind of the correction.
        correction_level: whether it looks at tokens or at whole answers; see ``corrections``.
        min_importance_weight: the bound c of ``icepop``.
        kpop_threshold: the threshold of ``kpop``, in nats.
        opsm_threshold: distance, in nats per token, from which answers with a negative advantage are left
            out; ``None`` to leave out none.

    Raises:
        InputError: one of the names is unknown.
    """

    has_ratio = True
    """Whether the loss contains r. If it does not, the correction is about all of pi / mu."""

    def __init__(
        self,
        regulariser: Regulariser = "none",
        kl_weight: float = 0.0,
        max_importance_weight: float = 2.0,
        *,
        aggregation: Aggregation = "seq-mean-token-sum-norm",
        correction: Correction = "tis",
        correction_level: Level = "token",
        min_importance_weight: float = 0.5,
        kpop_threshold: float = 2.0,
        opsm_threshold: float | None = None,
        **options: Unpack[BaseOptions],
    ) -> None:
        super().__init__(regulariser, kl_weight, **options)
        check_name("aggregation", aggregation, Aggregation)
        check_name("correction", correction, Correction)
        check_name("correction_level", correction_level, Level)
        self.aggregation = aggregation
        self.correction = EngineCorrection(
            correction, correction_level, max_importance_weight, min_importance_weight, kpop_threshold
        )
        self.opsm_threshold = opsm_threshold

    @abstractmethod
    def token_loss(self, logprobs_S: Tensor, old_S: Tensor, advantage_S: Tensor, tokens: Tokens) -> Tensor:
        """Return the loss of each token.

        It must be proportional to the advantage as long as the advantage keeps its sign: what is passed here
        is already multiplied by the token's factor and by 1 / N, neither of which is negative.

        Args:
            logprobs_S: log pi, with a gradient.
            old_S: log old.
            advantage_S: the advantage of each token.
            tokens: all else that is known of the tokens.
        """

    def loss(self, logprobs_S: Tensor, tokens: Tokens) -> Tensor:
        """Return the loss of the records in one plan, a scalar."""
        old_S = logprobs_S.detach() if tokens.old_S is None else tokens.old_S
        factor_S = self._factors(logprobs_S.detach(), tokens)
        loss_S = self.token_loss(logprobs_S, old_S, tokens.advantage_S * factor_S, tokens)
        return self.aggregate(loss_S, tokens)

    def aggregate(self, terms_S: Tensor, tokens: Tokens) -> Tensor:
        """Return the sum of the terms of one plan's tokens, with the weights of the loss."""
        return aggregate(self.aggregation, terms_S, tokens, self.max_generation_len)

    def correct(self, terms_S: Tensor, logprobs_S: Tensor, tokens: Tokens) -> Tensor:
        """Return the terms of one plan's tokens, each times the correction's factor."""
        return self._correction_factors(logprobs_S.detach(), tokens) * terms_S

    def _correction_factors(self, logprobs_S: Tensor, tokens: Tokens) -> Tensor:
        """Return the correction's factor of each token."""
        old_S = logprobs_S if tokens.old_S is None else tokens.old_S
        corrected_S = old_S if self.has_ratio else logprobs_S
        return self.correction.factors(corrected_S, tokens.behaviour_S, tokens.answer_S)

    def _factors(self, logprobs_S: Tensor, tokens: Tokens) -> Tensor:
        """Return the factor of each token's loss, and add the metrics about it."""
        factor_S = self._correction_factors(logprobs_S, tokens)
        if self.opsm_threshold is not None:
            left_out_S = is_off_policy(
                logprobs_S, tokens.behaviour_S, tokens.credit_S, tokens.answer_S, self.opsm_threshold
            )
            factor_S = factor_S.masked_fill(left_out_S, 0.0)
        if self.correction.kind != "none":
            self.add_metric("correction_mean", factor_S)
        if self.correction.masks or self.opsm_threshold is not None:
            self.add_metric("correction_masked", factor_S == 0)
        return factor_S
