"""How the losses of tokens are added up to the loss of a batch.

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


def aggregate(name: Aggregation, loss_S: Tensor, tokens: Tokens, constant: float) -> Tensor:
    """Return one plan's part of the loss, a scalar.

    Args:
        name: the aggregation.
        loss_S: the loss of each token, with the factor 1 / N that ``tokens.advantage_S`` contains.
        tokens: the tokens.
        constant: M.
    """
    if name == "token-mean":
        return loss_S.sum() / tokens.mean_length
    if name == "seq-mean-token-mean":
        return (loss_S / tokens.length_S).sum()
    if name == "seq-mean-token-sum":
        return loss_S.sum()
    return loss_S.sum() / constant
