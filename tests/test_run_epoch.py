"""A run that is started again: processes left over from an earlier start can no longer write."""

import asyncio
import io
from pathlib import Path

import pytest
from rich.console import Console

from game_runs import configure
from matrices import first_of
from program_runs import configure as configure_program
from sparring.cluster.tracker import TrackerService
from sparring.collection.buffer import BufferService, FinishedGame
from sparring.collection.buffers import StepBuffer
from sparring.collection.pool import PoolService
from sparring.config import dump_config
from sparring.core import SparringError
from sparring.core.files import Epoch
from sparring.run.run_directory import RunDirectory
from sparring.run.single_process import build_trainer

OVER = "was resumed by another process, so this one stops"


def files(directory: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def services(run: Path, epoch: Epoch) -> tuple[PoolService, BufferService, TrackerService]:
    started = (
        PoolService("mirror", 2, directory=str(run / "state" / "pool"), epoch=epoch),
        BufferService(
            StepBuffer(10),
            directory=str(run / "state" / "buffer"),
            rollouts=str(run / "rollouts"),
            epoch=epoch,
        ),
        TrackerService("run", directory=str(run), epoch=epoch),
    )
    for one in started:
        one.check()
    return started


def test_services_of_an_earlier_start_cannot_write(tmp_path):
    old_epoch = Epoch.begin(tmp_path)
    pool, buffer, tracker = services(tmp_path, old_epoch)
    pool.add_checkpoint(None, 0)
    tracker.flush(1, {"loss": 1.0})
    new = services(tmp_path, Epoch.begin(tmp_path))
    with (tmp_path / "metrics.jsonl").open("ab") as metrics:
        metrics.write(b'{"step": 2, "wall')  # the new tracker is writing this line
    before = files(tmp_path)
    for write in (
        lambda: pool.add_checkpoint("v1", 1),
        lambda: pool.publish("v1", 1),
        lambda: buffer.add_games([FinishedGame(0, [])]),
        lambda: buffer.learned_batch(1),
        lambda: tracker.log({"loss": 2.0}),
        lambda: tracker.flush(2),
        lambda: services(tmp_path, old_epoch),  # as if Ray restarted them
    ):
        with pytest.raises(SparringError, match=OVER):
            write()
    with pytest.raises(SparringError, match=OVER):
        TrackerService("run", directory=str(tmp_path), epoch=old_epoch).check()
    assert files(tmp_path) == before
    assert new[0].add_checkpoint("v2", 1) == "ckpt-1"


def test_every_start_of_a_run_is_a_new_epoch_and_only_the_newest_may_write(tmp_path):
    first = RunDirectory.create(tmp_path / "run")
    first.check_epoch()
    first.unlock()  # as if another machine did not see the lock
    second = RunDirectory(tmp_path / "run")
    second.lock()
    second.check_epoch()
    with pytest.raises(SparringError, match=OVER):
        first.check_epoch()
    assert str(first.after_failure("the engine is lost")) == "the engine is lost"
    assert (tmp_path / "run").exists()
    assert "--resume" in str(second.after_failure("the engine is lost"))
    second.unlock()


class ResumedElsewhere:
    """A run in one process; while it is in the middle of something, the run is resumed elsewhere."""

    def __init__(self, config, path: Path) -> None:
        self.directory = RunDirectory.create(path)
        self.directory.write_config(dump_config(config))
        self.run = build_trainer(config, self.directory, Console(file=io.StringIO()))
        self.files: dict[Path, bytes] = {}

    def resume_elsewhere(self) -> None:
        """Other machines may not see the lock."""
        if not self.files:
            self.directory.unlock()
            RunDirectory(self.directory.path).lock()
            self.files = files(self.directory.path)

    def resume_elsewhere_during(self, work) -> None:
        """It happens while a model answers a call of this work of the source."""
        source = self.run.source
        engine = source.serving.engine
        do, complete = getattr(source, work), engine.complete
        working = False

        async def note(step, *args, **kwargs):
            nonlocal working
            working = work == "play" or step > 0
            return await do(step, *args, **kwargs)

        async def answer(*args, **kwargs):
            if working:
                self.resume_elsewhere()
            return await complete(*args, **kwargs)

        setattr(source, work, note)
        engine.complete = answer

    def resume_elsewhere_while_learning(self) -> None:
        learner = self.run.learners.learners["default"]
        update = learner.update

        def learn(records):
            self.resume_elsewhere()
            return update(records)

        learner.update = learn

    def resume_elsewhere_after_the_last_checkpoint(self) -> None:
        """A run whose caches are emptied has just saved."""
        engine = self.run.source.serving.engine
        forget = engine.forget_contexts

        def empty():
            forget()
            if self.run.saved.step == self.run.config.learning.steps:
                self.resume_elsewhere()

        engine.forget_contexts = empty

    def check(self) -> None:
        with pytest.raises(SparringError, match=OVER):
            asyncio.run(self.run.run())
        assert self.files
        assert files(self.directory.path) == self.files


@pytest.mark.parametrize("moment", first_of(["learn", "play", "evaluate", "report"], 2))
def test_a_run_in_one_process_writes_nothing_after_it_was_resumed_elsewhere(model, tmp_path, moment):
    config = configure(
        model,
        learning__steps="2",
        evaluation__every="1",
        population__sample_mode="random",
        population__add_every="1",
    )
    elsewhere = ResumedElsewhere(config, tmp_path / "run")
    if moment == "learn":
        elsewhere.resume_elsewhere_while_learning()
    elif moment == "report":
        elsewhere.resume_elsewhere_after_the_last_checkpoint()
    else:
        elsewhere.resume_elsewhere_during(moment)
    elsewhere.check()


@pytest.mark.parametrize("moment", first_of(["play", "evaluate"]))
def test_a_program_in_one_process_writes_nothing_after_it_was_resumed_elsewhere(model, tmp_path, moment):
    config = configure_program(model, tmp_path, learning__steps="2", evaluation__every="1")
    elsewhere = ResumedElsewhere(config, tmp_path / "run")
    elsewhere.resume_elsewhere_during(moment)
    elsewhere.check()
