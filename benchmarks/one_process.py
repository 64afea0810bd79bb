"""The games of a run in one process, without a model that learns: what benchmarks of the play start."""

import asyncio

from sparring.collection.buffer import BufferService
from sparring.collection.buffers import StepBuffer
from sparring.collection.collector import Collector, Limits, arena_of_games
from sparring.collection.games_in_flight import PlaySettings
from sparring.collection.local_handle import LocalHandle
from sparring.collection.pool import PoolService
from sparring.collection.results import EnvSpec, Played, TakeIn
from sparring.collection.tracker import Tracker
from sparring.core import InferenceClient
from sparring.envs.game_episode import GameEpisode
from sparring.envs.templates import get_template


class Play:
    """A collector like that of a run in mirror mode, which plays so many games of one environment.

    Args:
        client: answers.
        env: the environment.
        template: the prompt template.
        games: how many games.
        in_flight: how many of them at a time.
        max_tokens: token limit of an answer.
    """

    def __init__(
        self,
        client: InferenceClient,
        env: EnvSpec,
        template: str,
        games: int,
        in_flight: int,
        max_tokens: int,
    ) -> None:
        self.tracker = Tracker("benchmark")
        self.pool = PoolService("mirror", 1, LocalHandle(self.tracker))
        self.pool.add_checkpoint(None, 0)
        settings = PlaySettings((env,), (1.0,), (), 0, 1.0, max_tokens, games_per_step=games)
        self.pool.register(Collector.NAME, settings)
        episode = GameEpisode(env.env_id, env.num_players, get_template(template))
        self.collector = Collector(
            arena_of_games(client, settings, {env.key: episode}, Limits(max_calls=16_384)),
            self.pool,
            BufferService(StepBuffer(1_000_000, self.tracker)),
            self.tracker,
            concurrency=in_flight,
            take_in=TakeIn(),
        )

    async def play(self) -> list[Played]:
        """Play the games."""
        played: list[Played] = []
        await self.collector.play_all(played.append)
        return played

    def run(self) -> list[Played]:
        """Play the games, publish, and flush the tracker as a run does after an update."""
        played = asyncio.run(self.play())
        self.pool.publish(self.pool.weights, len(played))
        self.tracker.flush(1)
        return played
