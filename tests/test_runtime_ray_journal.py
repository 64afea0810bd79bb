"""What a service has written down is what it finds again, wherever a kill has cut it short."""

import json
import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from selfplay.core import InputError
from selfplay.runtime.ray.journal import Journal

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
ENTRIES = st.lists(VALUES, max_size=6)
ACTIONS = st.lists(st.tuples(st.sampled_from(["append", "snapshot", "restart"]), VALUES), max_size=12)


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


def test_a_new_journal_is_empty(directory):
    assert Journal(directory).load() == (None, [])


@settings(max_examples=60, deadline=None)
@given(actions=ACTIONS)
def test_what_was_noted_is_found_again(tmp_path_factory, actions):
    directory = tmp_path_factory.mktemp("run") / "journal"
    journal, state, entries = written(directory, []), None, []
    for action, value in actions:
        if action == "append":
            journal.append(value)
            entries.append(value)
        elif action == "snapshot":
            journal.snapshot([value])
            state, entries = [value], []
        else:
            journal = Journal(directory)
            assert journal.load() == (state, entries)
        assert journal.length == len(entries)
    assert Journal(directory).load() == (state, entries)


@settings(max_examples=60, deadline=None)
@given(entries=st.lists(VALUES, min_size=1, max_size=5), data=st.data())
def test_wherever_the_last_write_is_cut_the_entries_before_it_are_there(tmp_path_factory, entries, data):
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


@settings(max_examples=30, deadline=None)
@given(before=ENTRIES, after=ENTRIES)
def test_a_kill_before_the_new_snapshot_is_in_its_place_leaves_the_old_one(tmp_path_factory, before, after):
    directory = tmp_path_factory.mktemp("run") / "journal"
    written(directory, before, snapshot="first")
    (directory / "snapshot-000002.partial").write_bytes(b'"seco')
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


def test_numbers_of_many_digits_are_in_order(directory):
    directory.mkdir()
    for number in (999_999, 1_000_000):
        (directory / f"snapshot-{number:06d}.json").write_text(str(number))
    assert Journal(directory).load() == (1_000_000, [])


@settings(max_examples=40, deadline=None)
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
    file.write_text(json.dumps({"a": 1})[:-1])
    with pytest.raises(InputError, match=r"snapshot-000001\.json is damaged"):
        Journal(directory).load()
