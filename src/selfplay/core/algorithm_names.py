"""The names of what algorithms are made of, as configurations write them."""

from typing import Any, Literal, get_args

from selfplay.core.errors import InputError

Regulariser = Literal["none", "uniform", "base", "reference"]
"""The distribution over legal answers that a regulariser pulls to; see ``learning.algorithms.base``."""

Aggregation = Literal["token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm"]
"""How the losses of tokens become the loss of a batch; see ``learning.aggregation``."""

Correction = Literal["none", "tis", "mis", "icepop", "kpop"]
"""What happens where engine and learner disagree about a token; see ``learning.corrections``."""

Level = Literal["token", "sequence", "geometric"]
"""Whether a correction looks at each token or at whole answers, and there at the product or at the geometric
mean of the tokens' weights; see ``learning.corrections``."""

KLEstimator = Literal["k1", "k2", "k3", "k3+"]
"""An estimator of a KL divergence from sampled tokens; see ``learning.divergences``."""

Reference = Literal["base", "reference"]
"""What a policy is compared with: the untrained model, or the adapter that follows the policy."""

KLPlace = Literal["loss", "reward"]
"""Whether a KL divergence is a term of the loss or is subtracted from the rewards of the tokens."""

AnswerGradient = Literal["policy", "neurd"]
"""How a policy follows the values of all legal answers; see ``learning.algorithms.all_actions``."""


def check_name(field: str, given: str, names: Any) -> None:
    """Check that an argument is one of the names of a ``Literal``.

    Raises:
        InputError: it is not.
    """
    if given not in get_args(names):
        raise InputError(field, f"there is no {given!r}", f"Use one of {', '.join(get_args(names))}")
