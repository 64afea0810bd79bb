"""Learners on a node that does not see the run's directory: what they save is in it, whoever is killed."""

import asyncio
import functools
import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from matrices import first_of
from sparring.cluster.command_files import CommandFiles
from sparring.cluster.distant_learner import DistantLearner, DistantRun
from sparring.cluster.learner import LearnerService
from sparring.cluster.learner_group import LearnerGroup
from sparring.cluster.transfer import CHUNK, send, take
from sparring.collection.local_handle import LocalHandle
from sparring.core import InputError, SparringError
from sparring.core.adapters import LEARNER_FILE, MANIFEST_FILE, STATE_FILE
from sparring.core.files import Epoch
from sparring.learn.algorithms import Reinforce
from sparring.learn.learner import Learner
from sparring.learn.policy import LoraSettings, PolicyModel
from sparring.run.learners import BatchOf
from tiny_models import constant, make_record, tiny_model

BOTH = ("hider", "seeker")
UPDATES = 3
WRITER = "the learner"


class KilledError(Exception):
    """A process is gone that had called, or should have answered."""


class Wire:
    """The handle of the command's files. Call number ``fatal`` is lost, before it is made or after."""

    def __init__(self, files: CommandFiles, fatal: int = 0, *, made: bool = False) -> None:
        self.files, self.fatal, self.made = LocalHandle(files), fatal, made
        self.calls: list[str] = []
        self.sent = 0

    def __getattr__(self, name: str) -> "Call":
        return Call(self, name)


class Call:
    def __init__(self, wire: Wire, name: str) -> None:
        self.wire, self.name = wire, name

    async def remote(self, *arguments: Any) -> Any:
        wire = self.wire
        wire.calls.append(self.name)
        lost = len(wire.calls) == wire.fatal
        if lost and not wire.made:
            raise KilledError
        answer = await getattr(wire.files, self.name).remote(*arguments)
        if self.name == "write":
            wire.sent += len(arguments[-1])
        if lost:
            raise KilledError
        return answer


def learners(policies: tuple[str, ...]) -> dict[str, Learner]:
    model = PolicyModel(
        str(tiny_model("llama")), LoraSettings(4, 8.0), dtype=torch.float32, policies=policies
    )
    settings = constant(1e-2, average_decay=0.5)
    return {policy: Learner(model, Reinforce(), settings, adapter=policy) for policy in policies}


def service(policies: tuple[str, ...], directory: Path, epoch: Epoch | None = None) -> LearnerService:
    group = LearnerGroup(functools.partial(learners, policies), 1, cpus=0, gpus=0, timeout_seconds=10)
    return LearnerService(group, directory, "tiny", may_start_again=policies[1:], epoch=epoch)


def files_of(run: Path, epoch: Epoch | None = None) -> CommandFiles:
    return CommandFiles(lambda files: files, run=run, epoch=epoch)


def distant(
    run: Path,
    wire: Wire | None = None,
    policies: tuple[str, ...] = BOTH,
    scratch: str = "another machine",
) -> DistantLearner:
    """A learner on another machine, which has nothing of the run."""
    place = run.parent / scratch
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    distant_run = DistantRun(wire or Wire(files_of(run)), run, place)
    return DistantLearner(functools.partial(service, policies), distant_run)


def records(step: int) -> BatchOf:
    some = [make_record([1, 2, 3], [4 + step, 5], advantage=1.0), make_record([1], [6], advantage=-1.0)]
    return BatchOf(dict.fromkeys(BOTH, some))


async def learn(
    one: Any, run: Path, begin: int = 1, answered: Callable[[int], None] = lambda step: None
) -> dict[str, str | None]:
    """Do all that a run asks of its learners; return the directories of its results."""
    for step in range(begin, UPDATES + 1):
        await one.update(step, records(step), {"at": step})
        answered(step)
        if step == 2:
            await one.start_again(step, ["seeker"])
        results = await one.results()
        if step != 2:
            continue
        await one.keep(str(run / "checkpoints" / f"step-{step:06d}"))
        best = run / "best" / f".step-{step:06d}.partial"
        best.mkdir(parents=True, exist_ok=True)
        await one.write_adapters(str(best))
        await one.tidy([path for path in results.values() if path is not None])
    return results


def contents(run: Path) -> dict[str, bytes]:
    return {path.relative_to(run).as_posix(): path.read_bytes() for path in run.rglob("*") if path.is_file()}


def learned(run: Path) -> dict[str, bytes]:
    """The contents without how many seconds the updates took, and without the hashes of what says it."""
    found = contents(run)
    for name in [name for name in found if name.endswith(STATE_FILE)]:
        state = json.loads(found[name])
        assert state.pop("seconds") >= 0
        found[name] = json.dumps(state).encode()
        del found[str(Path(name).with_name(MANIFEST_FILE))]
    return found


@pytest.fixture(scope="module")
def in_place(tmp_path_factory) -> dict[str, bytes]:
    """The files of a run whose learners see its directory."""
    run = tmp_path_factory.mktemp("in-place") / "run"
    asyncio.run(learn(service(BOTH, run), run))
    return learned(run)


def test_learners_elsewhere_leave_the_same_files_in_the_runs_directory(tmp_path, in_place):
    run = tmp_path / "run"
    run.mkdir()
    results = asyncio.run(learn(distant(run), run))
    assert learned(run) == in_place
    assert all(Path(path).is_relative_to(run) and Path(path).is_dir() for path in results.values())
    again = distant(run)
    saved = asyncio.run(again.saved())
    assert (saved.step, saved.state["at"]) == (UPDATES, UPDATES)
    assert learned(run) == in_place


@pytest.mark.parametrize("made", first_of([True, False]))
@pytest.mark.parametrize("fatal", first_of([25, *range(2, 60, 4)]))
def test_after_a_kill_during_any_call_no_update_is_lost_that_was_answered(tmp_path, in_place, fatal, made):
    """Whether the learner is killed or the files' server, whose answer the learner does not get."""
    run = tmp_path / "run"
    run.mkdir()
    wire, answered = Wire(files_of(run), fatal, made=made), [0]
    with pytest.raises(KilledError):
        asyncio.run(learn(distant(run, wire), run, answered=answered.append))
    again = distant(run)
    step = asyncio.run(again.saved()).step
    assert answered[-1] <= step <= answered[-1] + 1
    asyncio.run(learn(again, run, begin=max(1, step)))
    assert learned(run) == in_place


async def test_what_could_not_be_saved_is_saved_with_the_next_call(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    wire = Wire(files_of(run), 8)
    one = await asyncio.to_thread(distant, run, wire)
    with pytest.raises(KilledError):
        await one.update(1, records(1), {})
    assert not (run / "learner").exists()
    assert (await one.update(1, records(1), {})).step == 1
    assert (run / "learner" / "000001").is_dir()


def saved_update(directory: Path, seed: int, chunks: float) -> dict[str, bytes]:
    directory.mkdir(parents=True)
    content = random.Random(seed).randbytes(int(CHUNK * chunks))
    (directory / LEARNER_FILE).write_bytes(content)
    (directory / STATE_FILE).write_bytes(b"{}")
    return contents(directory)


@pytest.mark.parametrize("made", first_of([True, False]))
async def test_what_has_arrived_before_a_kill_is_not_sent_again(tmp_path, made):
    content = saved_update(tmp_path / "here", 0, 1.5)
    files = files_of(tmp_path / "run")
    first, second = Wire(files, 3, made=made), Wire(files)
    with pytest.raises(KilledError):
        await send(first, WRITER, "learner/000001", tmp_path / "here")
    assert not (tmp_path / "run" / "learner" / "000001").exists()
    await send(second, WRITER, "learner/000001", tmp_path / "here")
    assert contents(tmp_path / "run" / "learner" / "000001") == content
    assert first.sent + second.sent == sum(map(len, content.values()))
    third = Wire(files)
    await send(third, WRITER, "learner/000001", tmp_path / "here")
    assert third.sent == 0


async def test_the_beginning_of_another_update_that_was_lost_is_replaced(tmp_path):
    saved_update(tmp_path / "lost", 0, 1.5)
    content = saved_update(tmp_path / "made again", 1, 1.5)
    files = files_of(tmp_path / "run")
    with pytest.raises(KilledError):
        await send(Wire(files, 3), WRITER, "learner/000001", tmp_path / "lost")
    await send(Wire(files), WRITER, "learner/000001", tmp_path / "made again")
    assert contents(tmp_path / "run") == {f"learner/000001/{name}": one for name, one in content.items()}


@pytest.mark.slow  # by default, test_cluster_copies copies a model
async def test_a_copy_that_was_interrupted_or_damaged_is_completed(tmp_path):
    place = tmp_path / "run" / "given" / "teacher"
    content = saved_update(place, 0, 1.5)
    with pytest.raises(KilledError):
        await take(Wire(files_of(tmp_path / "run"), 3), "given/teacher", tmp_path / "copy")
    wire = Wire(files_of(tmp_path / "run"))
    await take(wire, "given/teacher", tmp_path / "copy")
    assert contents(tmp_path / "copy") == content
    (tmp_path / "copy" / LEARNER_FILE).write_bytes(b"else" * (CHUNK // 2))
    await take(wire, "given/teacher", tmp_path / "copy")
    assert contents(tmp_path / "copy") == content


@pytest.mark.parametrize(
    ("place", "name"),
    [
        ("learner/000001", "../../../outside/state.json"),
        ("learner/../../outside", "state.json"),
        ("/outside", "state.json"),
        (".", "config.toml"),
        ("state/pool", "format"),
        ("learner/000001", "run.py"),
        ("given/teacher", "adapter_model.safetensors"),
    ],
)
async def test_learners_write_and_delete_nothing_but_what_they_save(tmp_path, place, name):
    files = files_of(tmp_path / "run")
    with pytest.raises(SparringError, match=r"^learners have no file "):
        files.write(WRITER, place, name, 0, b"{}")
    with pytest.raises(SparringError, match=r"^learners have no file "):
        await files.put(WRITER, place, {name: (2, "")})
    assert list(tmp_path.iterdir()) == []


async def test_a_learner_of_an_earlier_start_of_the_run_writes_nothing(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    old = await asyncio.to_thread(distant, run, Wire(files_of(run, Epoch.begin(run))))
    Epoch.begin(run)
    before = contents(run)
    for write in (old.update(1, records(1), {}), old.keep(str(run / "checkpoints" / "step-000001"))):
        with pytest.raises(SparringError, match="was resumed by another process"):
            await write
    assert contents(run) == before
    with pytest.raises(SparringError, match="was resumed by another process"):
        await asyncio.to_thread(distant, run, Wire(files_of(run, Epoch(run / ".epoch", 1))))


async def test_a_learner_that_was_only_cut_off_changes_nothing_once_another_has_its_place(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    files = files_of(run)
    old = await asyncio.to_thread(distant, run, Wire(files))
    await old.update(1, records(1), {})
    new = await asyncio.to_thread(distant, run, Wire(files), scratch="a third machine")
    await new.update(2, records(2), {})
    before = contents(run)
    for write in (old.update(2, records(2), {}), old.keep(str(run / "checkpoints" / "step-000001"))):
        with pytest.raises(SparringError, match=r"^the learner was given up and replaced"):
            await write
    assert contents(run) == before
    await new.update(3, records(3), {})
    assert (run / "learner" / "000003").is_dir()


async def test_a_file_of_others_in_what_is_saved_does_not_matter_and_stays(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    one = await asyncio.to_thread(distant, run)
    await one.update(1, records(1), {})
    (run / "learner" / "000001" / "notes.txt").write_text("mine")
    again = await asyncio.to_thread(distant, run)
    assert (await again.update(2, records(2), {})).step == 2
    assert (run / "learner" / "000001" / "notes.txt").read_text() == "mine"


def test_damaged_updates_are_set_aside_and_errors_name_the_runs_files(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    one = distant(run)
    for step in (1, 2, 3):
        asyncio.run(one.update(step, records(step), {}))
    with pytest.raises(InputError, match=f"^program: {run}/learner/000003 has the policies hider, seeker"):
        distant(run, policies=("hider",))
    (run / "learner" / "000003" / "state.json").write_text("{")
    saved = asyncio.run(distant(run).saved())
    assert saved.step == 2
    assert saved.notice == f"{run}/learner/000003/state.json is missing or damaged; continuing from 000002"
    assert (run / "learner" / ".000003.damaged").is_dir()
