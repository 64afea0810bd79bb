"""Sampling: what is kept of a next-token distribution before a token is drawn from it."""

from collections.abc import Iterator
from dataclasses import dataclass, fields

MIN_PENALTY, MAX_PENALTY = 0.01, 100
"""The repetition penalties that anybody may ask for."""


@dataclass(frozen=True)
class Sampling:
    """How a distribution is changed before a draw, in the order and with the meaning that vLLM gives it.

    The logits of tokens in the prompt or the answer are divided by ``repetition_penalty`` where they are
    positive and multiplied by it elsewhere (Keskar et al. 2019). After the temperature, tokens below a share
    ``min_p`` of the highest probability are left out, then all but the ``top_k`` likeliest (0 keeps all),
    then all but the likeliest with a probability of ``top_p`` together. By default, nothing is changed.
    """

    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0


AS_LEARNED = Sampling()
"""The model's own distribution, of which alone it learns."""


def drawn_text(temperature: float | None, sampling: Sampling | None) -> str:
    """Return in words how answers were drawn, as ``temperature 0.6, top_p 0.95``; empty for the model's own
    distribution at temperature 1."""
    return ", ".join(f"{name} {value:g}" for name, value in _changed(temperature, sampling or AS_LEARNED))


def _changed(temperature: float | None, sampling: Sampling) -> Iterator[tuple[str, float]]:
    if temperature not in (None, 1):
        yield "temperature", temperature
    for one in fields(Sampling):
        if (value := getattr(sampling, one.name)) != one.default:
            yield one.name, value
