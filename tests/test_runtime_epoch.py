"""A run that is started again: processes left over from an earlier start can no longer write."""

from pathlib import Path

import pytest

from selfplay.core import SelfplayError
from selfplay.replay.buffers import StepBuffer
from selfplay.runtime.epoch import Epoch
from selfplay.runtime.ray.buffer_service import BufferService, FinishedGame
from selfplay.runtime.ray.pool_service import PoolService
from selfplay.runtime.ray.tracker_service import TrackerService
from selfplay.runtime.run_directory import RunDirectory

OVER = "was resumed by another process, so this one stops"


def files(directory: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def services(run: Path, epoch: Epoch) -> tuple[PoolService, BufferService, TrackerService]:
    return (
        PoolService("mirror", 2, directory=str(run / "state" / "pool"), epoch=epoch),
        BufferService(
            StepBuffer(10),
            directory=str(run / "state" / "buffer"),
            rollouts=str(run / "rollouts"),
            epoch=epoch,
        ),
        TrackerService("run", directory=str(run), epoch=epoch),
    )


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
        lambda: buffer.clear(),
        lambda: buffer.learned_batch(1),
        lambda: tracker.log({"loss": 2.0}),
        lambda: tracker.flush(2),
        lambda: services(tmp_path, old_epoch),  # as if Ray restarted them
    ):
        with pytest.raises(SelfplayError, match=OVER):
            write()
    with pytest.raises(SelfplayError, match=OVER):
        TrackerService("run", directory=str(tmp_path), epoch=old_epoch)
    assert files(tmp_path) == before
    assert new[0].add_checkpoint("v2", 1) == "ckpt-1"


def test_every_start_of_a_run_is_a_new_epoch_and_only_the_newest_may_write(tmp_path):
    first = RunDirectory.create(tmp_path / "run")
    first.check_epoch()
    first.unlock()  # as if another machine did not see the lock
    second = RunDirectory(tmp_path / "run")
    second.lock()
    second.check_epoch()
    with pytest.raises(SelfplayError, match=OVER):
        first.check_epoch()
    assert not first.remove_new()
    assert (tmp_path / "run").exists()
    second.unlock()
