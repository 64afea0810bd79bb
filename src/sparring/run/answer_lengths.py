"""Legal answers of games that no model can give: they have more tokens than an answer may have."""

from collections.abc import Iterable, Iterator, Mapping

from sparring.config import Config
from sparring.core import TrainingRecord
from sparring.core.errors import shown

AnswerLimits = Mapping[str, tuple[int, str]]
"""The most tokens of an answer, by the game's name, and the field that says so."""
Length = tuple[str, str, int]
"""A game's name, a legal answer in it, and the number of its tokens, the one that ends it included."""


def answer_limits(config: Config) -> AnswerLimits:
    """Return the limits of a run's games; the larger one where two have a name."""
    limits: dict[str, tuple[int, str]] = {}
    for section, games in (("envs", config.envs), ("evaluation.envs", config.evaluation.envs)):
        for place, game in enumerate(games):
            limit = config.inference.max_tokens, "inference.max_tokens"
            if game.max_tokens is not None:
                limit = game.max_tokens, f"{section}.{place}.max_tokens"
            limits[game.name] = max(limit, limits.get(game.name, limit))
    return limits


def notes_on_lengths(limits: AnswerLimits, lengths: Iterable[Length]) -> list[str]:
    """Return a note on the longest legal answer of each game in which that is too long."""
    longest: dict[str, tuple[int, str]] = {}
    for game, answer, tokens in lengths:
        longest[game] = max(longest.get(game, (0, "")), (tokens, answer))
    return [
        f"the legal answer {shown(answer)} in {game} has {tokens} tokens, the one that ends it included, "
        f"so no model can give it whole: {limits[game][1]} is {limits[game][0]}; set at least {tokens}"
        for game, (tokens, answer) in longest.items()
        if game in limits and tokens > limits[game][0]
    ]


def lengths_in(records: Iterable[TrainingRecord]) -> Iterator[Length]:
    """Yield the lengths of the legal answers that records have as texts and as tokens."""
    for record in records:
        for answer in record.answers:
            for text, ids in zip(answer.legal_answers, answer.alternatives, strict=False):
                yield answer.meta.get("env_id", ""), text, len(ids)
