"""The actors of a run on a local Ray cluster, with simulated engines and a simulated learner that only wait.

Tracker, buffer, model pool, collectors, engine clients and journals are those of a run; the engines' hosts
and the learner's trainer are the simulated ones of the tests.
"""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from time import perf_counter
from typing import Any

HERE = Path(__file__).resolve().parent
PATHS = [str(HERE), str(HERE / "peers"), str(HERE.parent / "tests")]
sys.path += [path for path in PATHS if path not in sys.path]

import ray  # noqa: E402

from ray_simulation import SimulatedHost, SimulatedLearner  # noqa: E402
from sparring.cluster.actor_classes import (  # noqa: E402
    BufferActor,
    ModelPoolActor,
    TrackerActor,
    restarting,
)
from sparring.cluster.calls import found  # noqa: E402
from sparring.cluster.collector import CollectorService  # noqa: E402
from sparring.cluster.engines.client import EngineClient  # noqa: E402
from sparring.cluster.engines.service import EngineService  # noqa: E402
from sparring.collection.buffer_state import Demand  # noqa: E402
from sparring.collection.buffers import StepBuffer  # noqa: E402
from sparring.collection.collector import Limits  # noqa: E402
from sparring.collection.games_in_flight import PlaySettings  # noqa: E402
from sparring.collection.results import EnvSpec  # noqa: E402
from sparring.compat.unstable.actors import LearningLoop  # noqa: E402
from sparring.compat.unstable.forms import named  # noqa: E402
from sparring.core import Messages, ModelResponse  # noqa: E402
from sparring.core.garbage_collection import raise_collection_thresholds  # noqa: E402
from sparring.engine.hosts import EngineRequest  # noqa: E402
from sparring.envs.game_episode import GameEpisode  # noqa: E402
from sparring.envs.generators import lend_generators_for_good  # noqa: E402
from sparring.envs.templates import get_template  # noqa: E402

MAX_TOKENS = 8
BUFFER_STEPS = 100_000

AnswerFn = Callable[[Messages, int | None], str]


class Host(SimulatedHost):
    """A simulated host that records when it had no calls: start and end times on the machine's clock."""

    def __init__(self, delay: float, answer: AnswerFn) -> None:
        super().__init__(delay, answer)
        self.idle: list[tuple[float, float]] = []
        self._free_since = perf_counter()

    async def complete(self, request: EngineRequest) -> ModelResponse:
        """Answer without a model."""
        if self.busy == 0:
            self.idle.append((self._free_since, perf_counter()))
        response = await super().complete(request)
        if self.busy == 0:
            self._free_since = perf_counter()
        return response


class Engine(EngineService):
    """An inference actor with a simulated host."""

    def __init__(self, delay: float, answer: AnswerFn, name: str, tracker: Any) -> None:
        raise_collection_thresholds()  # like the inference actor of a run
        self.simulated = Host(delay, answer)
        super().__init__(self.simulated, name, found(tracker))

    def idle_seconds(self, first: float, last: float) -> float:
        """Return the seconds between two times in which there were no calls."""
        return sum(max(0.0, min(end, last) - max(begin, first)) for begin, end in self.simulated.idle)


class Collector(CollectorService):
    """A collector as an actor."""

    def __init__(
        self,
        name: str,
        engines: Sequence[Any],
        buffer: Any,
        pool: Any,
        tracker: Any,
        settings: PlaySettings,
        template: str,
    ) -> None:
        lend_generators_for_good()  # like the collector of a run
        env = settings.environments[0]
        super().__init__(
            name,
            EngineClient([found(engine) for engine in engines]),
            found(buffer),
            found(pool),
            found(tracker),
            settings,
            {env.key: GameEpisode(env.env_id, env.num_players, get_template(template))},
            Limits(max_calls=16_384),
        )


@dataclass(frozen=True)
class Update:
    """When an update was saved, on the machine's clock, and its metrics."""

    saved_at: float
    metrics: dict[str, float]


class Learner(LearningLoop):
    """The loop of a learner that only waits. It records when each update was saved, with its figures."""

    def __init__(self, seconds: float, demand: Demand, buffer: Any, pool: Any, tracker: Any) -> None:
        self._updates: list[Update] = []
        self._seconds = seconds
        super().__init__(SimulatedLearner(seconds), found(buffer), found(pool), found(tracker), demand=demand)

    async def _update(self, iterations: int) -> None:
        await super()._update(iterations)
        saved = self.learner.saved()
        metrics = {
            "records": saved.figures["learner/records"],
            "time/learn_seconds": self._seconds,
            "overlap/dropped_steps": saved.state["turn"]["dropped"],
        }
        self._updates.append(Update(perf_counter(), metrics))

    def updates(self) -> list[Update]:
        """Return the updates that were made."""
        return self._updates


@dataclass(frozen=True)
class Play:
    """What is played, and how.

    ``games_per_update`` is ``None`` if there is no learner and games are started without bound.
    """

    env_id: str
    template: str
    answer: AnswerFn
    delay: float
    in_flight: int
    collectors: int = 1
    engines: int = 1
    games_per_update: int | None = None
    max_staleness: int = 0

    def env(self) -> EnvSpec:
        """Return the environment for the scheduler."""
        return EnvSpec(self.env_id, self.env_id, 2)

    def settings(self) -> PlaySettings:
        """Return the settings for the pool."""
        return PlaySettings(
            (self.env(),),
            (1.0,),
            (),
            seed=0,
            temperature=1.0,
            max_tokens=MAX_TOKENS,
            games_per_step=self.games_per_update,
            max_staleness=self.max_staleness,
        )


class Actors:
    """The actors of one run. ``transforms`` are the buffer's three; ``None`` means no transform."""

    runs = count()

    def __init__(self, directory: Path, play: Play, transforms: Sequence[Any] = (None, None, None)) -> None:
        run, bounded = str(directory), play.games_per_update is not None
        self.play = play
        self.number = next(self.runs)
        self.tracker = self._form(TrackerActor, "Tracker").remote("benchmark", directory=run)
        final, step, sampling = transforms
        build_buffer = partial(
            StepBuffer,
            BUFFER_STEPS,
            final_reward_transformation=final,
            step_reward_transformation=step,
            sampling_reward_transformation=sampling,
        )
        tracker = named(self.tracker)
        self.buffer = self._form(BufferActor, "Buffer").remote(
            build_buffer,
            tracker,
            max_staleness=play.max_staleness if bounded else None,
            in_order=bounded and play.max_staleness == 0,
            run=run,
        )
        self.pool = self._form(ModelPoolActor, "ModelPool").remote("mirror", 1, tracker, run=run)
        ray.get(self.pool.add_checkpoint.remote(None, 0))
        self.engines = [
            self._form(Engine, f"Engine-{number}", max_task_retries=0).remote(
                play.delay, play.answer, f"Engine-{number}", tracker
            )
            for number in range(play.engines)
        ]
        self.collectors = [
            self._form(Collector, f"Collector-{number}").remote(
                f"Collector-{number}",
                [named(engine) for engine in self.engines],
                named(self.buffer),
                named(self.pool),
                tracker,
                play.settings(),
                play.template,
            )
            for number in range(play.collectors)
        ]
        self.learner: Any = None

    def _form(self, cls: type, name: str, **options: Any) -> Any:
        return restarting(cls, name=f"{name}-of-{self.number}", **options)

    def add_learner(self, seconds: float) -> None:
        """Add a learner whose updates take this long; each waits for ``games_per_update`` games."""
        demand = Demand(games=self.play.games_per_update)
        self.learner = self._form(Learner, "Learner").remote(
            seconds, demand, named(self.buffer), named(self.pool), named(self.tracker)
        )

    def start_play(self) -> list[Any]:
        """Let the collectors play; returns what to wait for after :meth:`stop_play`."""
        share, more = divmod(self.play.in_flight, self.play.collectors)
        ray.get([one.__ray_ready__.remote() for one in [*self.collectors, *self.engines]])
        return [one.collect.remote(share + (i < more)) for i, one in enumerate(self.collectors)]

    def stop_play(self, playing: list[Any]) -> None:
        """Stop play."""
        ray.get([self.buffer.stop.remote(), self.pool.stop.remote()])
        ray.get(playing)

    def wait_for_games(self, playing: list[Any], games: int) -> None:
        """Wait until this many games are finished; raises the error of a collector that ends meanwhile."""
        while self.finished() < games:
            ended, _ = ray.wait(playing, timeout=0.2)
            ray.get(ended)

    def finished(self) -> int:
        """Return the number of games that were played to their end and rated."""
        return int(ray.get(self.pool.accounts.remote())["finished"])

    def kill(self) -> None:
        """End all processes."""
        learner = [self.learner] if self.learner is not None else []
        for actor in [*self.collectors, *learner, *self.engines, self.buffer, self.pool, self.tracker]:
            ray.kill(actor)


@contextmanager
def cluster() -> Iterator[None]:
    """Start a local cluster for as long as the body runs."""
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([*PATHS, *filter(None, given)]))
    ray.init(address="local", num_cpus=8, include_dashboard=False, log_to_driver=False, logging_level=40)
    try:
        yield
    finally:
        ray.shutdown()
