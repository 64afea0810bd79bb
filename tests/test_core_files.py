"""Files and directories are complete or absent, wherever a kill or a full disk interrupts a write."""

import contextlib
import os
from io import FileIO
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from file_limits import files_no_longer_than
from sparring.core.files import (
    PARTIAL,
    append_at,
    finish_replacements,
    put_in_place,
    remove_partial,
    replaced_users_file,
    scratch_for,
    write_file,
    write_users_file,
)


class Killed(BaseException):
    pass


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def filled(directory: Path, text: str) -> Path:
    scratch = scratch_for(directory)
    for name in ("weights", "state"):
        (scratch / name).write_text(text)
    return scratch


@pytest.mark.parametrize("there", [False, True])
@pytest.mark.parametrize("kill", range(5))
def test_a_kill_at_any_point_leaves_the_old_or_the_new_directory(tmp_path, monkeypatch, kill, there):
    place = tmp_path / "step-000001"
    if there:
        put_in_place(filled(place, "old"), place)
    scratch = filled(place, "new")
    left = iter(range(kill))

    def killed_at(function):
        def call(*args, **kwargs):
            if next(left, None) is None:
                raise Killed
            return function(*args, **kwargs)

        return call

    with monkeypatch.context() as patch, contextlib.suppress(Killed):
        patch.setattr(Path, "rename", killed_at(Path.rename))
        patch.setattr(Path, "unlink", killed_at(Path.unlink))
        put_in_place(scratch, place)
    finish_replacements(tmp_path, r"step-\d+")
    found = {path.read_text() for path in place.iterdir()} if place.exists() else set()
    assert found in ([{"old"}, {"new"}] if there else [set(), {"new"}])
    assert not list(tmp_path.glob("*.replaced"))
    put_in_place(filled(place, "newer"), place)
    assert names(tmp_path) == ["step-000001"]
    assert {path.read_text() for path in place.iterdir()} == {"newer"}


def test_a_file_and_then_its_new_name_are_synced(tmp_path, monkeypatch):
    """Whatever it replaces: after a power failure it is the new one."""
    happened: list[object] = []
    fsync, replace = os.fsync, Path.replace

    def noted_fsync(descriptor: int) -> None:
        happened.append(os.fstat(descriptor).st_ino)
        fsync(descriptor)

    def noted_replace(path: Path, target: Path) -> Path:
        happened.append(target.name)
        return replace(path, target)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(Path, "replace", noted_replace)
    for write in (write_file, write_file, write_users_file):
        happened.clear()
        write(tmp_path / "job.json", b"running")
        assert happened == [(tmp_path / "job.json").stat().st_ino, "job.json", tmp_path.stat().st_ino]


def test_a_users_file_takes_the_place_of_a_file_only(tmp_path):
    (tmp_path / "target").write_bytes(b"old")
    (tmp_path / "link").symlink_to("target")
    write_users_file(tmp_path / "link", b"new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "target").read_bytes() == b"new"
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for name in ("pipe", "folder"):
        with pytest.raises(OSError, match="it is not a regular file"):
            write_users_file(tmp_path / name, b"new")
    assert (tmp_path / "pipe").is_fifo()
    assert {one.name for one in tmp_path.iterdir()} == {"target", "link", "pipe", "folder"}


def test_an_interrupted_write_of_a_users_file_leaves_nothing(tmp_path):
    with contextlib.suppress(KeyboardInterrupt), replaced_users_file(tmp_path / "mine.parquet") as file:
        file.write(b"half")
        raise KeyboardInterrupt
    assert names(tmp_path) == []


@given(old=st.binary(max_size=30), new=st.binary(min_size=1, max_size=30), data=st.data())
def test_a_file_is_the_old_one_when_the_disk_fills_at_any_byte(tmp_path_factory, old, new, data):
    path = tmp_path_factory.mktemp("files") / "config.toml"
    write_file(path, old)
    room = data.draw(st.integers(0, len(new) - 1))
    with files_no_longer_than(room), pytest.raises(OSError, match="File too large"):
        write_file(path, new)
    assert path.read_bytes() == old
    assert names(path.parent) == ["config.toml"]
    write_file(path, new)
    assert path.read_bytes() == new


@given(st.lists(st.tuples(st.binary(min_size=1, max_size=9), st.none() | st.integers(0, 8)), max_size=8))
def test_appended_content_is_complete_or_absent(tmp_path_factory, writes):
    path = tmp_path_factory.mktemp("files") / "journal"
    expected = b""
    for content, room in writes:
        cut = room is not None and room < len(content)
        with path.open("ab", buffering=0) as file:
            if cut:
                with files_no_longer_than(len(expected) + room), pytest.raises(OSError, match="too large"):
                    append_at(file, len(expected), content)
            else:
                append_at(file, len(expected), content)
                expected += content
        assert path.read_bytes() == expected


def test_the_remains_of_a_failed_write_are_cut_off(tmp_path):
    path = tmp_path / "journal"
    path.write_bytes(b"good" + b"torn")
    with path.open("ab", buffering=0) as file:
        append_at(file, 4, b"next")
        append_at(file, 8, b"more")
    assert path.read_bytes() == b"goodnextmore"


class FullDisk(FileIO):
    def write(self, content):
        raise OSError("no room")

    def truncate(self, size=None):
        raise OSError("no room to cut either")


def test_the_error_is_that_of_the_write_even_if_nothing_can_be_cleaned_up(tmp_path):
    with FullDisk(tmp_path / "journal", "ab") as file, pytest.raises(OSError, match=r"^no room$"):
        append_at(file, 0, b"next")
    (tmp_path / ".config.toml.partial").mkdir()
    with pytest.raises(IsADirectoryError):
        write_file(tmp_path / "config.toml", b"new")
    assert names(tmp_path) == [".config.toml.partial", "journal"]
    with pytest.raises(FileNotFoundError):
        write_file(tmp_path / "missing" / "config.toml", b"new")


def test_what_a_kill_left_of_unfinished_writes_is_deleted_and_nothing_else(tmp_path):
    kept = tmp_path / "run" / "checkpoints" / "step-000001"
    put_in_place(filled(kept, "whole"), kept)
    write_file(tmp_path / "run" / "config.toml", b"whole")
    filled(kept.with_name("step-000002"), "half")
    (tmp_path / "run" / f".metrics.jsonl{PARTIAL}").write_text("half")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / "run" / f".link{PARTIAL}").symlink_to(elsewhere)
    (tmp_path / "run" / f".thesis{PARTIAL}").write_text("of somebody else")
    remove_partial(tmp_path / "run", r"metrics\.jsonl|link")
    remove_partial(kept.parent, r"step-\d+")
    assert names(tmp_path / "run") == [f".thesis{PARTIAL}", "checkpoints", "config.toml"]
    assert names(kept.parent) == ["step-000001"]
    assert names(kept) == ["state", "weights"]
    assert elsewhere.is_dir()
