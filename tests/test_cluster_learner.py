"""The learners of a run on a cluster: every update is saved, and restored after a kill; no Ray."""

import asyncio
import functools
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from file_limits import files_no_longer_than
from matrices import first_of
from sparring.cluster.actor_classes import Hosted
from sparring.cluster.learner import KEPT, LearnerService
from sparring.cluster.learner_group import LearnerGroup, LearnerState
from sparring.cluster.remote import RemoteLearners
from sparring.collection.local_handle import LocalHandle
from sparring.core import InputError, SparringError
from sparring.core.adapters import ADAPTER_FILE, MANIFEST_FILE
from sparring.core.files import Epoch
from sparring.core.manifest import seal
from sparring.core.own_modules import OWN_MODULE
from sparring.learn.adapter_evolution import child_of
from sparring.learn.algorithms import Reinforce
from sparring.learn.checkpoints import save_adapter
from sparring.learn.learner import Learner
from sparring.learn.policy import LoraSettings, PolicyModel
from sparring.population.evolution import Child
from sparring.run.adapter_versions import KEPT_VERSIONS
from sparring.run.given_adapters import load_adapter_of
from sparring.run.learners import BatchOf, Saved
from tiny_models import constant, make_record, tiny_model

BOTH = ("hider", "seeker")


def learners(
    policies: tuple[str, ...], average: float, start: Path | None, algorithm: type[Reinforce]
) -> dict[str, Learner]:
    model = PolicyModel(
        str(tiny_model("llama")), LoraSettings(4, 8.0), dtype=torch.float32, policies=policies
    )
    found = {}
    for policy in policies:
        if start is not None:
            load_adapter_of(start, model, policy)
        settings = constant(1e-2, average_decay=average)
        found[policy] = Learner(model, algorithm(), settings, adapter=policy)
    return found


def learner(
    directory,
    policies: tuple[str, ...] = BOTH,
    average: float = 0.5,
    start: Path | None = None,
    algorithm: type[Reinforce] = Reinforce,
    **options,
) -> LearnerService:
    build = functools.partial(learners, policies, average, start, algorithm)
    group = LearnerGroup(build, 1, cpus=0, gpus=0, timeout_seconds=10)
    return LearnerService(group, directory, "tiny", **options)


def only(directory, average: float = 0.5, **options) -> LearnerService:
    """The learner of a run of games."""
    return learner(directory, ("default",), average, **options)


def records(step: int, *policies: str) -> BatchOf:
    some = [make_record([1, 2, 3], [4 + step, 5], advantage=1.0), make_record([1], [6], advantage=-1.0)]
    return BatchOf(dict.fromkeys(policies or BOTH, some))


async def update_only(one: LearnerService) -> Saved:
    step = one.saved().step + 1
    return await one.update(step, records(step, "default"), {"at": step})


def path_of(one: LearnerService) -> str | None:
    return one.saved().adapters["default"]


def files(directory: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def same(one: Saved, other: Saved) -> bool:
    """Return whether two are equal but for the state, which a loaded one has from its file."""
    return replace(one, state={}) == replace(other, state={}) and other.state.items() <= one.state.items()


def weights(one: LearnerService, policy: str = "default") -> dict[str, torch.Tensor]:
    return one.learners[policy].tensors()


async def test_a_learner_that_is_killed_after_any_step_learns_the_same(tmp_path):
    whole = learner(tmp_path / "whole")
    for step in range(1, 5):
        await whole.update(step, records(step), {"at": step})
    for step in range(1, 5):
        cut = learner(tmp_path / "cut")
        assert cut.saved().step == step - 1
        await cut.update(step, records(step), {"at": step})
    again = learner(tmp_path / "cut")
    saved = again.saved()
    assert (saved.step, saved.state["at"], saved.trained_records) == (4, 4, 16)
    assert saved.figures == whole.saved().figures
    assert saved.versions == {"hider": 4, "seeker": 4}
    for policy in BOTH:
        left, right = weights(whole, policy), weights(again, policy)
        assert all(torch.equal(left[name], right[name]) for name in left)
    assert len(list((tmp_path / "cut" / "learner").iterdir())) == KEPT


async def test_a_step_requested_twice_is_made_once(tmp_path):
    one = learner(tmp_path)
    first, repeated = await asyncio.gather(*(one.update(1, records(1), {}) for _ in range(2)))
    assert first == repeated == await one.update(1, records(2), {"other": True})
    assert first.versions == {"hider": 1, "seeker": 1}
    with pytest.raises(SparringError, match="the saved state of update 2 is lost; a resume continues from 1"):
        await one.update(3, records(3), {})


class OutOfRange(Reinforce):
    """A loss of a user's own file that fails."""

    __module__ = f"{OWN_MODULE}losses"

    def token_loss(self, logprobs_S, old_S, advantage_S, tokens):
        return logprobs_S.sum(dim=7)


async def test_the_error_of_a_loss_of_ones_own_names_its_policy(tmp_path):
    one = learner(tmp_path, algorithm=OutOfRange)
    with pytest.raises(SparringError, match=r"^the algorithm of hider failed: IndexError"):
        await one.update(1, records(1), {})


async def test_a_policy_without_records_keeps_its_version(tmp_path):
    one = learner(tmp_path)
    await one.update(1, records(1), {})
    saved = await one.update(2, records(2, "seeker"), {})
    assert saved.versions == {"hider": 1, "seeker": 2}
    assert {name.split("/")[1] for name in saved.figures if name.startswith("learner/")} == {"seeker"}
    assert saved.adapters["hider"].endswith("versions/hider/000001")
    assert same(learner(tmp_path).saved(), saved)


@pytest.mark.parametrize("average", [0.0, 0.5])
async def test_the_results_are_the_averages_if_there_are_any(tmp_path, average):
    one = learner(tmp_path, average=average)
    assert await one.results() == {"hider": None, "seeker": None}
    await one.update(1, records(1), {})
    kind = "averages" if average else "versions"
    for policy, path in (await one.results()).items():
        assert path == str(tmp_path / kind / policy / "000001")
        said = json.loads((tmp_path / kind / policy / "000001" / "delivery.json").read_text())
        assert said["version"] == 1
        assert said["canary"] < 0


async def test_the_result_of_a_lost_step_is_not_that_of_the_new_one(tmp_path):
    one = learner(tmp_path)
    for step in (1, 2):
        await one.update(step, records(step), {})
    lost = {policy: load_file(f"{path}/{ADAPTER_FILE}") for policy, path in (await one.results()).items()}
    (tmp_path / "learner" / "000002" / "state.json").write_text("{")
    again = learner(tmp_path)
    await again.update(2, records(5), {})
    for policy, path in (await again.results()).items():
        new = load_file(f"{path}/{ADAPTER_FILE}")
        assert any((new[name] != lost[policy][name]).any() for name in new)


async def test_the_only_policy_of_a_run_of_games_has_its_files_at_the_top(tmp_path):
    one = learner(tmp_path, ("default",))
    await one.update(1, records(1, "default"), {})
    assert (tmp_path / "learner" / "000001" / "learner.safetensors").exists()
    assert same(only(tmp_path).saved(), one.saved())


async def test_a_lost_adapter_is_written_again(tmp_path):
    one = learner(tmp_path)
    saved = await one.update(1, records(1), {})
    shutil.rmtree(tmp_path / "versions")
    assert same(learner(tmp_path).saved(), saved)
    assert (tmp_path / "versions" / "hider" / "000001" / "delivery.json").exists()


async def test_a_step_without_the_files_of_a_policy_is_damaged(tmp_path):
    one = learner(tmp_path)
    for step in (1, 2):
        await one.update(step, records(step), {})
    lost = tmp_path / "learner" / "000002" / "hider"
    shutil.rmtree(lost)
    again = learner(tmp_path).saved()
    said = f"{lost / MANIFEST_FILE} is missing or damaged; continuing from 000001"
    assert (again.step, again.notice) == (1, said)


async def test_a_program_whose_policies_have_changed_is_rejected_and_its_steps_are_kept(tmp_path):
    await learner(tmp_path).update(1, records(1), {})
    for other in (("hider",), ("hider", "finder")):
        with pytest.raises(InputError, match="000001 has the policies hider, seeker, the program has hider"):
            learner(tmp_path, other)
    assert [path.name for path in (tmp_path / "learner").iterdir()] == ["000001"]


async def test_a_programs_own_notes_are_not_sent_to_the_learner_but_what_is_measured_is(tmp_path):
    class Recording(LearnerService):
        def __init__(self):
            self.batches = []

        async def update(self, step, batch, state):
            self.batches.append((batch, state))
            return Saved(step, {}, {})

    async def state():
        return {"at": 1}

    service, record = Recording(), make_record([1], [2])
    noted = replace(record, meta={"seen": object(), "finish_reason": "length"})
    remote = RemoteLearners(LocalHandle(Hosted(lambda: service)), lambda step: tmp_path)
    await remote.update(1, BatchOf({"hider": [noted]}), state)
    kept = replace(record, meta={"finish_reason": "length"})
    assert service.batches == [(BatchOf({"hider": [kept]}), {"at": 1})]


# A run of games has one policy


async def test_a_partially_saved_update_does_not_count(tmp_path):
    first = only(tmp_path)
    await update_only(first)
    adapter = tmp_path / "versions" / "000001" / "adapter_model.safetensors"
    with files_no_longer_than(adapter.stat().st_size), pytest.raises((OSError, SafetensorError)):
        await update_only(first)  # the new adapter fits on the disk, but the optimizer's state does not
    assert (tmp_path / "versions" / "000002").exists()
    lost = "update 2 was not saved; a resume continues from 1"
    for step in (2, 3):
        with pytest.raises(SparringError, match=f"{lost}|the saved state of update 2 is lost"):
            await first.update(step, records(step, "default"), {})
    with pytest.raises(SparringError, match=lost):
        await first.keep(str(tmp_path / "checkpoint"))
    with pytest.raises(SparringError, match=lost):
        first.saved()
    again = only(tmp_path)
    assert again.saved().step == 1
    assert path_of(again) == str((tmp_path / "versions" / "000001").absolute())


async def test_the_untrained_policy_has_no_adapter_unless_it_starts_with_one(tmp_path):
    first = only(tmp_path / "first")
    assert path_of(first) is None
    await update_only(first)
    second = only(tmp_path / "second", start=Path(path_of(first)))
    begun_with = load_file(f"{path_of(second)}/adapter_model.safetensors")
    given = load_file(f"{path_of(first)}/adapter_model.safetensors")
    assert all(torch.equal(begun_with[name], given[name]) for name in given)
    begun = (await second.results())["default"]
    assert begun == str((tmp_path / "second" / "averages" / "000000").absolute())
    average = load_file(f"{begun}/adapter_model.safetensors")
    assert all(torch.equal(average[name], given[name]) for name in given)
    again = only(tmp_path / "second", start=Path(path_of(first)))
    assert path_of(again) == path_of(second)


@pytest.mark.parametrize(
    ("lora", "complaint"),
    [
        (LoraSettings(4, 16.0), "its alpha is 16, the run's 8"),
        (LoraSettings(2, 8.0), "its rank is 2, the run's 4"),
        (LoraSettings(4, 8.0, ["q_proj"]), "its target modules are"),
    ],
)
async def test_an_initial_adapter_of_another_shape_is_rejected(tmp_path, lora, complaint):
    save_adapter(tmp_path / "other", PolicyModel(str(tiny_model("llama")), lora), "tiny")
    with pytest.raises(InputError, match=complaint):
        only(tmp_path / "run", start=tmp_path / "other")
    assert not (tmp_path / "run" / "versions").exists()


async def test_versions_that_are_not_in_use_are_deleted(tmp_path):
    one = only(tmp_path)
    for _ in range(KEPT_VERSIONS + 4):
        await update_only(one)
        await one.tidy([str((tmp_path / "versions" / "000002").absolute())])
    kept = sorted(int(path.name) for path in (tmp_path / "versions").iterdir())
    assert kept == [2, *range(5, KEPT_VERSIONS + 5)]
    assert len(list((tmp_path / "learner").iterdir())) == 2


async def test_a_checkpoint_holds_what_users_take_and_is_written_once(tmp_path):
    one = only(tmp_path)
    await update_only(one)
    place = tmp_path / "checkpoints" / "step-000001"
    await one.keep(str(place))
    result = load_file(f"{(await one.results())['default']}/{ADAPTER_FILE}")
    kept = load_file(place / ADAPTER_FILE)
    assert all(torch.equal(kept[name], result[name]) for name in result)
    assert json.loads((place / "state.json").read_text())["at"] == 1
    before = files(place)
    await one.keep(str(place))
    assert files(place) == before


@pytest.mark.parametrize("file", first_of(["state.json", "learner.safetensors"]))
async def test_a_damaged_newest_update_is_repeated_from_the_previous_one(tmp_path, file):
    whole = only(tmp_path)
    await update_only(whole)
    await update_only(whole)
    damaged = tmp_path / "learner" / "000002" / file
    damaged.write_bytes(damaged.read_bytes()[:-1])
    again = only(tmp_path)
    assert again.saved().step == 1
    assert again.saved().notice == f"{damaged} is missing or damaged; continuing from 000001"
    await update_only(again)
    left, right = weights(whole), weights(again)
    assert all(torch.equal(left[name], right[name]) for name in left)
    assert (only(tmp_path).saved().step, only(tmp_path).saved().notice) == (2, None)


async def test_only_the_most_recently_found_damaged_update_is_kept(tmp_path):
    for version in (1, 2):
        one = only(tmp_path)
        await update_only(one)
        await update_only(one)
        (tmp_path / "learner" / f"{version + 1:06d}" / "state.json").write_text("{")
        assert only(tmp_path).saved().step == version
    assert sorted(path.name for path in (tmp_path / "learner").iterdir()) == [".000003.damaged", "000002"]


async def test_an_update_of_another_model_is_rejected_and_kept(tmp_path):
    one = only(tmp_path)
    await update_only(one)
    await update_only(one)
    file = tmp_path / "learner" / "000002" / "learner.safetensors"
    save_file({name: torch.zeros(3) for name in load_file(file)}, file)
    seal(file.parent)
    with pytest.raises(InputError, match="its weights do not fit"):
        only(tmp_path)
    assert sorted(path.name for path in (tmp_path / "learner").iterdir()) == ["000001", "000002"]


@pytest.mark.parametrize("number", [3, 1000])
async def test_an_update_of_another_version_of_sparring_is_rejected_and_kept(tmp_path, number):
    await update_only(only(tmp_path))
    file = tmp_path / "learner" / "000001" / "state.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"format": number}))
    seal(file.parent)
    before = files(tmp_path)
    with pytest.raises(InputError, match="learner/000001 was saved by another version of sparring"):
        only(tmp_path)
    assert files(tmp_path) == before


async def test_a_learner_of_an_earlier_start_of_the_run_writes_nothing_at_all(tmp_path):
    old = only(tmp_path, epoch=Epoch.begin(tmp_path))
    await update_only(old)
    new = only(tmp_path, epoch=Epoch.begin(tmp_path))
    await update_only(new)
    before = files(tmp_path)
    for write in (
        lambda: update_only(old),
        lambda: old.tidy([]),
        lambda: old.results(),
        lambda: old.keep(str(tmp_path / "checkpoints" / "step-000001")),
    ):
        with pytest.raises(SparringError, match="was resumed by another process"):
            await write()
    with pytest.raises(SparringError, match="was resumed by another process"):
        only(tmp_path, epoch=old.directory.epoch)
    written = {path: content for path, content in files(tmp_path).items() if ".partial" not in str(path)}
    assert written == before
    await update_only(new)
    assert only(tmp_path).saved().step == 3


async def test_if_every_update_is_damaged_the_error_names_the_newest(tmp_path):
    one = only(tmp_path)
    await update_only(one)
    await update_only(one)
    for version in ("000001", "000002"):
        (tmp_path / "learner" / version / "state.json").write_text("{")
    with pytest.raises(InputError, match=r"000002/state.json is missing or damaged"):
        only(tmp_path)


async def test_a_saved_update_survives_a_power_failure(tmp_path, monkeypatch):
    """Everything is on the disk before the directory gets the name by which it counts."""
    one = only(tmp_path)
    synced, named = set(), []
    fsync, rename = os.fsync, Path.rename

    def noted_fsync(descriptor: int) -> None:
        synced.add(os.stat(descriptor).st_ino)
        fsync(descriptor)

    def noted_rename(path: Path, target: Path) -> Path:
        if target.parent.name == "learner":
            assert {file.stat().st_ino for file in [path, *path.iterdir()]} <= synced
            named.append(target.name)
        return rename(path, target)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(Path, "rename", noted_rename)
    await update_only(one)
    assert named == ["000001"]
    assert (tmp_path / "learner").stat().st_ino in synced


async def begun_again(one: LearnerService, step: int) -> Saved:
    """Make an update, after which ``seeker`` starts again."""
    await one.update(step, records(step), {"at": step})
    return await one.start_again(step, ["seeker"])


@pytest.mark.parametrize("average", first_of([0.0, 0.5]))
async def test_a_policy_that_starts_again_plays_as_it_did_at_the_beginning(tmp_path, average):
    one = learner(tmp_path, average=average, may_start_again=["seeker"])
    start = weights(one, "seeker")
    saved = await begun_again(one, 1)
    assert saved.versions == {"hider": 1, "seeker": 1}
    assert saved.adapters["hider"] is not None
    assert saved.adapters["seeker"] is None, "it is the base model"
    assert (await one.results())["seeker"] is None
    assert weights(one, "seeker").keys() == start.keys(), "the optimizer is empty"
    assert all(torch.equal(weights(one, "seeker")[name], start[name]) for name in start)
    assert (await one.update(2, records(2), {})).adapters["seeker"].endswith("seeker/000002")


@pytest.mark.slow  # the tests below start policies again, and test_cluster_seats starts with an adapter
async def test_a_policy_of_start_starts_again_with_that_adapter(tmp_path):
    await update_only(earlier := only(tmp_path / "earlier", average=0.0))
    one = learner(tmp_path / "run", start=Path(path_of(earlier)), may_start_again=["seeker"])
    saved = await begun_again(one, 1)
    place = Path(saved.adapters["seeker"])
    assert place.name == "000001"
    assert json.loads((place / "delivery.json").read_text())["version"] == 1
    found, expected = (load_file(path / ADAPTER_FILE) for path in (place, Path(path_of(earlier))))
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert (await one.results())["seeker"] == str(place)
    for step in range(2, 2 + KEPT_VERSIONS):
        await begun_again(one, step)
    await one.tidy([str(place)])
    assert len(list(place.parent.iterdir())) == KEPT_VERSIONS + 1


async def test_an_average_that_the_pool_holds_stays_when_its_policy_starts_again(tmp_path):
    await update_only(earlier := only(tmp_path / "earlier", average=0.0))
    one = learner(tmp_path / "run", average=0.5, start=Path(path_of(earlier)), may_start_again=["seeker"])
    await one.update(1, records(1), {})
    average = Path((await one.results())["seeker"])
    assert average.parent.parent.name == "averages"
    await one.start_again(1, ["seeker"])
    assert average.is_dir()
    assert Path((await one.results())["seeker"]) != average


@pytest.mark.slow  # a league is killed by default in test_run_league
async def test_a_learner_that_is_killed_knows_who_started_again(tmp_path):
    whole = learner(tmp_path / "whole", may_start_again=["seeker"])
    for step in (1, 2):
        await begun_again(whole, step)
    await whole.update(3, records(3), {})
    await begun_again(learner(tmp_path / "cut", may_start_again=["seeker"]), 1)
    await begun_again(learner(tmp_path / "cut", may_start_again=["seeker"]), 2)
    cut = learner(tmp_path / "cut", may_start_again=["seeker"])
    assert cut.saved().adapters["seeker"] is None
    assert await cut.start_again(2, ["seeker"]) == cut.saved()
    await cut.update(3, records(3), {})
    for policy in BOTH:
        left, right = weights(whole, policy), weights(cut, policy)
        assert all(torch.equal(left[name], right[name]) for name in left)
        found = [load_file(Path((await one.results())[policy]) / ADAPTER_FILE) for one in (whole, cut)]
        assert all(torch.equal(found[0][name], found[1][name]) for name in found[0]), "its average"


CHILD = Child("seeker", ("hider",), noise=0.1, seed=7)


async def test_a_child_takes_the_place_of_a_policy_once(tmp_path):
    one = learner(tmp_path, may_start_again=["seeker"])
    await one.update(1, records(1), {"at": 1})
    before = Path(one.saved().adapters["seeker"])
    parent = load_file(Path((await one.results())["hider"]) / ADAPTER_FILE)
    saved = await one.start_again(1, [], children=[CHILD])
    place = Path(saved.adapters["seeker"])
    assert place != before, "an engine that knows the files of this version must not keep their weights"
    assert (saved.versions["seeker"], saved.ages) == (1, {"hider": 1, "seeker": 0})
    child, found = child_of([parent], CHILD.noise, CHILD.seed), load_file(place / ADAPTER_FILE)
    assert all(torch.equal(found[name], child[name]) for name in child)
    assert (await one.results())["seeker"] == str(place), "its average begins with it"
    again = learner(tmp_path, may_start_again=["seeker"])
    assert again.saved().adapters == saved.adapters
    assert await again.start_again(1, [], children=[CHILD]) == again.saved()
    assert (await again.update(2, records(2), {})).adapters["seeker"].endswith("seeker/000002")


async def test_a_policy_starts_again_only_after_the_last_update(tmp_path):
    one = learner(tmp_path, may_start_again=["seeker"])
    for step in (1, 2):
        await one.update(step, records(step), {})
    with pytest.raises(SparringError, match="the saved state of update 1 is lost; a resume continues from 2"):
        await one.start_again(1, ["seeker"])


async def test_other_learners_of_a_group_know_who_started_again(tmp_path):
    one = learner(tmp_path / "one", may_start_again=["seeker"])
    await begun_again(one, 1)
    other = learner(tmp_path / "other")
    for policy in BOTH:
        LearnerState.of(one.learners[policy]).load_into(other.learners[policy])
    assert [other.learners[policy].age for policy in BOTH] == [1, 0]
