"""Draw the next tokens of requests from logits, each as its request asks."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from sparring.engine.admission import Request
from sparring.engine.answering import PLAIN, Shaping
from sparring.engine.sampling import Distributions, FloatArray, IntArray, Logits, shaped_logits, uniforms


class DrawnToken(NamedTuple):
    """A token, its log-probability, and the most likely tokens in its place if the request asks for them."""

    token: int
    logprob: float
    likeliest: list[tuple[int, float]]


def draw_tokens(logits: Logits, rows: Sequence[int], requests: Sequence[Request]) -> list[DrawnToken | None]:
    """Return the next token of each request, whose context is at ``rows`` of the logits; ``None`` where
    logits are not numbers, because the weights are damaged."""
    chance_M = _chances(requests)
    alike: dict[tuple[float, Shaping | None], list[int]] = {}
    for index, request in enumerate(requests):
        shaping = None if request.options is PLAIN else request.options.shaping
        alike.setdefault((request.temperature, shaping), []).append(index)
    draws: list[DrawnToken | None] = [None] * len(requests)
    for (temperature, shaping), indices in alike.items():
        rows_m = np.array([rows[index] for index in indices])
        distributions, places_m = _distributions(logits, rows_m, temperature, shaping)
        usable_m = distributions.usable(places_m)
        indices = [index for index, usable in zip(indices, usable_m, strict=True) if usable]
        rows_m, places_m = rows_m[usable_m], places_m[usable_m]
        some = [requests[index] for index in indices]
        tokens_m = distributions.draw(places_m, chance_M[indices])
        for place, request in enumerate(some):
            if request.forced is not None:
                tokens_m[place] = request.forced[len(request.drawn)]
        described = _described(logits, distributions, rows_m, places_m, tokens_m, some)
        for index, draw in zip(indices, described, strict=True):
            draws[index] = draw
    return draws


def _distributions(
    logits: Logits, rows_m: IntArray, temperature: float, shaping: Shaping | None
) -> tuple[Distributions, IntArray]:
    if shaping is None or shaping == PLAIN.shaping:
        return logits.at(temperature), rows_m
    shaped_mV = shaped_logits(logits.logits_NV[torch.from_numpy(rows_m)], temperature, shaping)
    return Distributions(shaped_mV, temperature), np.arange(len(rows_m))


def _described(
    logits: Logits,
    drawn_from: Distributions,
    rows_m: IntArray,
    places_m: IntArray,
    tokens_m: IntArray,
    requests: Sequence[Request],
) -> list[DrawnToken]:
    if all(request.options is PLAIN for request in requests):  # as in every run
        logprobs = drawn_from.logprobs(places_m, tokens_m)
        return [DrawnToken(*pair, []) for pair in zip(tokens_m.tolist(), logprobs, strict=True)]
    draws: dict[int, DrawnToken] = {}
    for as_drawn in (True, False):
        some = [index for index, request in enumerate(requests) if request.options.as_drawn == as_drawn]
        if not some:
            continue
        distributions = drawn_from if as_drawn else logits.at(1.0)
        in_them = (places_m if as_drawn else rows_m)[some]
        tokens = tokens_m[some]
        logprobs = distributions.logprobs(in_them, tokens)
        counts = [requests[index].options.likeliest for index in some]
        likeliest: list[list[tuple[int, float]]] = [[] for _ in some]
        if any(counts):
            likeliest = distributions.likeliest(in_them, max(counts))
        for index, token, logprob, count, top in zip(
            some, tokens.tolist(), logprobs, counts, likeliest, strict=True
        ):
            draws[index] = DrawnToken(token, logprob, top[:count])
    return [draws[index] for index in range(len(requests))]


def _chances(requests: Sequence[Request]) -> FloatArray:
    seeds_M = np.array([request.seed for request in requests], dtype=np.uint64)
    offsets_M = np.array([len(request.drawn) for request in requests], dtype=np.uint64)
    return uniforms(seeds_M, offsets_M)
