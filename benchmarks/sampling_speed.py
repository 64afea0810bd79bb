"""Sampling: microseconds to draw a token and its log-probability from the logits of a context.

Contenders: the engine's draws in blocks of the vocabulary; a draw by inversion from the cumulative sum over
the whole vocabulary, context by context, as the engine made it before; and torch's own functions for the
same, ``log_softmax`` and ``multinomial``, over all contexts. Logits are random, with a spread as in a
language model.

The gate: both inversions draw the same tokens from the same numbers but for one in a thousand, which lie at
the border of two tokens, and all log-probabilities agree to 1e-4.

Command:  python benchmarks/sampling_speed.py [--rounds 9]
Needs:    this package. A minute on one core, 2 GB.
"""

import argparse
from functools import partial
from statistics import median

import numpy as np
import torch
from torch import Tensor

from measuring import interleave, pin_one_thread, print_table, ratio
from sparring.engine.sampling import Distributions, FloatArray

VOCABULARIES = (49_152, 151_936)
CONTEXTS = (16, 64, 256)
SPREAD = 3.0

Drawn = tuple[list[int], list[float]]


def in_blocks(logits_NV: Tensor, chance_N: FloatArray) -> Drawn:
    """Draw as the engine does."""
    rows = np.arange(len(chance_N))
    distributions = Distributions(logits_NV, 1.0)
    tokens = distributions.draw(rows, chance_N)
    return tokens.tolist(), distributions.logprobs(rows, tokens)


def one_by_one(logits_NV: Tensor, chance_N: FloatArray) -> Drawn:
    """Draw from the cumulative sum over the vocabulary."""
    logprobs_NV = torch.log_softmax(logits_NV, dim=-1)
    tokens, logprobs = [], []
    for logprobs_V, chance in zip(logprobs_NV, chance_N, strict=True):
        cumulative_V = logprobs_V.exp().cumsum(0, dtype=torch.float64).numpy()
        token = int(np.searchsorted(cumulative_V, chance * cumulative_V[-1], side="right"))
        tokens.append(token)
        logprobs.append(float(logprobs_V[token]))
    return tokens, logprobs


def by_torch(logits_NV: Tensor) -> Drawn:
    """Draw with torch's functions."""
    logprobs_NV = torch.log_softmax(logits_NV, dim=-1)
    tokens_N1 = torch.multinomial(logprobs_NV.exp(), 1)
    return tokens_N1[:, 0].tolist(), logprobs_NV.gather(1, tokens_N1)[:, 0].tolist()


def check(logits_NV: Tensor, chance_N: FloatArray) -> None:
    """Compare the draws; see the module."""
    (tokens, logprobs), (others, other_logprobs) = (
        draw(logits_NV, chance_N) for draw in (in_blocks, one_by_one)
    )
    different = sum(token != other for token, other in zip(tokens, others, strict=True))
    gaps = [
        abs(mine - other)
        for token, mine, same, other in zip(tokens, logprobs, others, other_logprobs, strict=True)
        if token == same
    ]
    if different > 1 + len(tokens) // 1000 or max(gaps) > 1e-4:
        raise SystemExit(f"{different} draws differ, log-probabilities by up to {max(gaps):.2g}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Time draws from logits.")
    parser.add_argument("--rounds", type=int, default=9)
    arguments = parser.parse_args()
    pin_one_thread()
    rows = []
    for vocabulary in VOCABULARIES:
        for contexts in CONTEXTS:
            generator = torch.Generator().manual_seed(contexts)
            logits_NV = torch.randn(contexts, vocabulary, generator=generator) * SPREAD
            chance_N = np.random.default_rng(contexts).random(contexts)
            check(logits_NV, chance_N)
            seconds = interleave(
                {
                    "blocks": partial(in_blocks, logits_NV, chance_N),
                    "one by one": partial(one_by_one, logits_NV, chance_N),
                    "torch": partial(by_torch, logits_NV),
                },
                arguments.rounds,
            )
            each = {name: f"{median(found) / contexts * 1e6:.0f}" for name, found in seconds.items()}
            ratios = [ratio(seconds[name], seconds["blocks"]) for name in ("one by one", "torch")]
            rows.append([f"{vocabulary:,}", str(contexts), *each.values(), *(f"{one:.1f}" for one in ratios)])
    print_table(
        [
            "vocabulary",
            "contexts",
            "in blocks, us a draw",
            "one by one",
            "torch",
            "one by one / blocks",
            "torch / blocks",
        ],
        rows,
    )


if __name__ == "__main__":
    main()
