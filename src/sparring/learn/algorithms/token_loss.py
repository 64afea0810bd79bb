"""TokenLoss: policy gradients that are weighted sums over tokens.

With N answers, the loss of a batch is the aggregate (:meth:`BaseAlgo.aggregate`) of

    1/N * f_t * loss(token t),

where the factor f corrects for what engine and learner disagree about (see ``terms``). Three policies meet in
it: mu, with which the engine drew a token; old, the learner's before the update's first step; and pi. The
correction is about old / mu, and the loss about r = pi / old, so that a clip of r bounds what the update
changes and not what the engine does (decoupled PPO: Hilton et al. 2021, arXiv 2110.00641). In an update of
one step, pi is old and r is 1.

The KL divergence in the loss and the entropy are aggregated like the loss, as in verl. (In TRL the entropy is
always a mean over tokens.) The terms of the divergence are multiplied by the correction's factor, not by that
of off-policy sequence masking; with the correction ``none`` they have no weight, as in TRL with
``use_bias_correction_kl = False`` and in verl.
"""

from abc import abstractmethod

from torch import Tensor

from sparring.config.algorithms import CorrectedSettings, LossSettings
from sparring.learn.algorithms.base import BaseAlgo
from sparring.learn.algorithms.terms import MASKING, correction_factors, is_off_policy
from sparring.learn.batch import Tokens

UNCORRECTED = CorrectedSettings(correction="none")


class TokenLoss(BaseAlgo):
    """The loss that the module's docstring describes; subclasses define the loss of a token."""

    settings: LossSettings = CorrectedSettings()
    """The default values, of the subclass's own class."""
    has_ratio = True
    """Whether the loss contains r. If it does not, the correction is about all of pi / mu."""

    def __init__(self, settings: LossSettings | None = None) -> None:
        self.settings = settings = settings or self.settings
        super().__init__(settings)
        self.correction = settings if isinstance(settings, CorrectedSettings) else UNCORRECTED

    @abstractmethod
    def token_loss(self, logprobs_S: Tensor, old_S: Tensor, advantage_S: Tensor, tokens: Tokens) -> Tensor:
        """Return the loss of each token, from log pi, log old and the advantage.

        It must be proportional to the advantage as long as the advantage keeps its sign: what is passed here
        is already multiplied by the token's factor and by 1 / N, neither of which is negative.
        """

    def loss(self, logprobs_S: Tensor, tokens: Tokens) -> Tensor:
        """Return the loss of the records in one plan, a scalar."""
        old_S = logprobs_S.detach() if tokens.old_S is None else tokens.old_S
        factor_S = self._factors(logprobs_S.detach(), tokens)
        loss_S = self.token_loss(logprobs_S, old_S, tokens.advantage_S * factor_S, tokens)
        return self.aggregate(loss_S, tokens)

    def correct(self, terms_S: Tensor, logprobs_S: Tensor, tokens: Tokens) -> Tensor:
        """Return the terms of one plan's tokens, each times the correction's factor."""
        return self._correction_factors(logprobs_S.detach(), tokens) * terms_S

    def _correction_factors(self, logprobs_S: Tensor, tokens: Tokens) -> Tensor:
        old_S = logprobs_S if tokens.old_S is None else tokens.old_S
        corrected_S = old_S if self.has_ratio else logprobs_S
        return correction_factors(self.correction, corrected_S, tokens.behaviour_S, tokens.answer_S)

    def _factors(self, logprobs_S: Tensor, tokens: Tokens) -> Tensor:
        factor_S, threshold = self._correction_factors(logprobs_S, tokens), self.settings.opsm_threshold
        if threshold is not None:
            left_out_S = is_off_policy(
                logprobs_S, tokens.behaviour_S, tokens.credit_S, tokens.answer_S, threshold
            )
            factor_S = factor_S.masked_fill(left_out_S, 0.0)
        if self.correction.correction != "none":
            self.add_metric("correction_mean", factor_S)
        if self.correction.correction in MASKING or threshold is not None:
            self.add_metric("correction_masked", factor_S == 0)
        return factor_S
