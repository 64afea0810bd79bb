"""A service loads all entries that it has written, wherever a kill has truncated the file."""

import contextlib
import shutil
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from file_limits import nearly_full_disk
from sparring.collection.journal import Journal
from sparring.core import InputError, SparringError


class Killed(BaseException):
    """Stands for the end of the process."""


def killed(*_: object) -> None:
    raise Killed


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
ROOM = st.none() | st.integers(0, 30)
ENTRIES = st.lists(VALUES, max_size=6)


@pytest.fixture
def directory(tmp_path) -> Path:
    return tmp_path / "journal"


def written(directory: Path, entries: list, snapshot: object = None) -> Journal:
    journal = Journal(directory)
    journal.load()
    if snapshot is not None:
        journal.snapshot(snapshot)
    for entry in entries:
        journal.append(entry)
    return journal


def entries_file(directory: Path) -> Path:
    return max(directory.glob("entries-*.jsonl"))


@given(entries=st.lists(VALUES, min_size=1, max_size=5), data=st.data())
def test_a_truncated_last_write_leaves_all_entries_before_it(tmp_path_factory, entries, data):
    directory = tmp_path_factory.mktemp("run") / "journal"
    written(directory, entries)
    file = entries_file(directory)
    content = file.read_bytes()
    start = content[:-1].rfind(b"\n") + 1
    cut = data.draw(st.integers(start, len(content) - 1))
    file.write_bytes(content[:cut])
    journal = Journal(directory)
    assert journal.load() == (None, entries[:-1])
    journal.append("after the kill")
    assert Journal(directory).load() == (None, [*entries[:-1], "after the kill"])


@given(
    actions=st.lists(
        st.tuples(st.sampled_from(["append", "append", "snapshot", "restart"]), VALUES, ROOM), max_size=12
    )
)
@example(actions=[("append", "first", None), ("append", "cut short", 3), ("append", "second", None)])
def test_a_write_truncated_at_any_byte_loses_nothing_that_was_acknowledged(tmp_path_factory, actions):
    directory = tmp_path_factory.mktemp("run") / "journal"
    journal, state, entries = written(directory, []), None, []
    for action, value, room in actions:
        if action == "restart":
            journal = Journal(directory)
            assert journal.load() == (state, entries)
            continue
        with nearly_full_disk(directory, room, new=action == "snapshot"), contextlib.suppress(OSError):
            if action == "append":
                journal.append(value)
                entries.append(value)
            else:
                journal.snapshot([value])
                state, entries = [value], []
        assert journal.length == len(entries)
    assert Journal(directory).load() == (state, entries)


@given(
    actions=st.lists(
        st.tuples(
            st.sampled_from(["append", "append", "snapshot", "settle", "restart"]), st.integers(0, 400)
        ),
        max_size=12,
    )
)
def test_entries_that_come_while_a_large_snapshot_is_written_are_loaded_after_it(tmp_path_factory, actions):
    directory = tmp_path_factory.mktemp("run") / "journal"
    journal, state, entries = written(directory, []), None, []
    for action, number in actions:
        if action == "append":
            journal.append(number)
            entries.append(number)
        elif action == "snapshot":
            journal.snapshot({"number": number}, {"rows": list(range(number)), "none": []})
            state, entries = {"number": number, "rows": list(range(number)), "none": []}, []
        elif action == "settle":
            journal.settle()
            assert not journal.is_writing
        else:
            journal.settle()
            journal = Journal(directory)
            assert journal.load() == (state, entries)
    journal.settle()
    assert Journal(directory).load() == (state, entries)


@given(before=ENTRIES, after=st.lists(VALUES, min_size=1, max_size=6), cut=st.booleans())
def test_a_kill_while_a_large_snapshot_is_written_loses_no_entry(tmp_path_factory, before, after, cut):
    directory = tmp_path_factory.mktemp("run") / "journal"
    journal = written(directory, before, snapshot="first")
    kept = shutil.copytree(directory, directory.with_name("kept"))
    journal.snapshot({}, {"rows": list(range(1000))})
    for entry in after:
        journal.append(entry)
    journal.settle()
    shutil.copy(directory / "entries-000002.jsonl", kept)  # as if the snapshot were not in place yet
    if cut:
        with (kept / "entries-000002.jsonl").open("ab") as file:
            file.write(b'{"half')
    killed = Journal(kept)
    assert killed.load() == ("first", before + after)
    killed.append("next")
    assert Journal(kept).load() == ("first", [*before, *after, "next"])
    killed.snapshot("second")
    assert Journal(kept).load() == ("second", [])


def test_a_large_snapshot_that_fails_is_reported_by_the_next_one_and_loses_nothing(directory):
    journal = written(directory, ["old"], snapshot="first")
    with nearly_full_disk(directory, 100, new=True):
        journal.snapshot({}, {"rows": list(range(1000))})
        while journal.is_writing:
            pass
    journal.append("new")
    with pytest.raises(OSError, match="too large"):
        journal.snapshot("third")
    assert Journal(directory).load() == ("first", ["old", "new"])
    journal.snapshot("fourth")
    assert Journal(directory).load() == ("fourth", [])


def test_what_is_written_in_snapshots_is_never_more_than_what_is_written_in_entries(directory):
    journal = written(directory, [])
    journal.snapshot({}, {"rows": ["x" * 10] * 5000})
    journal.settle()
    size = next(directory.glob("snapshot-*.json")).stat().st_size
    appended = 0
    while not journal.is_long(10):
        journal.append("y" * 997)
        appended += 1000
    assert size <= appended < size + 1000


def test_an_entry_whose_execution_fails_is_removed(directory):
    journal = written(directory, ["before"])
    with pytest.raises(SparringError, match="not done"), journal.noted("refused"):
        raise SparringError("not done")
    with journal.noted("done"):
        pass
    assert journal.length == 2
    assert Journal(directory).load() == (None, ["before", "done"])


@given(before=ENTRIES, after=ENTRIES)
def test_a_kill_before_the_new_snapshot_is_in_place_leaves_the_old_one(tmp_path_factory, before, after):
    directory = tmp_path_factory.mktemp("run") / "journal"
    written(directory, before, snapshot="first")
    journal = Journal(directory)
    journal.load()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "replace", killed)
        with pytest.raises(Killed):
            journal.snapshot("second")
    journal = Journal(directory)
    assert journal.load() == ("first", before)
    journal.snapshot("second")
    for entry in after:
        journal.append(entry)
    assert Journal(directory).load() == ("second", after)


def test_a_kill_before_the_old_files_are_deleted_does_not_bring_them_back(directory):
    written(directory, ["old"], snapshot="first")
    kept = shutil.copytree(directory, directory.with_name("kept"))
    journal = Journal(directory)
    journal.load()
    journal.snapshot("second")
    journal.append("new")
    for path in kept.iterdir():
        shutil.copy(path, directory)
    assert Journal(directory).load() == ("second", ["new"])
    assert not list(directory.glob("*-000001.*"))


def test_snapshots_are_ordered_by_number_and_not_by_name(directory):
    written(directory, [])
    for number in (999_999, 1_000_000):
        (directory / f"snapshot-{number:06d}.json").write_text(f"[0, [], {number}]\n")
    assert Journal(directory).load() == (1_000_000, [])


@given(damage=st.sampled_from([b"", b"{", b"\xff", b'{"a":1}}', b"nan"]), place=st.integers(0, 2))
def test_a_damaged_line_that_is_not_the_last_is_an_error_that_names_the_file(tmp_path_factory, damage, place):
    directory = tmp_path_factory.mktemp("run") / "journal"
    written(directory, ["a", "b", "c"])
    file = entries_file(directory)
    lines = file.read_bytes().splitlines()
    lines[place] = damage
    file.write_bytes(b"\n".join([*lines, b""]))
    with pytest.raises(InputError, match="run directory") as caught:
        Journal(directory).load()
    assert str(file) in str(caught.value)


def test_a_damaged_snapshot_is_an_error_that_names_the_file(directory):
    written(directory, [], snapshot={"a": 1})
    file = directory / "snapshot-000001.json"
    file.write_text(file.read_text()[:-3])
    with pytest.raises(InputError, match=r"snapshot-000001\.json is damaged"):
        Journal(directory).load()


@pytest.mark.parametrize("snapshot", [None, {"a": 1}])
@pytest.mark.parametrize("number", [None, "1000"])
def test_a_journal_of_another_version_of_sparring_is_rejected_and_kept(directory, snapshot, number):
    written(directory, ["a"], snapshot)
    format_file = directory / "format"
    format_file.unlink()
    if number is not None:
        format_file.write_text(number)
    before = {path: path.read_bytes() for path in directory.iterdir()}
    with pytest.raises(InputError, match="journal was written by another version of sparring") as caught:
        Journal(directory).load()
    assert "\n" not in str(caught.value)
    assert {path: path.read_bytes() for path in directory.iterdir()} == before


@pytest.mark.parametrize("newer", [False, True], ids=["in the last file", "before an empty one"])
def test_a_failed_entry_that_a_kill_left_in_the_journal_is_removed_when_it_fails_again(directory, newer):
    written(directory, ["good", "fails"], snapshot="first")
    if newer:
        (directory / "entries-000002.jsonl").touch()
    journal = Journal(directory)
    done = []

    def do(entry: str) -> None:
        if entry == "fails":
            raise SparringError("not done")
        done.append(entry)

    with pytest.raises(SparringError, match="not done"):
        journal.replay(journal.load()[1], do)
    assert done == ["good"]
    journal.append("next")
    assert Journal(directory).load() == ("first", ["good", "next"])
