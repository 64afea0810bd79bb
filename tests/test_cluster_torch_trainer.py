"""The trainer of a cluster: every update is saved, and restored after a kill."""

import functools
import json
import os
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from file_limits import files_no_longer_than
from selfplay.cluster.learners.group import LearnerGroup
from selfplay.cluster.learners.torch_trainer import KEPT_VERSIONS, TorchTrainer, keep_checkpoints
from selfplay.core import InputError, SelfplayError
from selfplay.learning.algorithms import Reinforce
from selfplay.learning.checkpoints import save_adapter
from selfplay.learning.learner import Learner, Schedule
from selfplay.learning.policy import TRAINED, LoraSettings, PolicyModel
from selfplay.training.epoch import Epoch
from tiny_models import make_record, tiny_model, tiny_policy


def learners(average: float) -> dict[str, Learner]:
    policy = tiny_policy(perturbed=False)
    algorithm = Reinforce()
    algorithm.initialize(policy, max_generation_len=4)
    rate = Schedule(1e-2, 1e-2, 1)
    none = Schedule(0.0, 0.0, 1)
    learner = Learner(
        policy,
        algorithm,
        learning_rate=rate,
        regulariser_weight=none,
        average_decay=average,
        max_mismatch=100,
    )
    return {TRAINED: learner}


def trainer(directory, average: float = 0.5, **options) -> TorchTrainer:
    group = LearnerGroup(functools.partial(learners, average), 1, cpus=0, gpus=0, timeout_seconds=10)
    return TorchTrainer(group, directory, "tiny", **options)


def records(update: int):
    return [make_record([1, 2, 3], [4 + update, 5], advantage=1.0), make_record([1, 2], [6], advantage=-1.0)]


def one_update(one: TorchTrainer) -> None:
    one.save(one.update(records(one.version)))


def weights(one: TorchTrainer) -> dict[str, torch.Tensor]:
    return one.learner.tensors()


@pytest.mark.parametrize("average", [0.0, 0.5])
def test_a_trainer_killed_after_any_update_makes_the_same_later_updates(tmp_path, average):
    whole = trainer(tmp_path / "whole", average)
    for _ in range(4):
        one_update(whole)
    for place in range(4):
        cut = trainer(tmp_path / "cut", average)
        assert cut.version == place
        one_update(cut)
    again = trainer(tmp_path / "cut", average)
    assert (again.version, again.trained_records) == (4, 8)
    assert again.saved_metrics == whole.saved_metrics | {
        name: again.saved_metrics[name] for name in whole.saved_metrics if "second" in name
    }
    left, right = weights(whole), weights(again)
    assert all(torch.equal(left[name], right[name]) for name in left)
    for paths in (whole.path(), again.path()), (whole.opponent_path(), again.opponent_path()):
        files = [load_file(f"{path}/adapter_model.safetensors") for path in paths]
        assert all(torch.equal(files[0][name], files[1][name]) for name in files[0])


def test_a_partially_saved_update_does_not_count(tmp_path):
    first = trainer(tmp_path)
    one_update(first)
    metrics = first.update(records(1))
    adapter = tmp_path / "versions" / "000001" / "adapter_model.safetensors"
    with files_no_longer_than(adapter.stat().st_size), pytest.raises((OSError, SafetensorError)):
        first.save(metrics)  # the new adapter fits on the disk, but the optimizer's state does not
    assert (tmp_path / "versions" / "000002").exists()
    again = trainer(tmp_path)
    assert again.version == 1
    assert again.path() == str((tmp_path / "versions" / "000001").absolute())


def test_the_untrained_policy_has_no_adapter_unless_it_starts_with_one(tmp_path):
    first = trainer(tmp_path / "first")
    assert first.path() is None
    one_update(first)
    second = trainer(tmp_path / "second", initial_lora_path=first.path())
    begun_with = load_file(f"{second.path()}/adapter_model.safetensors")
    given = load_file(f"{first.path()}/adapter_model.safetensors")
    assert all(torch.equal(begun_with[name], given[name]) for name in given)


@pytest.mark.parametrize(
    ("lora", "complaint"),
    [
        (LoraSettings(4, 16.0), "its alpha is 16, the run's 8"),
        (LoraSettings(2, 8.0), "its rank is 2, the run's 4"),
        (LoraSettings(4, 8.0, ["q_proj"]), "its target modules are"),
    ],
)
def test_an_initial_adapter_of_another_shape_is_rejected(tmp_path, lora, complaint):
    save_adapter(tmp_path / "other", PolicyModel(str(tiny_model("llama")), lora), "tiny")
    with pytest.raises(InputError, match=complaint):
        trainer(tmp_path / "run", initial_lora_path=str(tmp_path / "other"))
    assert not (tmp_path / "run" / "versions").exists()


def test_versions_that_are_not_in_use_are_deleted(tmp_path):
    one = trainer(tmp_path)
    for _ in range(KEPT_VERSIONS + 4):
        one_update(one)
        one.tidy([str((tmp_path / "versions" / "000002").absolute())])
    kept = sorted(int(path.name) for path in (tmp_path / "versions").iterdir())
    assert kept == [2, *range(5, KEPT_VERSIONS + 5)]
    assert len(list((tmp_path / "learner").iterdir())) == 2


def test_a_delivered_adapter_has_a_description(tmp_path):
    one = trainer(tmp_path)
    one_update(one)
    said = json.loads((tmp_path / "versions" / "000001" / "delivery.json").read_text())
    assert said["version"] == 1
    assert said["canary"] < 0


def test_user_facing_checkpoints_are_written_when_due(tmp_path):
    one = trainer(tmp_path)
    keep = keep_checkpoints(one, tmp_path / "checkpoints", lambda step: step % 2 == 0, keep=2)
    for _ in range(7):
        one_update(one)
        keep(one.version, {"pool": {}})
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == [
        "step-000004",
        "step-000006",
    ]


@pytest.mark.parametrize("file", ["state.json", "learner.safetensors"])
def test_a_damaged_newest_update_is_repeated_from_the_previous_one(tmp_path, file):
    whole = trainer(tmp_path)
    one_update(whole)
    one_update(whole)
    damaged = tmp_path / "learner" / "000002" / file
    damaged.write_bytes(damaged.read_bytes()[:-1])
    again = trainer(tmp_path)
    assert again.version == 1
    assert again.notice == f"{damaged} is missing or damaged; continuing from 000001"
    one_update(again)
    left, right = weights(whole), weights(again)
    assert all(torch.equal(left[name], right[name]) for name in left)
    assert (trainer(tmp_path).version, trainer(tmp_path).notice) == (2, None)


def test_the_average_of_a_lost_update_is_not_that_of_the_new_one(tmp_path):
    one = trainer(tmp_path)
    one_update(one)
    one_update(one)
    lost = load_file(f"{one.opponent_path()}/adapter_model.safetensors")
    (tmp_path / "learner" / "000002" / "state.json").write_text("{")
    again = trainer(tmp_path)
    again.save(again.update(records(5)))
    new = load_file(f"{again.opponent_path()}/adapter_model.safetensors")
    assert any((new[name] != lost[name]).any() for name in new)


def test_only_the_most_recently_found_damaged_update_is_kept(tmp_path):
    for version in (1, 2):
        one = trainer(tmp_path)
        one_update(one)
        one_update(one)
        (tmp_path / "learner" / f"{version + 1:06d}" / "state.json").write_text("{")
        assert trainer(tmp_path).version == version
    assert sorted(path.name for path in (tmp_path / "learner").iterdir()) == [".000003.damaged", "000002"]


def test_an_update_of_another_model_is_rejected_and_kept(tmp_path):
    one = trainer(tmp_path)
    one_update(one)
    one_update(one)
    file = tmp_path / "learner" / "000002" / "learner.safetensors"
    save_file({name: torch.zeros(3) for name in load_file(file)}, file)
    with pytest.raises(InputError, match="do not fit this base model"):
        trainer(tmp_path)
    assert sorted(path.name for path in (tmp_path / "learner").iterdir()) == ["000001", "000002"]


@pytest.mark.parametrize("number", [None, 1000])
def test_an_update_of_another_version_of_selfplay_is_rejected_and_kept(tmp_path, number):
    one_update(trainer(tmp_path))
    file = tmp_path / "learner" / "000001" / "state.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"format": number}))
    before = files(tmp_path)
    with pytest.raises(InputError, match="learner/000001 was saved by another version of selfplay"):
        trainer(tmp_path)
    assert files(tmp_path) == before


def test_a_trainer_of_an_earlier_start_of_the_run_cannot_write(tmp_path):
    old = trainer(tmp_path, epoch=Epoch.begin(tmp_path))
    one_update(old)
    new = trainer(tmp_path, epoch=Epoch.begin(tmp_path))
    one_update(new)
    before = files(tmp_path)
    metrics = old.update(records(1))
    for write in (
        lambda: old.save(metrics),
        lambda: old.tidy([]),
        lambda: old.opponent_path(),
        lambda: old.save_checkpoint(tmp_path / "checkpoints" / "step-000001", {}),
        lambda: trainer(tmp_path, epoch=old.epoch),
    ):
        with pytest.raises(SelfplayError, match="was resumed by another process"):
            write()
    written = {path: content for path, content in files(tmp_path).items() if ".partial" not in str(path)}
    assert written == before
    one_update(new)
    assert trainer(tmp_path).version == 3


def files(directory: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def test_if_every_update_is_damaged_the_error_names_the_newest(tmp_path):
    one = trainer(tmp_path)
    one_update(one)
    one_update(one)
    for version in ("000001", "000002"):
        (tmp_path / "learner" / version / "state.json").write_text("{")
    with pytest.raises(InputError, match=r"000002/state.json is missing or damaged"):
        trainer(tmp_path)


def test_a_saved_update_survives_a_power_failure(tmp_path, monkeypatch):
    """Everything is on the disk before the directory gets the name by which it counts."""
    one = trainer(tmp_path)
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
    one_update(one)
    assert named == ["000001"]
    assert (tmp_path / "learner").stat().st_ino in synced
