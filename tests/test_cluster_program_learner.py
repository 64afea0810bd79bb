"""The learner of a program's policies: every step is saved, and restored after a kill; no Ray."""

import functools
import json
import shutil
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

from selfplay.cluster.learners.group import LearnerGroup
from selfplay.cluster.learners.program_learner import KEPT, ProgramLearner
from selfplay.cluster.program_run import to_learn_from
from selfplay.core import InputError, SelfplayError
from selfplay.learning.algorithms import Reinforce
from selfplay.learning.checkpoints import ADAPTER_FILE
from selfplay.learning.learner import Learner, Schedule
from selfplay.learning.policy import LoraSettings, PolicyModel
from selfplay.training.epoch import Epoch
from tiny_models import make_record, tiny_model

BOTH = ("hider", "seeker")


def learners(policies: tuple[str, ...], average: float) -> dict[str, Learner]:
    model = PolicyModel(
        str(tiny_model("llama")), LoraSettings(4, 8.0), dtype=torch.float32, policies=policies
    )
    found = {}
    for policy in policies:
        algorithm = Reinforce()
        algorithm.initialize(model, max_generation_len=4, adapter=policy)
        found[policy] = Learner(
            model,
            algorithm,
            learning_rate=Schedule(1e-2, 1e-2, 1),
            regulariser_weight=Schedule(0.0, 0.0, 1),
            average_decay=average,
            max_mismatch=100,
            adapter=policy,
        )
    return found


def learner(
    directory, policies: tuple[str, ...] = BOTH, average: float = 0.5, epoch: Epoch | None = None
) -> ProgramLearner:
    build = functools.partial(learners, policies, average)
    group = LearnerGroup(build, 1, cpus=0, gpus=0, timeout_seconds=10)
    return ProgramLearner(group, directory, "tiny", epoch)


def records(step: int, *policies: str):
    some = [make_record([1, 2, 3], [4 + step, 5], advantage=1.0), make_record([1], [6], advantage=-1.0)]
    return dict.fromkeys(policies or BOTH, some)


def weights(one: ProgramLearner, policy: str) -> dict[str, torch.Tensor]:
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
    assert (saved.step, saved.state, saved.trained_records) == (4, {"at": 4}, 16)
    assert saved.versions == {"hider": 4, "seeker": 4}
    for policy in BOTH:
        left, right = weights(whole, policy), weights(again, policy)
        assert all(torch.equal(left[name], right[name]) for name in left)
    assert len(list((tmp_path / "cut" / "learner").iterdir())) == KEPT
    assert len(list((tmp_path / "cut" / "versions" / "hider").iterdir())) == KEPT


async def test_a_learner_of_an_earlier_start_of_the_run_cannot_write(tmp_path):
    old = learner(tmp_path, epoch=Epoch.begin(tmp_path))
    await old.update(1, records(1), {"by": "old"})
    new = learner(tmp_path, epoch=Epoch.begin(tmp_path))
    with pytest.raises(SelfplayError, match="was resumed by another process"):
        await old.update(2, records(2), {"by": "old"})
    await new.update(2, records(2), {"by": "new"})
    with pytest.raises(SelfplayError, match="was resumed by another process"):
        await old.results()
    assert learner(tmp_path).saved().state == {"by": "new"}
    assert [path.name for path in (tmp_path / "averages").glob("*/*")] == []


async def test_a_damaged_newest_step_is_repeated_from_the_previous_one(tmp_path):
    whole = learner(tmp_path)
    for step in (1, 2):
        saved = await whole.update(step, records(step), {"at": step})
    damaged = tmp_path / "learner" / "000002" / "seeker" / "learner.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:-1])
    again = learner(tmp_path)
    assert (again.saved().step, again.saved().state) == (1, {"at": 1})
    assert again.saved().notice == f"{damaged} is missing or damaged; continuing from 000001"
    assert (await again.update(2, records(2), {"at": 2})).versions == saved.versions
    for policy in BOTH:
        left, right = weights(whole, policy), weights(again, policy)
        assert all(torch.equal(left[name], right[name]) for name in left)
    assert (learner(tmp_path).saved().step, learner(tmp_path).saved().notice) == (2, None)


async def test_a_step_requested_twice_is_made_once(tmp_path):
    one = learner(tmp_path)
    first = await one.update(1, records(1), {})
    assert await one.update(1, records(2), {"other": True}) == first
    with pytest.raises(SelfplayError, match="update 3 is requested but the last saved update is 1"):
        await one.update(3, records(3), {})


async def test_a_policy_without_records_keeps_its_version(tmp_path):
    one = learner(tmp_path)
    await one.update(1, records(1), {})
    saved = await one.update(2, records(2, "seeker"), {})
    assert saved.versions == {"hider": 1, "seeker": 2}
    assert list(saved.learned) == ["seeker"]
    assert saved.adapters["hider"].endswith("versions/hider/000001")
    assert learner(tmp_path).saved() == saved


@pytest.mark.parametrize("average", [0.0, 0.5])
async def test_the_results_are_the_averages_if_there_are_any(tmp_path, average):
    one = learner(tmp_path, average=average)
    assert await one.results() == {"hider": None, "seeker": None}
    await one.update(1, records(1), {})
    kind = "averages" if average else "versions"
    for policy, path in (await one.results()).items():
        assert path == str(tmp_path / kind / policy / "000001")
        assert json.loads((tmp_path / kind / policy / "000001" / "delivery.json").read_text())["version"] == 1


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
    assert learner(tmp_path, ("default",)).saved() == one.saved()


async def test_a_lost_adapter_is_written_again(tmp_path):
    one = learner(tmp_path)
    saved = await one.update(1, records(1), {})
    shutil.rmtree(tmp_path / "versions")
    assert learner(tmp_path).saved() == saved
    assert (tmp_path / "versions" / "hider" / "000001" / "delivery.json").exists()


async def test_a_step_without_the_files_of_a_policy_is_damaged(tmp_path):
    one = learner(tmp_path)
    for step in (1, 2):
        await one.update(step, records(step), {})
    lost = tmp_path / "learner" / "000002" / "hider"
    shutil.rmtree(lost)
    again = learner(tmp_path).saved()
    assert (again.step, again.notice) == (1, f"{lost} is missing or damaged; continuing from 000001")


async def test_a_newest_step_of_other_policies_is_rejected_and_kept(tmp_path):
    one = learner(tmp_path)
    for step in (1, 2):
        await one.update(step, records(step), {})
    newest = tmp_path / "learner" / "000002"
    state = json.loads((newest / "state.json").read_text())
    for name in ("versions", "samples_seen"):
        state[name]["finder"] = state[name].pop("hider")
    (newest / "state.json").write_text(json.dumps(state))
    (newest / "hider").rename(newest / "finder")
    with pytest.raises(InputError, match="000002 has the policies seeker, finder, the program has hider"):
        learner(tmp_path)
    assert sorted(path.name for path in (tmp_path / "learner").iterdir()) == ["000001", "000002"]


async def test_a_step_of_another_version_of_selfplay_is_rejected_and_kept(tmp_path):
    await learner(tmp_path).update(1, records(1), {})
    for file in (tmp_path / "learner").glob("*/state.json"):
        state = json.loads(file.read_text())
        del state["format"]
        file.write_text(json.dumps(state))
    with pytest.raises(InputError, match="learner/000001 was saved by another version of selfplay"):
        learner(tmp_path)
    assert sorted(path.name for path in (tmp_path / "learner").iterdir()) == ["000000", "000001"]


async def test_a_program_whose_policies_have_changed_is_rejected(tmp_path):
    await learner(tmp_path).update(1, records(1), {})
    for other in (("hider",), ("hider", "finder")):
        with pytest.raises(InputError, match="000001 has the policies hider, seeker, the program has hider"):
            learner(tmp_path, other)


def test_the_meta_of_a_programs_records_is_not_sent_to_the_learner():
    noted = replace(make_record([1], [2]), meta={"seen": object()})
    assert to_learn_from({"hider": [noted]}) == {"hider": [make_record([1], [2])]}
