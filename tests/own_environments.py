"""Environments of one's own: two players who move at once, and one who is paid on the way."""

import asyncio
import random

from environment_sessions import closes_wait, counts, events, steps_wait
from sparring.envs.environment import Environment, Situation


class Session(Environment):
    """Counts what is open. ``fails`` is a method and an error, which it raises the first ``times`` times."""

    lists_moves = True

    def __init__(self, fails="", times=1, max_open=None):
        self.max_open, self.fails, self.times = max_open, fails, times
        self.is_open = self.has_failed = False

    def rules(self, player):
        return f"You are player {player}."

    def info(self):
        self.fail("info")
        return {}

    async def reset(self, seed):
        counts["reset after a failure"] += self.has_failed
        if not self.is_open:
            counts["opened"] += 1
            self.is_open = True
            counts["most"] = max(counts["most"], counts["opened"] - counts["closed"])
        counts["resets"] += 1
        await asyncio.sleep(0)
        self.fail("reset")
        return self.begin(seed)

    async def step(self, answers):
        for event in steps_wait:
            counts["waiting"] += 1
            await event.wait()
        self.fail("step")
        return self.go_on(answers)

    async def close(self):
        await asyncio.sleep(0)
        for event in closes_wait:
            counts["closing"] += 1
            await event.wait()
        counts["closed"] += self.is_open
        self.is_open = False
        self.fail("close")

    def fail(self, method):
        when, _, error = self.fails.partition(" ")
        if when == method and counts[f"{method} failed"] < self.times:
            counts[f"{method} failed"] += 1
            self.has_failed = True
            raise {"network": ConnectionError, "bug": KeyError}[error](f"{method} failed")


class Duel(Session):
    """Both choose a number at once, ``rounds`` times; whoever chose the higher earns a point each time."""

    def __init__(self, rounds=2, numbers=3, **session):
        super().__init__(**session)
        self.rounds, self.numbers = rounds, numbers

    def begin(self, seed):
        self.left = self.rounds
        return self.ask({})

    def go_on(self, answers):
        assert sorted(answers) == [0, 1]
        first, second = int(answers[0]), int(answers[1])
        self.left -= 1
        return self.ask({0: float(first > second), 1: float(second > first)})

    def ask(self, rewards):
        if not self.left:
            return Situation({}, rewards=rewards, ends={0: "terminated", 1: "truncated"})
        moves = [str(number) for number in range(self.numbers)]
        text = f"{self.left} rounds left. Legal moves: {', '.join(moves)}."
        return Situation({0: text, 1: text}, {0: moves, 1: moves}, rewards)


class Walk(Session):
    """One player walks to the right end, for 5 at the start, -1 a step and 10 at the end."""

    num_players = 1

    def __init__(self, length=3, invalid_reward=None, **session):
        super().__init__(**session)
        self.length, self.invalid_reward = length, invalid_reward

    def begin(self, seed):
        self.at = 0
        return self.ask(5.0)

    def go_on(self, answers):
        self.at += {"left": -1, "right": 1}[answers[0]]
        return self.ask(10.0 if self.at == self.length else -1.0)

    def ask(self, reward):
        if self.at == self.length:
            return Situation({}, rewards={0: reward}, ends={0: "terminated"})
        text = f"You are at {self.at}. Legal moves: left, right."
        return Situation({0: text}, {0: ["left", "right"]}, {0: reward})


class Free(Walk):
    """Does not list the moves."""

    lists_moves = False

    def ask(self, reward):
        now = super().ask(reward)
        return Situation(now.observations, rewards=now.rewards, ends=now.ends)


class Wages(Session):
    """Anyone acts at any time, alone or at once, and anyone may be paid for it; the seed decides."""

    num_players = 3

    def begin(self, seed):
        self.draw = random.Random(seed)
        return self.go_on({})

    def go_on(self, answers):
        paid = {player: self.draw.choice((-1.0, 0.5, 2.0)) for player in self.some(0)}
        events.append(("paid", paid))
        if self.draw.random() < 0.2:
            return Situation({}, rewards=paid, ends=dict.fromkeys(range(3), "terminated"))
        acting = self.some(1)
        events.append(("acts", dict.fromkeys(acting, 0.0)))
        return Situation(dict.fromkeys(acting, "Go."), {player: ["on"] for player in acting}, paid)

    def some(self, least):
        return sorted(self.draw.sample(range(3), self.draw.randint(least, 3)))


class Odd(Walk):
    """Answers a step with what ``said`` names, which it must not."""

    def __init__(self, said):
        super().__init__()
        self.said = said

    def go_on(self, answers):
        return {
            "nothing": None,
            "nobody": Situation({}),
            "a stranger": Situation({7: "You."}),
            "an empty text": Situation({0: " "}, {0: ["left"]}),
            "no moves": Situation({0: "Go."}),
            "the same move twice": Situation({0: "Go."}, {0: ["left", "left"]}),
            "not a number": Situation({0: "Go."}, {0: ["left"]}, {0: float("nan")}),
            "another end": Situation({}, ends={0: True}),
            "a player after the end": Situation({0: "Go."}, {0: ["left"]}, ends={0: "terminated"}),
        }[self.said]


class Slow(Walk):
    """Its calls are given up at once."""

    time_limit = 0.01
