"""How the terms of tokens are added up to the loss of a batch: their losses, KL divergences and entropies.

With N answers of lengths T_1, ..., T_N, a batch's loss is the mean over answers of a weighted sum over each
answer's tokens. The names are verl's (``agg_loss`` in ``core_algos.py``):

- ``token-mean``: every token counts the same, 1 / (T_1 + ... + T_N) (DAPO, Yu et al. 2025, arXiv 2503.14476);
- ``seq-mean-token-mean``: every answer counts the same, 1 / (N T_i) for its tokens (GRPO, Shao et al. 2024,
  arXiv 2402.03300);
- ``seq-mean-token-sum``: 1 / N for every token;
- ``seq-mean-token-sum-norm``: 1 / (N M) with a constant M (Dr.GRPO, Liu et al. 2025, arXiv 2503.20783).
"""

from torch import Tensor

from selfplay.core.algorithm_names import Aggregation
from selfplay.learning.batch import Tokens


def aggregate(name: Aggregation, terms_S: Tensor, tokens: Tokens, constant: float) -> Tensor:
    """Return one plan's part of the loss, a scalar, without the factor 1 / N.

    Args:
        name: the aggregation.
        terms_S: a term for each token. Losses already have the factor 1 / N, which ``tokens.advantage_S``
            contains; the sum of other terms is divided by N afterwards.
        tokens: the tokens.
        constant: M.
    """
    if name == "token-mean":
        return terms_S.sum() / tokens.mean_length
    if name == "seq-mean-token-mean":
        return (terms_S / tokens.length_S).sum()
    if name == "seq-mean-token-sum":
        return terms_S.sum()
    return terms_S.sum() / constant
