"""A run's store: whenever its host is gone, another has a whole run, and of two hosts the later one wins."""

import io
import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from failing_store import FailingStore, failing_store
from game_runs import CONSTANT, FEWER_GAMES, configure, run
from kill_resume import differences, fingerprint
from sparring.cli.main import main
from sparring.collection.start_log import last_session
from sparring.commands.doctor import diagnose
from sparring.config import load_config
from sparring.core import InputError, SparringError
from sparring.core.files import Epoch
from sparring.core.manifest import sealed
from sparring.engine.paid_answers import ANSWERS_FILE
from sparring.run.progress import RunProgress
from sparring.run.run_directory import RunDirectory
from sparring.run.run_layout import files_for_store, foreign
from sparring.run.start import fetch_run
from sparring.run.uploads import Uploads

URL = "memory://bucket/runs/run"
QUIET = Console(quiet=True)


@pytest.fixture(autouse=True)
def store(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with failing_store() as there:
        yield there


def write(run: Path, name: str, content: str) -> None:
    (run / name).parent.mkdir(parents=True, exist_ok=True)
    new = run / f"{name}.new"
    new.write_text(content)
    new.replace(run / name)


def append(run: Path, name: str, content: str) -> None:
    with (run / name).open("a") as file:
        file.write(content)


def new_run(path: Path) -> Path:
    write(path, "config.toml", "[run]\n")
    write(path, "sessions.json", "[{}]")
    return path


def begun_uploads(run: Path, url: str = URL, patience: float = 30) -> Uploads:
    return Uploads.begin(run, Epoch.begin(run), url, patience)


def files(run: Path) -> dict[str, bytes]:
    """What a store keeps of a run, but for the note of what the store lacks."""
    return {name: (run / name).read_bytes() for name in files_for_store(run) if name != "sessions.json"}


def fetched(url: str = URL) -> dict[str, bytes]:
    shutil.rmtree("runs", ignore_errors=True)
    return files(fetch_run(url, QUIET))


def upload(run: Path, *updates: int, **options) -> Uploads:
    uploads = begun_uploads(run, **options)
    for update in updates:
        uploads.note(update)
    uploads.finish(QUIET)
    uploads.close()
    return uploads


GROWING = st.sampled_from(["metrics.jsonl", "state/pool/entries-000001.jsonl"])
REPLACED = st.sampled_from(["rollouts/step-000001.jsonl", "best/step-000002/state.json"])
CHANGES = st.one_of(
    st.tuples(st.sampled_from(["append", "cut"]), GROWING),
    st.tuples(st.sampled_from(["write", "delete"]), REPLACED),
)


@settings(max_examples=12)
@given(st.lists(st.lists(st.tuples(CHANGES, st.text("ab", max_size=9)), max_size=4), min_size=1, max_size=4))
def test_what_is_fetched_is_what_the_run_was_and_nothing_else_stays(tmp_path_factory, updates):
    store = FailingStore
    store.empty()
    path = new_run(tmp_path_factory.mktemp("runs") / "run")
    uploads = begun_uploads(path)
    for update, changes in enumerate(updates):
        for (kind, name), text in changes:
            if kind == "append":
                (path / name).parent.mkdir(parents=True, exist_ok=True)
                append(path, name, text)
            elif kind == "write":
                write(path, name, text)
            elif kind == "delete":
                (path / name).unlink(missing_ok=True)
            elif (path / name).exists():
                write(path, name, (path / name).read_text()[: len(text)])
        uploads.note(update)
    uploads.finish(QUIET)
    uploads.close()
    assert fetched() == files(path)
    states = [name for name in store.objects() if "/states/" in name]
    needed = b"".join(store.objects()[name] for name in states)
    assert len(states) <= 2
    for name in store.objects():
        assert "/objects/" not in name or name.rpartition("/")[2].encode() in needed
    assert [one.name for one in (path / ".store").iterdir()] == ["holder"]


def test_no_journal_is_read_before_those_that_are_told_of_a_game_later(tmp_path):
    """Collectors tell the buffer, then the tracker, then the pool; lost games may only be played twice."""
    for actor in ("Buffer", "ModelPool", "tracker"):
        write(tmp_path, f"state/{actor}/snapshot-000001.json", "")
    write(new_run(tmp_path), "tasks/step-000001-arithmetic.json", "")
    *others, pool, tracker, buffer = files_for_store(tmp_path)
    assert [name.split("/")[1] for name in (pool, tracker, buffer)] == ["ModelPool", "tracker", "Buffer"]
    assert others == ["config.toml", "sessions.json", "tasks/step-000001-arithmetic.json"]


def test_a_file_that_grows_is_sent_in_parts(tmp_path, store):
    path = new_run(tmp_path / "run")
    uploads = begun_uploads(path)
    for update in range(63):
        append(path, "metrics.jsonl", "x" * 1000)
        uploads.note(update)
        uploads.finish(QUIET)
    uploads.close()
    parts = [len(content) for name, content in store.objects().items() if content == b"x" * len(content)]
    assert fetched()["metrics.jsonl"] == b"x" * 63_000
    assert max(parts) < 63_000
    assert uploads.figures()["store/sent_bytes"] < 63_000 * 8


def test_answers_that_were_paid_for_are_stored_though_no_run_deletes_them(tmp_path, store):
    path = new_run(tmp_path / "run")
    uploads = begun_uploads(path)
    for update in (1, 2):
        append(path, ANSWERS_FILE, '{"call": 0}\n')
        uploads.note(update)
        uploads.finish(QUIET)
    uploads.close()
    assert fetched()[ANSWERS_FILE] == b'{"call": 0}\n' * 2
    assert [*foreign(path)] == [path / ANSWERS_FILE]


def two_updates(path: Path) -> list[dict[str, bytes]]:
    """Keep two updates of a run in the store, as far as it is there; return what the run was after each."""
    found, uploads = [], begun_uploads(new_run(path), patience=0.02)
    for update in (1, 2):
        append(path, "metrics.jsonl", "{}")
        write(path, f"checkpoints/step-{update:06d}/state.json", str(update))
        if update == 2:
            shutil.rmtree(path / "checkpoints/step-000001")
        found.append(files(path))
        uploads.note(update)
        uploads.finish(QUIET)
    uploads.close()
    return found


def test_whichever_write_is_the_last_another_host_has_a_whole_run(tmp_path, store):
    """A store that does not write at once has half of what was written last."""
    wanted = two_updates(tmp_path / "undisturbed" / "run")
    assert fetched() == wanted[-1]
    had = []
    for last in range(100):
        store.empty()
        store.writes_left = last
        try:
            two_updates(tmp_path / str(last) / "run")
        except InputError:
            assert not last, "the claim is the first write"
        is_whole, store.writes_left = store.writes_left >= 0, None
        try:
            had.append(wanted.index(fetched()))
        except InputError:
            had.append(-1)
        if is_whole:
            break
    assert had == sorted(had)
    assert set(had) == {-1, 0, 1}


def test_of_two_hosts_the_later_one_wins_and_the_first_stops_with_one_line(tmp_path, store):
    first = new_run(tmp_path / "run")
    old = upload(first, 1)
    old = begun_uploads(first)
    second = fetch_run(URL, QUIET)
    append(second, "metrics.jsonl", "second")
    upload(second, 2)
    append(first, "metrics.jsonl", "first")
    old.note(2)
    with pytest.raises(SparringError, match="run was resumed on another host, so this one stops"):
        old.finish(QUIET)
    with pytest.raises(SparringError, match="was resumed by another process, so this one stops"):
        old.epoch.check()
    assert fetched()["metrics.jsonl"] == b"second"
    before = store.objects()
    with pytest.raises(InputError, match=f"continued on another host. Move {first} away.*--resume {URL}"):
        begun_uploads(first)
    assert store.objects() == before


def test_a_name_that_the_store_has_is_not_begun_again(tmp_path):
    upload(new_run(tmp_path / "run"), 1)
    (tmp_path / "other" / "run").mkdir(parents=True)
    with pytest.raises(InputError, match=f"holds a run already. Choose .*--resume {URL}"):
        begun_uploads(tmp_path / "other" / "run")


def test_a_run_that_a_kill_ended_before_it_began_does_not_occupy_its_name(tmp_path):
    begun = RunDirectory.create(tmp_path / "run")
    Uploads.begin(begun.path, begun.epoch, URL).close()
    begun.unlock()
    again = RunDirectory.create(tmp_path / "run")
    Uploads.begin(again.path, again.epoch, URL).close()
    again.unlock()


def test_updates_that_the_store_lacks_are_in_the_progress_line():
    shown = io.StringIO()
    progress = RunProgress(Console(file=shown, width=200), 9, "games", 4)
    with progress:
        progress.updated(3, {"store/behind": 1.0})
        progress.updated(4, {"store/behind": 2.0})
    assert shown.getvalue().count("updates not in the store 2") == 1
    assert "store 1" not in shown.getvalue()


def test_a_store_that_is_away_is_said_once_and_has_everything_when_it_is_back(tmp_path, store):
    path, shown = new_run(tmp_path / "run"), io.StringIO()
    uploads = begun_uploads(path, patience=0.02)
    lines = [uploads.note(1)]
    store.writes_left = 0
    append(path, "metrics.jsonl", "{}")
    while lines[-1] is None:
        lines.append(uploads.note(2))
    assert "the store is gone" in lines[-1]
    assert uploads.note(3) is None
    uploads.finish(Console(file=shown, width=400))
    assert f"upload it with: sparring train --resume {path}" in shown.getvalue()
    [finding] = [one for one in diagnose(str(path))[0].findings if one.cause == "store"]
    assert "the store is gone" in finding.text
    store.writes_left = None
    while uploads.note(4) is None:
        pass
    uploads.finish(QUIET)
    assert fetched() == files(path)
    assert last_session(path).store is None
    assert last_session(Path("runs/run")).store is None


@pytest.mark.parametrize("damage", ["missing", "changed"])
@pytest.mark.parametrize(
    ("name", "is_needed"),
    [
        ("config.toml", True),
        ("state/pool/entries-000001.jsonl", True),
        ("checkpoints/step-000001/learner.safetensors", False),
    ],
)
def test_an_object_that_is_not_as_it_was_is_named(tmp_path, store, capsys, name, is_needed, damage):
    path = new_run(tmp_path / "run")
    write(path, "state/pool/entries-000001.jsonl", "an entry")
    write(path, "checkpoints/step-000001/learner.safetensors", "weights")
    upload(path, 1)
    [place] = [one for one, content in store.objects().items() if content == (path / name).read_bytes()]
    if damage == "missing":
        del store.store[place]
    else:
        store().pipe_file(place, b"other")
    said = f"{name} is missing or damaged in {URL} (objects/{place.rpartition('/')[2]})"
    if is_needed:
        with pytest.raises(InputError) as raised:
            fetched()
        assert said in str(raised.value)
        assert not Path("runs/run").exists()
    else:
        shown = io.StringIO()
        assert name not in files(fetch_run(URL, Console(file=shown, width=500)))
        assert said in shown.getvalue()


def test_an_object_that_is_missing_is_uploaded_again_by_the_host_that_has_the_run(tmp_path, store):
    path = new_run(tmp_path / "run")
    write(path, "state/pool/entries-000001.jsonl", "an entry")
    upload(path, 1)
    [place] = [one for one, content in store.objects().items() if content == b"an entry"]
    del store.store[place]
    upload(path, 2)
    assert fetched() == files(path)


@pytest.mark.parametrize(
    "name", ["../outside", "/etc/outside", "given/../../outside/state.json", "user.py", ".lock"]
)
def test_a_state_that_names_no_file_of_a_run_is_not_taken(tmp_path, store, name):
    upload(new_run(tmp_path / "run"), 1)
    for state in [one for one in store.objects() if "/states/" in one]:
        store().pipe_file(state, sealed({"format": 1, "files": {name: []}}))
    with pytest.raises(InputError, match=r"every state in .* is damaged"):
        fetched()


SECRETS = [
    "s3://key:SECRET@bucket/x",
    "s3://SECRET@bucket",
    "az://c/x?sig=SECRET",
    "s3://b/x#SECRET",
    "http://h/SECRET",
]


@pytest.mark.parametrize("address", SECRETS)
def test_an_address_with_a_key_in_it_is_refused_and_not_repeated(address, capsys):
    assert main(["train", "quickstart", "--run.store", address]) == 2
    assert main(["train", "--resume", address]) == 2
    said = capsys.readouterr()
    assert (
        said.err.count("is not the plain address of an object store. Write it like s3://bucket/prefix") == 2
    )
    assert "SECRET" not in said.err + said.out


def test_a_store_without_its_package_says_what_to_install(tmp_path):
    with pytest.raises(InputError, match=r"pip install 'sparring\[store\]'"):
        begun_uploads(new_run(tmp_path / "run"), "gs://bucket/run")


def test_a_run_continues_from_its_store_alone_as_one_that_was_never_disturbed(model, tmp_path, store):
    nothing_measured = {"evaluation__opponents": "[]", "evaluation__nash_conv": "false"}
    settings = CONSTANT | FEWER_GAMES | nothing_measured | {"run__save_every": "1"}
    run(configure(model, **settings, learning__steps="2"), tmp_path / "whole")
    path = tmp_path / "gone" / "run"
    run(configure(model, **settings, learning__steps="1", run__store="memory://bucket/runs"), path)
    shutil.rmtree(path)
    for name in [*store.store]:
        store.store[name.replace("/bucket/runs/", "/moved/")] = store.store.pop(name)
    assert main(["train", "--resume", "memory://moved/run", "--learning.steps", "2"]) == 0
    assert load_config("runs/run/config.toml", {}).run.store == "memory://moved"
    assert differences(fingerprint(tmp_path / "whole"), fingerprint(Path("runs/run"))) == []
    assert RunDirectory.open(Path("runs/run")).saved_steps()[-1] == 2
