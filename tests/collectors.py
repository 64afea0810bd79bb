"""Collectors of games without a model."""

import asyncio
import random
from collections import Counter

from sparring.collection import StepBuffer, Tracker
from sparring.collection.buffer import BufferService
from sparring.collection.buffer_state import Demand
from sparring.collection.collector import Collector, Limits, arena_of_games
from sparring.collection.games_in_flight import PlaySettings
from sparring.collection.pool import PoolService
from sparring.collection.results import EnvSpec, TakeIn
from sparring.core import MockInferenceClient
from sparring.core.adapters import Weights
from sparring.envs.game_episode import GameEpisode
from sparring.envs.templates import get_template

KUHN = EnvSpec("kuhn", "kuhn_poker", 2)


DICE = EnvSpec("dice", "LiarsDice-v0-train", 2)


def answer(messages, seed):
    """A legal move, drawn by the seed."""
    legal = ("fold", "call") if "fold" in messages[-1]["content"] else ("check", "bet")
    return legal[seed % 2]


class FlakyClient(MockInferenceClient):
    """Answers after a time that depends on the seed, and fails every so often."""

    def __init__(self, fails=lambda call: False, responses=answer):
        super().__init__(responses)
        self.fails = fails

    async def complete(self, messages, *args, **options):
        for _ in range(options["seed"] % 7):
            await asyncio.sleep(0)
        if self.fails(self.calls):
            self.calls += 1
            raise ConnectionError("the line went dead")
        return await super().complete(messages, *args, **options)


class Playing:
    """A collector with its pool and its buffer, all in this process."""

    def __init__(
        self,
        client,
        *,
        games=20,
        evaluations=0,
        mode="mirror",
        fixed=(),
        retries=2,
        env=KUHN,
        rule=None,
        concurrency=16,
        in_lockstep=True,
        filter_opponent_invalid=False,
    ):
        self.service = PoolService(mode, 4, rule=rule)
        self.service.add_checkpoint(None, 0)
        for name in fixed:
            self.service.add_fixed(name, kind="script" if name == "random" else "fixed")
        self.pool = self.service.pool
        self.ingest = BufferService(StepBuffer(100_000), in_order=in_lockstep)
        self.settings = PlaySettings(
            (env,),
            (1.0,),
            tuple((KUHN, f"fixed-{name}") for name in fixed),
            seed=5,
            temperature=1.0,
            max_tokens=4,
            games_per_step=games if in_lockstep else None,
            eval_games_per_step=evaluations if in_lockstep else None,
        )
        self.service.register(Collector.NAME, self.settings)
        episodes = {
            one.key: GameEpisode(one.env_id, one.num_players, get_template("fewshot-chat"))
            for one in (KUHN, DICE)
        }
        self.collector = Collector(
            arena_of_games(client, self.settings, episodes, Limits(retries=retries)),
            self.service,
            self.ingest,
            Tracker("test"),
            concurrency=concurrency,
            take_in=TakeIn(filter_opponent_invalid),
        )
        self.updates = 0

    @property
    def accounts(self):
        return self.service.ledger.accounts

    @property
    def scheduler(self):
        return self.service.state.queue

    async def collect(self):
        """Play the games of an update, and publish it; return what was played in the order of the jobs."""
        played = []
        await self.collector.play_all(played.append)
        self.updates += 1
        self.service.publish(Weights(self.updates, {}), self.accounts["started"])
        return sorted(played, key=lambda one: ("payoff train eval".index(one.job.meta.type), one.job.name))

    async def collect_until(self, enough):
        await self.collector.play_until(enough, 0.0, lambda played: None)

    async def steps(self):
        """Draw what is stored."""
        drawn = await self.ingest.draw(self.updates + 1, Demand(games=0, failed_share=1.0))
        return drawn.steps

    async def acts(self):
        return [(step.info["rollout_id"], step.pid, step.act, step.reward) for step in await self.steps()]


CHI_SQUARE_999 = {1: 10.83, 2: 13.82, 3: 16.27, 4: 18.47}
"""The 99.9% quantile of the chi-square distribution by degrees of freedom."""


def assert_drawn_as(pool, expected, count=6000):
    """The policy's opponents are drawn with these probabilities, by a chi-square test at 0.1%."""
    rng = random.Random(11)
    counts = Counter(pool.sample("default", rng) for _ in range(count))
    assert set(counts) <= set(expected)
    squares = [(counts[uid] - count * share) ** 2 / (count * share) for uid, share in expected.items()]
    assert sum(squares) < CHI_SQUARE_999[len(expected) - 1]
