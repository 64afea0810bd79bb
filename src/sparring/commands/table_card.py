"""A best response in a table: learned against any agent in a game that lists its moves, and measured."""

import asyncio
import math
import os
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any

import msgspec

from sparring.commands.answered import AgentQuery, Answered, find_answered
from sparring.commands.exploit import PAID_GAMES_PER_STEP, PAID_TOKENS, Budget, cost_line
from sparring.commands.measuring import Measuring, write_won
from sparring.config.model import InferenceSettings
from sparring.core import InputError, derive_seed
from sparring.core.confidence_intervals import Interval
from sparring.engine.paid_answers import CallsSpent
from sparring.evaluation.best_response import LEAST_ROUNDS, Exploited
from sparring.evaluation.match import Play, Progress
from sparring.evaluation.table_response import ROUND, TableResponse, TableResponses
from sparring.evaluation.tournament_files import keep_same, lock_results, read_content, write_content
from sparring.evaluation.venues import GameVenue

QUESTION = "question.json"
"""What the directory is about."""
LEARNED = "learned.json"
LOOKS = 4
"""The response is measured so often while it learns, the last time when it has."""

Curve = list[tuple[int, Interval]]
"""What the response gains in all seats, after so many games."""


class TableQuestion(msgspec.Struct):
    """By what a directory knows its responses again. The budget may grow."""

    agent: str
    weights: str
    played: dict[str, Any]
    seed: int


def answer_in_table(
    query: AgentQuery, directory: Path, budget: Budget, progress: Progress
) -> tuple[Exploited, Curve]:
    """Let a response in a table learn in each seat of a game, and measure it.

    It goes on from what the directory has of the same responses.

    Raises:
        InputError: the directory holds something else, or a name means nothing.
        SparringError: no games could be finished, or the directory cannot be written.
    """
    if query.start != "run":
        problem = "is for responses that are models, and this game lists its moves"
        raise InputError("start", problem, "Leave it out, or use sparring exploit")
    answered = find_answered(query, budget.seed)
    venue = answered.venue
    assert isinstance(venue, GameVenue), "programs have no tables"
    lock = lock_results(directory, QUESTION, "directory", "card in a table")
    try:
        agent = answered.agent
        question = TableQuestion(agent.name, agent.weights(), venue.settings, budget.seed)
        problem = "the responses to another agent, game or seed"
        keep_same(directory / QUESTION, question, problem, "Name another directory")
        limit = answered.source.max_tokens
        calls = None
        if answered.apis:
            limit, calls = max(PAID_TOKENS, limit), budget.calls
            progress.say(cost_line(answered, directory, budget, limit))
        inference = InferenceSettings(max_tokens=limit)
        fixed = answered.policy.adapters
        measuring = Measuring(answered, directory, {}, fixed, inference, budget.seed, progress, calls)
        return asyncio.run(_Learning(answered, venue, measuring, directory, budget, progress).exploited())
    finally:
        os.close(lock)


class TableProgress(msgspec.Struct):
    """How far the learning is, beside the tables: what was seen when it was looked at, and the seconds."""

    curve: Curve = []
    seconds: float = 0.0


@dataclass
class _Learning:
    """Learns in every seat, and looks what the response gains, ``LOOKS`` times."""

    answered: Answered
    venue: GameVenue
    measuring: Measuring
    directory: Path
    budget: Budget
    progress: Progress

    def __post_init__(self) -> None:
        size = PAID_GAMES_PER_STEP if self.answered.apis else ROUND
        self.responses = TableResponses(len(self.venue.seats), derive_seed(self.budget.seed, "table"), size)
        self.learned = read_content(self.directory / LEARNED, TableProgress, "Delete it") or TableProgress()
        for response in self.responses.seats:
            response.load(self._file(response))

    async def exploited(self) -> tuple[Exploited, Curve]:
        """Return what the responses gain."""
        answers, learned = self.measuring.answers, self.learned
        calls, ended = answers.limit, False
        if calls is not None:
            answers.limit = calls // 2
        try:
            for look in range(1, LOOKS + 1):
                await self._learn(look)
        except CallsSpent:
            self.progress.say("the calls for training are used up: what was learned is measured")
            ended = True
        answers.limit = calls
        async with self.venue.playing(self.measuring.client(), self.responses) as play:
            found, won = await self.measuring.gains(self.budget.games, play)
        write_won(self.directory, won)
        curve = [*learned.curve, (self.responses.games, found.total)]
        exact = await self.measuring.exact()
        name = self.answered.query.name
        return Exploited(
            **vars(replace(found, failures=dict(Counter(found.failures) + self.responses.failures))),
            env_id=self.venue.name,
            model=name,
            positions=self.responses.positions,
            settled=not ended and found.rounds >= LOOKS * LEAST_ROUNDS and _has_settled(curve),
            training_games=self.responses.games,
            minutes=learned.seconds / 60,
            exact=None if exact is None else replace(exact, model=name),
            calls=None if calls is None else answers.calls,
            max_calls=calls,
        ), curve

    async def _learn(self, look: int) -> None:
        """Learn the games before a look that were not learned yet, and look."""
        started = perf_counter()
        try:
            async with self.venue.playing(self.measuring.client(measured=False), self.responses) as play:
                await self._learn_and_look(look, play)
        finally:
            self.learned.seconds += perf_counter() - started
        write_content(self.directory / LEARNED, self.learned)

    async def _learn_and_look(self, look: int, play: Play) -> None:
        responses, curve = self.responses, self.learned.curve
        seats = len(responses.seats)
        games = self.budget.training_games * look // (LOOKS * seats)
        is_new = responses.ended < games * seats
        doing = f"{self.venue.name}: responses learn in tables"
        with self.progress.doing(doing, "games", games * seats) as count:
            await responses.learn(play, self.venue.name, self.measuring.agents, games, count)
        for response in responses.seats:
            response.save(self._file(response))
        if look < LOOKS and (is_new or len(curve) < look):
            found, _ = await self.measuring.gains(max(2, self.budget.games // LOOKS), play, look=True)
            curve.append((responses.games, found.total))

    def _file(self, response: TableResponse) -> Path:
        return self.directory / f"seat-{response.seat}.json"


def _has_settled(curve: Curve) -> bool:
    """Return whether the second half of the games has found nothing beyond the noise."""
    games, now = curve[-1]
    before = [one for earlier, one in curve if 2 * earlier <= games]
    if not before:
        return False
    noise = math.hypot(now.high - now.mid, before[-1].high - before[-1].mid)
    return now.mid - before[-1].mid <= noise
