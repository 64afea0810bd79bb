"""Sinks: lines that survive a kill, truncation to a checkpoint, and clear errors for missing packages."""

import json
import math
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from file_limits import files_no_longer_than
from sparring.collection import JsonlSink, TensorBoardSink, Tracker, WandbSink, read_metrics
from sparring.core import InputError
from sparring.programs.proofs.claim_files import claims_of_dataset


def test_lines_are_read_back_unchanged_and_are_on_disk_at_once(tmp_path):
    path = tmp_path / "deep" / "metrics.jsonl"
    sink = JsonlSink(path)
    written = [{"step": 1, "learner/loss": 0.1 + 0.2}, {"step": 2, "collection-a/Games": 7}]
    for metrics in written:
        sink.write(metrics)
        assert sink.offset() == path.stat().st_size
    assert [json.loads(line) for line in path.read_text().splitlines()] == written
    assert read_metrics(path) == written
    sink.close()


def test_a_value_that_is_not_finite_is_written_as_null(tmp_path):
    path = tmp_path / "metrics.jsonl"
    JsonlSink(path).write({"step": 1, "loss": math.nan})
    assert json.loads(path.read_text()) == {"step": 1, "loss": None}


def test_truncate_removes_the_lines_after_a_checkpoint_and_writing_continues_there(tmp_path):
    path = tmp_path / "metrics.jsonl"
    sink = JsonlSink(path)
    sink.write({"step": 1})
    checkpoint = sink.offset()
    sink.write({"step": 2, "lost": 1.0})
    sink.close()

    resumed = JsonlSink(path)
    resumed.truncate(checkpoint)
    assert resumed.offset() == checkpoint
    resumed.write({"step": 2})
    assert read_metrics(path) == [{"step": 1}, {"step": 2}]


@given(st.integers(min_value=0, max_value=10))
def test_a_disk_that_fills_at_any_byte_leaves_whole_lines_and_no_line_twice(tmp_path_factory, room):
    sink = JsonlSink(tmp_path_factory.mktemp("run") / "metrics.jsonl")
    sink.write({"step": 1})
    with files_no_longer_than(sink.offset() + room), pytest.raises(OSError, match="File too large"):
        sink.write({"step": 2})
    assert read_metrics(sink.path) == [{"step": 1}]
    sink.write({"step": 2})
    assert read_metrics(sink.path) == [{"step": 1}, {"step": 2}]


def test_truncate_rejects_a_file_that_lost_lines_from_before_the_checkpoint(tmp_path):
    sink = JsonlSink(tmp_path / "metrics.jsonl")
    sink.write({"step": 1})
    with pytest.raises(InputError, match=r"metrics.jsonl.*checkpoint"):
        sink.truncate(sink.offset() + 1)
    assert read_metrics(tmp_path / "metrics.jsonl") == [{"step": 1}]


@given(st.integers(min_value=0, max_value=60))
def test_a_file_cut_anywhere_keeps_its_whole_lines_and_can_be_continued(tmp_path_factory, cut):
    path = tmp_path_factory.mktemp("run") / "metrics.jsonl"
    lines = [{"step": 1, "a": 0.5}, {"step": 2, "a": 1.5}, {"step": 3, "a": 2.5}]
    content = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    path.write_bytes(content[:cut])
    whole = content[:cut].count(b"\n")
    # A last line that lacks nothing but its line break may be read: it is all there.
    assert read_metrics(path)[:whole] == lines[:whole]
    assert len(read_metrics(path)) <= whole + 1
    sink = JsonlSink(path)
    sink.write({"step": 9})
    sink.close()
    assert read_metrics(path) == [*lines[:whole], {"step": 9}]


def test_reading_no_file_gives_nothing_and_damage_in_the_middle_is_named(tmp_path):
    path = tmp_path / "metrics.jsonl"
    assert read_metrics(path) == []
    path.write_text('{"step": 1}\n{"st\n{"step": 3}\n')
    with pytest.raises(InputError, match="line 2"):
        read_metrics(path)


def test_a_file_that_cannot_be_opened_is_an_input_error(tmp_path):
    (tmp_path / "metrics.jsonl").mkdir()
    with pytest.raises(InputError, match=r"metrics\.jsonl"):
        JsonlSink(tmp_path / "metrics.jsonl")


def test_missing_wandb_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(InputError, match=r"the package wandb is not installed. .*sparring\[wandb\]"):
        WandbSink("project", "run")
    with pytest.raises(InputError, match=r"the package wandb is not installed. .*sparring\[wandb\]"):
        Tracker("run", wandb_project="project")


def test_missing_tensorboard_names_the_extra(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(InputError, match=r"sparring\[tensorboard\]"):
        TensorBoardSink(tmp_path)


@pytest.mark.parametrize("package", ["wandb", "tensorboard", "datasets"])
def test_a_package_that_is_installed_and_broken_is_one_line(monkeypatch, tmp_path, package):
    (tmp_path / package).mkdir()
    (tmp_path / package / "__init__.py").write_text("from html import no_such_name")
    for name in [name for name in sys.modules if package in name.split(".")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(tmp_path)
    uses = {
        "wandb": lambda: WandbSink("project", "run"),
        "tensorboard": lambda: TensorBoardSink(tmp_path),
        "datasets": lambda: claims_of_dataset("any"),
    }
    with pytest.raises(InputError, match=f"the package {package} cannot be imported .*no_such_name") as said:
        uses[package]()
    assert f"--force-reinstall 'sparring[{package}]'" in str(said.value)
    assert "\n" not in str(said.value)


@pytest.mark.slow  # test_finetune_command and test_ray_quickstart keep one
def test_wandb_keeps_an_offline_run(monkeypatch, tmp_path):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    sink = WandbSink("project", "run", directory=tmp_path)
    sink.write({"step": 1, "wall_time": 0.0, "learner/loss": 0.5})
    sink.close()
    assert list(tmp_path.rglob("*.wandb"))


def test_tensorboard_writes_an_event_file(tmp_path):
    pytest.importorskip("tensorboard")
    sink = TensorBoardSink(tmp_path)
    sink.write({"step": 1, "wall_time": 0.0, "learner/loss": 0.5})
    sink.close()
    assert list(tmp_path.glob("events.*"))
