"""The start of a run: what a kill left is removed, and a failed attempt does not block the next one."""

import contextlib
import shutil
from pathlib import Path

import pytest

from sparring.core import InputError
from sparring.core.files import put_in_place, scratch_for, write_file
from sparring.run.run_directory import RunDirectory


class Killed(BaseException):
    pass


@pytest.fixture
def run(tmp_path) -> RunDirectory:
    directory = RunDirectory.create(tmp_path / "run")
    directory.write_config("")
    directory.unlock()
    return directory


def write_directory(place: Path) -> None:
    scratch = scratch_for(place)
    (scratch / "weights").write_text("weights")
    put_in_place(scratch, place)


def start(run: RunDirectory) -> None:
    again = RunDirectory.open(run.path)
    again.lock()
    again.unlock()


def test_the_next_start_removes_what_a_kill_left_of_unfinished_writes(run, monkeypatch):
    write_directory(run.checkpoint(2))
    before = sorted(run.path.rglob("*"))

    def killed(*_):
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", killed)
        for place in (run.checkpoint(3), run.path / "versions" / "000003"):
            with contextlib.suppress(Killed):
                write_directory(place)
        for file in (run.report_file, run.evaluation / "step-000003-kuhn_poker-random.json"):
            with contextlib.suppress(Killed):
                write_file(file, b"half of it")
    assert len(list(run.path.rglob(".*.partial"))) == 4
    start(run)
    shutil.rmtree(run.path / "versions")
    assert sorted(run.path.rglob("*")) == before


@pytest.mark.parametrize("content", [b"", b"one", b"\xff"])
def test_a_damaged_number_of_starts_is_one_line_that_names_the_file_at_every_attempt(run, content):
    (run.path / ".epoch").write_bytes(content)
    for _ in range(2):
        with pytest.raises(InputError, match=r"run/\.epoch is damaged"):
            start(run)
    (run.path / ".epoch").unlink()
    start(run)


def test_a_number_of_starts_that_is_damaged_during_a_run_is_one_line(run):
    run.lock()
    (run.path / ".epoch").write_bytes(b"")
    with pytest.raises(InputError, match=r"run/\.epoch is damaged"):
        run.check_epoch()
    run.unlock()


def test_a_start_that_cannot_write_leaves_no_lock(run):
    (run.path / "..epoch.partial").mkdir()
    for _ in range(2):
        with pytest.raises(InputError, match="cannot be written"):
            start(run)
    (run.path / "..epoch.partial").rmdir()
    start(run)
