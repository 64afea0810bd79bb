"""RecordedGames: the games of an update's records, as tree values need them.

A game has the answers of one rollout in the order of their ``place``. It is left out

- if an answer has no rollout;
- if two answers have the same place, as in trajectories of one's own without ``places``: nobody knows in
  which order they were given;
- if a role has different rewards at different answers, as with rewards on the way or discounts: then there is
  no reward of the end. An answer that is not legal may have any other reward.

Whether others play too, who may change, such as opponents from a pool, is what an answer notes as ``others``;
who acted does not tell, because a game may end before another seat's first move.

Letters: A legal answers to all prompts of the records.
"""

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from sparring.core import TrainingRecord
from sparring.learn.action_values import chance_of, game_of, key_of, key_of_prompt
from sparring.learn.batch import Batch
from sparring.learn.game_tree import HistoryGame, HistoryStep, Policy
from sparring.learn.legal_answers import FloatArray
from sparring.learn.trie import bytes_of


@dataclass(frozen=True)
class _Recorded:
    """An answer in its game. ``is_legal`` is also true where legal answers are not listed."""

    place: int
    game: str
    decision: HistoryStep
    reward: float
    is_legal: bool
    others: bool


class RecordedGames:
    """The games of records, and the legal answers to their prompts in the order of the records."""

    def __init__(self, records: Iterable[TrainingRecord]) -> None:
        played = defaultdict[str, list[_Recorded]](list)
        self._place_of: dict[tuple[bytes, bytes], int] = {}
        for record in records:
            before = b""
            for answer in record.answers:
                before += bytes_of(answer.prompt_token_ids)
                drawn = bytes_of(answer.completion_token_ids)
                asked, alternatives = key_of_prompt(record.temperature, before), answer.alternatives
                for ids in alternatives:
                    self._place_of.setdefault((asked, key_of(bytes_of(ids))), len(self._place_of))
                before += drawn
                if record.rollout_id:
                    decision = HistoryStep(record.role_id, asked, key_of(drawn), chance_of(answer))
                    is_legal = not alternatives or answer.completion_token_ids in alternatives
                    others = bool(answer.meta.get("others"))
                    played[record.rollout_id].append(
                        _Recorded(answer.place, game_of(answer), decision, answer.reward, is_legal, others)
                    )
        self.games = [game for own in played.values() if (game := _game(own)) is not None]

    def probabilities(self, batches: Iterable[Batch], adapter: str) -> FloatArray:
        """Return probability_2A: the sum of those of an adapter in batches, and how often each was there."""
        found_2A = np.zeros((2, len(self._place_of)))
        for batch in batches:
            legal = batch.answers
            logprob_A = legal.sums(batch.plans, batch.others[adapter], batch.num_answers)
            given = zip(
                legal.temperatures, legal.prompts, legal.answers, legal.normalised(logprob_A), strict=True
            )
            for temperature, prompt, ids, probability in given:
                place = self._place_of[key_of_prompt(temperature, prompt), key_of(bytes_of(ids))]
                found_2A[:, place] += probability, 1
        return found_2A

    def policy(self, found_2A: FloatArray) -> Policy:
        """Return the policy among the legal answers; without prompts that no batch has."""
        policy = defaultdict[bytes, dict[bytes, float]](dict)
        for (asked, answer), (total, number) in zip(self._place_of, found_2A.T.tolist(), strict=True):
            if number:
                policy[asked][answer] = total / number
        return {asked: _normalised(answers) for asked, answers in policy.items()}


def _normalised(answers: dict[bytes, float]) -> dict[bytes, float]:
    total = sum(answers.values())
    return {answer: one / total for answer, one in answers.items()}


def _game(answers: list[_Recorded]) -> HistoryGame | None:
    """Return a game; ``None`` if its answers have no order, or a role has no reward of the end."""
    ordered = sorted(answers, key=lambda one: one.place)
    if len({one.place for one in answers}) < len(answers):
        return None
    rewards = {one.decision.seat: one.reward for one in ordered}
    legal = {(one.decision.seat, one.reward) for one in ordered if one.is_legal}
    if len(legal) > len(dict(legal)) or not all(map(math.isfinite, rewards.values())):
        return None
    decisions = [one.decision for one in ordered]
    return HistoryGame(
        ordered[0].game, decisions, rewards | dict(legal), changing=any(one.others for one in ordered)
    )
