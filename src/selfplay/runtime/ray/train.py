"""A run on a Ray cluster: build its actors, let them work, measure, and say how it ended.

What the actors know is in the run's directory, so this process may be killed like any of them:
``selfplay train --resume RUN`` builds the actors again and they go on.
"""

import asyncio
import shutil
import signal
from pathlib import Path
from typing import Any

from ray.exceptions import RayError
from rich.console import Console

from selfplay.config.loading import dump_config, load_config
from selfplay.config.settings import Config
from selfplay.core import Arena, InputError, SelfplayError
from selfplay.runtime import assembly
from selfplay.runtime.evaluations import Evaluations, comparison_of
from selfplay.runtime.progress import RunProgress, print_ending
from selfplay.runtime.ray.cluster import connected, head_address, in_our_words
from selfplay.runtime.ray.config_actors import TO_EVALUATE, Parts, calls_of_each_client
from selfplay.runtime.ray.engine_client import EngineClient
from selfplay.runtime.ray.engine_host import AdapterRef
from selfplay.runtime.ray.live_view import NAMESPACE
from selfplay.runtime.ray.places import Places
from selfplay.runtime.ray.watchman import Watchman
from selfplay.runtime.report import rebuild
from selfplay.runtime.run_directory import RunDirectory

LOOK_EVERY = 0.25
HAND_ON_SECONDS = 10.0
"""How long collectors may take, at the end, to say what became of their last games."""


def train(config: Config, run_dir: Path, console: Console) -> None:
    """Train a new run into ``run_dir`` on a cluster and print what came of it.

    Raises:
        InputError: the configuration cannot be run here, or the directory is taken or not writable.
        SelfplayError: the run had to stop; it can be resumed.
    """
    directory = RunDirectory.create(run_dir)
    try:
        directory.write_config(dump_config(config))
        (directory.path / TO_EVALUATE / f"step-{0:06d}").mkdir(parents=True)  # the untrained model
        _run(config, directory, console)
    except InputError:
        if not (run_dir / "learner").exists():
            directory.remove_new()
        raise
    finally:
        directory.unlock()


def resume(run_dir: Path, console: Console) -> None:
    """Continue a run of a cluster where it ended or was killed.

    Raises:
        InputError: there is no such run, it is in use or finished.
        SelfplayError: the run had to stop again.
    """
    directory = RunDirectory.open(run_dir)
    directory.lock()
    try:
        config = load_config(str(directory.config_file), {})
        if directory.report_file.exists() and config.learning.steps in directory.saved_steps():
            raise InputError("--resume", f"{run_dir} is finished", f"Look at it: selfplay report {run_dir}")
        _run(config, directory, console)
    finally:
        directory.unlock()


def _run(config: Config, directory: RunDirectory, console: Console) -> None:
    resume_command = f"selfplay train --resume {directory.path}"
    with connected(config.ray, f"{NAMESPACE}{directory.path.name}"):
        try:
            asyncio.run(RayRun(config, directory, console).run())
        except InputError:
            raise
        except SelfplayError as error:
            raise SelfplayError(
                f"{error}. What was learned is saved; continue with: {resume_command}"
            ) from error
        except RayError as error:
            what = in_our_words(error, "the cluster")
            raise SelfplayError(
                f"{what}. What was learned is saved; continue with: {resume_command}"
            ) from error


class RayRun:
    """One run on the cluster that is connected."""

    def __init__(self, config: Config, directory: RunDirectory, console: Console) -> None:
        self.config = config
        self.directory = directory
        self.console = console
        self.stopping = False

    async def run(self) -> None:
        """Train to the end, or until interrupted."""
        places = await asyncio.to_thread(Places, self.config.ray)
        try:
            parts = await asyncio.to_thread(Parts, self.config, self.directory.path.absolute(), places)
        except ValueError as error:  # how Ray says that a name is taken
            places.remove()
            raise InputError(
                "--name",
                f"the cluster has actors of a run {self.directory.path.name}",
                "Wait until they have ended, or choose another name",
            ) from error
        self.watchman = Watchman(parts.by_name(), self.config.ray.patience, head_address(self.config.ray))
        try:
            await self._run(parts)
        finally:
            if not self.watchman.head_is_lost:
                parts.end()
                places.remove()

    async def _run(self, parts: Parts) -> None:
        config = self.config
        unit, size = assembly.unit_of_play(config)
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, self._interrupt, parts)
        with RunProgress(self.console, config.learning.steps, unit, size) as progress:
            progress.say("starting the actors")
            await self._guard(self._start(parts))
            evaluations = self._evaluations(parts)
            await self._guard(self._evaluate_offered(parts, evaluations, progress))
            await self._guard(self._train(parts, evaluations, progress))
        await self._guard(self._finish(parts))

    async def _start(self, parts: Parts) -> None:
        await self.watchman.ready()
        starts = (engine.start.options(max_task_retries=-1).remote() for engine in parts.engines)
        await asyncio.gather(*starts)
        if await parts.pool.current_uid.remote() is None:
            await self._fill_pool(parts)
        await parts.pool.resume.remote()

    async def _fill_pool(self, parts: Parts) -> None:
        for one in assembly.fixed_members(self.config):
            await parts.pool.add_fixed.remote(one.name, kind=one.kind, active=one.active)
        await parts.pool.add_checkpoint.remote(None, 0)

    async def _guard(self, work: Any) -> None:
        """Do ``work`` for as long as every actor is there."""
        watching = asyncio.create_task(self.watchman.watch())
        working = asyncio.ensure_future(work)
        try:
            await asyncio.wait([watching, working], return_when=asyncio.FIRST_COMPLETED)
            for task in (working, watching):
                if task.done():
                    try:
                        task.result()
                    except RayError as error:
                        raise in_our_words(error, "the run") from error
        finally:
            for task in (watching, working):
                task.cancel()
            await asyncio.gather(watching, working, return_exceptions=True)

    async def _train(self, parts: Parts, evaluations: Evaluations, progress: RunProgress) -> None:
        """Let collectors and learner work, show how far they are, and evaluate what is offered."""
        concurrency = self.config.collection.concurrency
        alongside = self.config.evaluation.games_alongside
        share = -(-concurrency // len(parts.collectors))
        collecting = [one.collect.remote(share, min(alongside, share)) for one in parts.collectors]
        learning = _task(parts.learner.train.remote(self.config.learning.steps))
        playing = [_task(reference) for reference in collecting]
        try:
            while not learning.done():
                for one in playing:
                    if one.done():
                        one.result()  # it ends after the learner unless something is wrong
                await self._show(parts, progress)
                await self._evaluate_offered(parts, evaluations, progress)
                await asyncio.wait([learning], timeout=LOOK_EVERY)
            learning.result()
            await asyncio.wait(playing, timeout=HAND_ON_SECONDS)
            await self._show(parts, progress)
            await self._evaluate_offered(parts, evaluations, progress)
        finally:
            for task in [learning, *playing]:
                task.cancel()

    async def _show(self, parts: Parts, progress: RunProgress) -> None:
        learner = await parts.learner.progress.remote()
        accounts = await parts.pool.accounts.remote()
        games = accounts["finished"] + accounts["failed"] - accounts["consumed"]
        away = ", ".join(f"{name} is away" for name in self.watchman.away)
        progress.show(learner["step"], games, learner["metrics"], away)

    async def _evaluate_offered(self, parts: Parts, evaluations: Evaluations, progress: RunProgress) -> None:
        """Evaluate the adapters that lie there; what was cut short is done again."""
        offered = sorted((self.directory.path / TO_EVALUATE).glob("step-*"))
        for place in offered:
            step = int(place.name.removeprefix("step-"))
            adapter = str(place.absolute()) if step else None
            await self._evaluate(parts, evaluations, AdapterRef(f"version {step}", step, adapter), progress)
            shutil.rmtree(place, ignore_errors=True)

    async def _evaluate(
        self, parts: Parts, evaluations: Evaluations, adapter: AdapterRef, progress: RunProgress
    ) -> None:
        settings, step = self.config.evaluation, adapter.version
        client, ratings = evaluations.arena.client, evaluations.pool
        assert isinstance(client, EngineClient)
        assert isinstance(ratings, HeldRatings)
        client.policy = adapter
        ratings.uid = f"ckpt-{step}"
        games = settings.games if step in (0, self.config.learning.steps) else settings.games_during
        summary = await evaluations.run(step, games, progress)
        if client.fatal is not None:
            raise client.fatal
        if await parts.pool.ckpt_path.remote(ratings.uid) is not None:
            await parts.pool.push_match.remote(f"step-{step}", ratings.games)
        ratings.games = []
        progress.evaluated(step, summary)

    def _evaluations(self, parts: Parts) -> Evaluations:
        config = self.config
        arena = Arena(
            EngineClient(parts.engines, patience=config.ray.patience),
            max_calls=calls_of_each_client(config),
            episode_timeout=config.collection.game_timeout,
            retries=config.collection.retries,
        )
        return Evaluations(config, arena, HeldRatings(), "default", self.directory.evaluation)

    def _interrupt(self, parts: Parts) -> None:
        if self.stopping:
            raise KeyboardInterrupt
        self.stopping = True
        parts.learner.stop.remote()
        self.console.print("finishing this update, then saving; press Ctrl-C again to stop at once")

    async def _finish(self, parts: Parts) -> None:
        games, steps = await parts.pool.accounts.remote(), await parts.buffer.counts.remote()
        learner = await parts.learner.progress.remote()
        if learner["step"] < self.config.learning.steps:
            self.console.print(
                f"stopped after update {learner['step']} of {self.config.learning.steps}; saved. "
                f"Continue with: selfplay train --resume {self.directory.path}"
            )
            return
        report = rebuild(self.directory.path)
        print_ending(
            self.console,
            comparison_of(self.directory.evaluation),
            account_lines(games, steps, learner["trained_records"]),
            adapters=[self.directory.checkpoint(learner["step"])],
            report=report,
            next_command=f"selfplay play {self.directory.path} --env {self.config.envs[0].id}",
        )


class HeldRatings:
    """The games of an evaluation, held until all of it is done: then the pool rates them, once."""

    def __init__(self) -> None:
        self.uid = ""
        self.games: list[tuple[str, str, float, str]] = []

    def current_uid(self) -> str | None:
        """Who is evaluated."""
        return self.uid

    def push_game_outcome(
        self, uid_me: str, uid_opp: str, final_reward: float, action_seq: list[str], env_id: str
    ) -> None:
        """Hold a game."""
        self.games.append((uid_me, uid_opp, final_reward, env_id))


def account_lines(games: dict[str, int], steps: dict[str, int], trained: int) -> list[str]:
    """What became of everything, in words that add up."""
    parts = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in steps.items())
    return [
        f"games: {games['started']} started = {games['finished']} finished + {games['failed']} failed"
        f" + {games['in_flight']} in flight ({games['retried']} retries, {games['replayed']} replayed,"
        f" {games['filtered']} left out)",
        f"steps: {parts}",
        f"trained on: {trained} records",
    ]


def _task(reference: Any) -> "asyncio.Task[Any]":
    async def wait() -> Any:
        return await reference

    return asyncio.get_running_loop().create_task(wait())
