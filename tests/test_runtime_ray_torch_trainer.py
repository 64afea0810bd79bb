"""The trainer of a cluster: every update saved, and taken up again after a kill."""

import functools
import json
import shutil

import pytest
import torch
from safetensors.torch import load_file

from selfplay.core import InputError
from selfplay.learning.algorithms import Reinforce
from selfplay.learning.learner import Learner, Schedule
from selfplay.learning.policy import TRAINED
from selfplay.runtime.ray.learner_group import LearnerGroup
from selfplay.runtime.ray.torch_trainer import KEPT_VERSIONS, TorchTrainer, keep_checkpoints
from tiny_models import make_record, tiny_policy


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
def test_a_trainer_that_is_killed_after_any_update_makes_the_same_next_ones(tmp_path, average):
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


def test_an_update_that_was_not_saved_to_its_end_did_not_happen(tmp_path):
    first = trainer(tmp_path)
    one_update(first)
    first.update(records(1))
    first._save_adapter("versions", TRAINED, 2)  # and then the kill
    again = trainer(tmp_path)
    assert again.version == 1
    assert again.path() == str((tmp_path / "versions" / "000001").absolute())


def test_the_untrained_policy_has_no_adapter_unless_it_began_with_one(tmp_path):
    first = trainer(tmp_path / "first")
    assert first.path() is None
    one_update(first)
    second = trainer(tmp_path / "second", initial_lora_path=first.path())
    begun_with = load_file(f"{second.path()}/adapter_model.safetensors")
    given = load_file(f"{first.path()}/adapter_model.safetensors")
    assert all(torch.equal(begun_with[name], given[name]) for name in given)


def test_versions_that_nobody_asks_for_are_deleted(tmp_path):
    one = trainer(tmp_path)
    for _ in range(KEPT_VERSIONS + 4):
        one_update(one)
        one.tidy([str((tmp_path / "versions" / "000002").absolute())])
    kept = sorted(int(path.name) for path in (tmp_path / "versions").iterdir())
    assert kept == [2, *range(5, KEPT_VERSIONS + 5)]
    assert len(list((tmp_path / "learner").iterdir())) == 2


def test_what_was_delivered_says_what_it_is(tmp_path):
    one = trainer(tmp_path)
    one_update(one)
    said = json.loads((tmp_path / "versions" / "000001" / "delivery.json").read_text())
    assert said["version"] == 1
    assert said["canary"] < 0


def test_checkpoints_for_people_are_kept_when_they_are_due(tmp_path):
    one = trainer(tmp_path)
    keep = keep_checkpoints(one, tmp_path / "checkpoints", lambda step: step % 2 == 0, keep=2)
    for _ in range(7):
        one_update(one)
        keep(one.version, {"pool": {}})
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == [
        "step-000004",
        "step-000006",
    ]


def test_a_damaged_state_says_what_to_do(tmp_path):
    one = trainer(tmp_path)
    one_update(one)
    one_update(one)
    (tmp_path / "learner" / "000002" / "state.json").write_text("{")
    with pytest.raises(InputError, match=r"000002 is damaged .* Delete it to go on from the one before"):
        trainer(tmp_path)
    shutil.rmtree(tmp_path / "learner" / "000002")
    assert trainer(tmp_path).version == 1
