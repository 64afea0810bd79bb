"""The tracker service, killed anywhere and called again, writes the same metrics as an undisturbed one."""

import math
import pickle
import shutil
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sparring.cluster.tracker import SILENT_AFTER, TrackerService
from sparring.collection import is_wall_clock, read_metrics
from sparring.collection.tracker import Tracker
from sparring.core import InputError

NUMBERS = st.floats(allow_nan=True, allow_infinity=True) | st.integers(-3, 3)
NAMES = st.sampled_from(["a", "b/c", "collection-kuhn/Reward"])
VALUES = st.dictionaries(NAMES, st.lists(st.floats(-5, 5) | st.just(math.nan), max_size=4), max_size=3)
GAMES = st.dictionaries(st.sampled_from(["collection-kuhn", "evaluation-kuhn"]), st.integers(0, 3))
RATING = st.fixed_dictionaries({"mu": st.floats(-50, 50), "sigma": st.floats(0, 9)})
POOL = st.tuples(
    st.just("log_model_pool"),
    st.dictionaries(st.tuples(st.sampled_from("xy"), st.sampled_from("xyz")), st.integers(0, 9)),
    st.dictionaries(st.sampled_from("xyz"), RATING),
    st.dictionaries(st.just("kuhn"), st.dictionaries(st.just("1-gram"), st.floats(0, 1))),
)
PUT = st.tuples(st.just("put"), st.sampled_from(["one", "two:2"]), VALUES, GAMES)
REPEATABLE = st.one_of(
    PUT,
    POOL,
    st.tuples(st.just("log"), st.dictionaries(NAMES, NUMBERS)),
    st.just(("flush",)),
)
COUNTED = st.tuples(
    st.just("log_inference"), st.just("Engine-0"), st.just([0]), st.dictionaries(NAMES, NUMBERS)
)
FATES = st.sampled_from(["answered", "answered", "killed", "torn", "asked again", "killed in a flush"])
HISTORIES = st.lists(
    st.tuples(REPEATABLE, FATES)
    | st.tuples(COUNTED, FATES.filter(lambda fate: fate in ("answered", "killed", "torn"))),
    max_size=15,
)


def numbered(history):
    """Number batches and flushes as their senders do."""
    for number, (call, fate) in enumerate(history):
        if call[0] == "put":
            yield ("put", f"{call[1]}:{number}", *call[2:]), fate
        elif call[0] == "flush":
            yield ("flush", number), fate
        else:
            yield call, fate


def told(service, call):
    answer = getattr(service, call[0])(*call[1:])
    return measures(answer) if call[0] == "flush" else answer


def measures(line):
    """Return a line without wall-clock times; numbers that are not finite are null in the file."""
    kept = {name: value for name, value in line.items() if not is_wall_clock(name)}
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in kept.items()
    }


def opened(path: Path) -> TrackerService:
    return TrackerService("run", directory=str(path))


def lives(path: Path, history):
    """Go through a history of kills and repetitions; return the lines and every answer."""
    service = opened(path)
    answers = []
    for call, fate in numbered(history):
        if fate == "killed in a flush":
            journal, before = path / "state" / "tracker", path / "before"
            shutil.copytree(journal, before)
            told(service, call)  # a kill between the line and the snapshot leaves the line and this journal
            shutil.rmtree(journal)
            before.rename(journal)
            service = opened(path)
            answers.append(told(service, call))
            continue
        answers.append(told(service, call))
        if fate == "torn":
            state = path / "state" / "tracker"
            newest = max(state.glob("snapshot-*.json")).stem.replace("snapshot", "entries")
            with (state / f"{newest}.jsonl").open("ab") as file:
                file.write(b'["put","one:99999",{"a":[1')
            with (path / "metrics.jsonl").open("ab") as file:
                file.write(b'{"step": 99')
        if fate != "answered":
            service = opened(path)
        if fate == "asked again":
            assert told(service, call) == answers[-1]
    return [measures(line) for line in read_metrics(path / "metrics.jsonl")], answers


@given(history=HISTORIES)
@example(
    history=[(("log", {"a": 1.0}), "killed"), (("flush",), "killed in a flush"), (("flush",), "asked again")]
)
@example(history=[(("put", "one", {"a": [1.0]}, {}), "asked again"), (("flush",), "torn")])
def test_kills_and_repeated_calls_change_no_metrics(tmp_path_factory, history):
    folder = tmp_path_factory.mktemp("runs")
    expected = lives(folder / "quiet", [(call, "answered") for call, _ in history])
    assert lives(folder / "wild", history) == expected
    assert len(expected[0]) == sum(call[0] == "flush" for call, _ in history)


def test_the_service_writes_the_same_as_a_tracker_in_one_process(tmp_path):
    service, tracker = opened(tmp_path / "run"), Tracker("run")
    values, games = {"collection-kuhn/Reward": [1.0, 0.5]}, {"collection-kuhn": 2}
    service.put("Collector-0:1", values, games)
    tracker.put(values, games)
    for each in (service, tracker):
        each.log_inference("Engine-0", [0], {"tok_s": 5.0, "queued": 1})
        each.log_model_pool({("a", "b"): 2}, {"a": {"mu": 1.0, "sigma": 2.0}}, {"kuhn": {"1-gram": 0.5}})
        each.log({"accounts/steps": 4})
    expected = measures(tracker.flush(1))
    assert measures(service.flush(1)) == expected
    assert [measures(line) for line in read_metrics(tmp_path / "run" / "metrics.jsonl")] == [expected]
    ours, theirs = service.get_interface_info(), tracker.get_interface_info()
    assert {**ours, "metrics": measures(ours["metrics"])} == {**theirs, "metrics": expected}


def test_a_batch_counts_once_and_batches_are_numbered_by_sender(tmp_path):
    service = opened(tmp_path / "run")
    for batch in ("a:1", "a:1", "b:1", "a:2", "a:1"):
        service.put(batch, {"x": [1.0]}, {"g": 1})
    assert service.flush(1)["g/Games"] == 3
    service = opened(tmp_path / "run")
    service.put("a:2", {"x": [5.0]}, {"g": 1})
    assert "g/Games" not in service.flush(2)
    with pytest.raises(InputError, match="batch_id: 'a' has no number"):
        service.put("a", {}, {})


def test_flushing_a_step_again_returns_its_line_even_much_later(tmp_path):
    service = opened(tmp_path / "run")
    lines = []
    for step in (1, 2, 3):
        service.log({"loss": step / 3, "steps": step})
        lines.append(service.flush(step))
    assert [service.flush(step) for step in (1, 2, 3)] == lines
    assert [opened(tmp_path / "run").flush(step) for step in (1, 2, 3)] == lines
    assert len(read_metrics(tmp_path / "run" / "metrics.jsonl")) == 3


@pytest.mark.parametrize("killed", [False, True])
def test_lines_of_later_steps_are_deleted_and_flushed_again(tmp_path, killed):
    service = opened(tmp_path / "run")
    ratings = {"a": {"mu": 1.0, "sigma": 2.0}}
    for step in (1, 2, 3):
        if step == 2:
            service.log_model_pool({}, ratings, {})
        service.log({"loss": step / 4})
        service.flush(step)
    if killed:
        lines = (tmp_path / "run" / "metrics.jsonl").read_bytes()
        service.truncate_after(1)
        (tmp_path / "run" / "metrics.jsonl").write_bytes(lines)  # it was killed before the lines were cut off
        service = opened(tmp_path / "run")
    for _ in range(2):
        service.truncate_after(1)
        assert [line["step"] for line in read_metrics(tmp_path / "run" / "metrics.jsonl")] == [1]
    service.log_model_pool({}, ratings, {})
    line = service.flush(2, {"loss": 9.0})
    assert (line["loss"], line["model-pool/a/mu"]) == (9.0, 1.0)
    service = opened(tmp_path / "run")
    assert [line["loss"] for line in read_metrics(tmp_path / "run" / "metrics.jsonl")] == [0.25, 9.0]
    assert service.flush(1)["loss"] == 0.25


def test_existing_lines_are_kept(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "metrics.jsonl").write_text('{"step":1,"wall_time":0.0}\n')
    opened(tmp_path / "run")
    service = opened(tmp_path / "run")
    service.flush(2)
    assert [line["step"] for line in read_metrics(tmp_path / "run" / "metrics.jsonl")] == [1, 2]


def test_an_owner_gets_the_same_directory_again_and_others_get_their_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    runs = tmp_path / "runs"

    def directory(owner):
        return Path(TrackerService("demo", owner=owner).run_directory())

    assert [directory(owner) for owner in ("one", "two", None, "one", "two")] == [
        runs / name for name in ("demo", "demo-2", "demo-3", "demo", "demo-2")
    ]
    with pytest.raises(InputError, match="cannot name a directory"):
        TrackerService("a/b").check()
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be made"):
        opened(tmp_path / "file" / "run").check()


def test_the_view_has_the_metrics_and_the_load_of_every_actor_and_can_be_sent(tmp_path, monkeypatch):
    service = opened(tmp_path / "run")
    service.log({"learner/loss": 0.5})
    service.flush(1)
    service.heartbeat("Engine-0", {"tok_s": 1.0})
    service.heartbeat("Engine-0", {"tok_s": 2.0, "queued": 3})
    view = pickle.loads(pickle.dumps(service.view()))
    assert view == service.view()
    assert (view.name, view.step, view.latest["learner/loss"]) == ("run", 1, 0.5)
    assert view.actors == {"Engine-0": {"tok_s": 2.0, "queued": 3}}
    from sparring.cluster import tracker as tracker_service

    now = tracker_service.time.monotonic()
    monkeypatch.setattr(tracker_service.time, "monotonic", lambda: now + SILENT_AFTER + 12)
    service.heartbeat("Learner", {"state": "waiting"})
    actors = service.view().actors
    assert actors["Engine-0"]["silent_seconds"] >= SILENT_AFTER
    assert actors["Learner"] == {"state": "waiting"}
