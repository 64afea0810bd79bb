"""Logits after ``top_p``, ``top_k``, ``min_p`` and ``logit_bias``."""

import torch
from torch import Tensor

from selfplay.inference.answering import Shaping
from selfplay.inference.sampling import GREEDY_BELOW


def shaped_logits(logits_MV: Tensor, temperature: float, shaping: Shaping) -> Tensor:
    """Return a copy of logits in which tokens that are not to be drawn have minus infinity.

    As in vLLM: the bias is added, the temperature is applied, and then ``min_p``, ``top_k`` and ``top_p``
    leave out tokens, each of what the one before has kept. Tokens as likely as the last one of ``top_k`` are
    kept too. The result is not divided by the temperature.
    """
    logits_MV = logits_MV.clone()
    for token, bias in shaping.logit_bias:
        logits_MV[:, token] += bias
    if temperature < GREEDY_BELOW:
        return logits_MV  # the most likely token is always kept
    if shaping.min_p > 0:
        probability_MV = (logits_MV / temperature).softmax(-1)
        least_M1 = shaping.min_p * probability_MV.amax(-1, keepdim=True)
        logits_MV.masked_fill_(probability_MV < least_M1, -torch.inf)
    if 0 < shaping.top_k < logits_MV.shape[-1]:
        last_M1 = logits_MV.topk(shaping.top_k).values[:, -1:]
        logits_MV.masked_fill_(logits_MV < last_M1, -torch.inf)
    if shaping.top_p < 1:
        falling_MV, tokens_MV = logits_MV.sort(descending=True, stable=True)
        probability_MV = (falling_MV / temperature).softmax(-1, dtype=torch.float64)
        before_MV = probability_MV.cumsum(-1) - probability_MV
        falling_MV.masked_fill_(before_MV >= shaping.top_p, -torch.inf)
        logits_MV.scatter_(-1, tokens_MV, falling_MV)
    return logits_MV
