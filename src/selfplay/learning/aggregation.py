"""How the losses of tokens are added up to the loss of a batch.

With N answers of lengths T_1, ..., T_N, a batch's loss is the mean over answers of a weighted sum over each
answer's tokens. The names are verl's (``agg_loss`` in ``core_algos.py``):

- ``token-mean``: every token counts the same, 1 / (T_1 + ... + T_N) (DAPO, Yu et al. 2025, arXiv 2503.14476);
- ``seq-mean-token-mean``: every answer counts the same, 1 / (N T_i) for its tokens (GRPO, Shao et al. 2024);
- ``seq-mean-token-sum``: 1 / N for every token;
- ``seq-mean-token-sum-norm``: 1 / (N M) with a constant M (Dr.GRPO, Liu et al. 2025, arXiv 2503.20783).
"""

import torch
from torch import Tensor

from selfplay.core.algorithm_names import Aggregation


def token_weights(name: Aggregation, length_S: Tensor, mean_length: float, constant: float) -> Tensor:
    """Return the weight of each token in its answer's part of the loss, without the factor 1 / N.

    Args:
        name: the aggregation.
        length_S: number of tokens of each token's answer.
        mean_length: mean number of tokens of an answer over the whole batch, also of other shards.
        constant: M.
    """
    if name == "token-mean":
        return torch.full_like(length_S, 1 / mean_length)
    if name == "seq-mean-token-mean":
        return 1 / length_S
    if name == "seq-mean-token-sum":
        return torch.ones_like(length_S)
    return torch.full_like(length_S, 1 / constant)
