import json
from pathlib import Path

import pytest
import torch

from sparring.core import InputError
from sparring.core.adapters import ADAPTER_CONFIG, ADAPTER_FILE, LEARNER_FILE, STATE_FILE
from sparring.core.errors import DamagedState
from sparring.learn.checkpoints import (
    SavedLearner,
    check_lora_shape,
    load_adapter,
    load_checkpoint,
    save_checkpoint,
)
from sparring.learn.policy import TRAINED, PolicyModel
from sparring.learn.saved_states import newest_whole
from tiny_models import perturb_adapter, tiny_policy

LEARNER = {"optimizer.0.step": torch.tensor(3.0), "weights.w": torch.arange(4.0)}
STATE = {"step": 3, "nested": {"list": [1, 2.5, None]}}
PROMPT, COMPLETION = [1, 2, 3, 4], [5, 6, 7]


def save(directory: Path, policy: PolicyModel, result: str = TRAINED) -> Path:
    save_checkpoint(directory, policy, policy.model_name, [SavedLearner(TRAINED, result, LEARNER)], STATE)
    return directory


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return save(tmp_path / "step-3", tiny_policy())


def test_a_checkpoint_restores_what_was_saved(checkpoint):
    policy = tiny_policy()
    loaded = load_checkpoint(checkpoint)
    assert loaded.state == STATE
    assert all(torch.equal(loaded.learners[TRAINED][key], LEARNER[key]) for key in LEARNER)
    assert all(
        torch.equal(loaded.adapters[TRAINED][key], value) for key, value in policy.adapter_state().items()
    )


def test_a_checkpoint_replaces_one_of_the_same_name_and_leaves_nothing_else_behind(checkpoint):
    policy = tiny_policy()
    perturb_adapter(policy, seed=9)
    save(checkpoint, policy)
    loaded = load_checkpoint(checkpoint)
    assert all(
        torch.equal(loaded.adapters[TRAINED][key], value) for key, value in policy.adapter_state().items()
    )
    assert [path.name for path in checkpoint.parent.iterdir()] == [checkpoint.name]


def test_an_interrupted_save_leaves_no_checkpoint(tmp_path):
    class Unsavable:
        pass

    learners = [SavedLearner(TRAINED, TRAINED, LEARNER)]
    with pytest.raises(TypeError):
        save_checkpoint(tmp_path / "step-1", tiny_policy(), "base", learners, {"x": Unsavable()})
    assert not (tmp_path / "step-1").exists()
    save(tmp_path / "step-1", tiny_policy())
    assert [path.name for path in tmp_path.iterdir()] == ["step-1"]


@pytest.mark.parametrize("name", [ADAPTER_FILE, LEARNER_FILE, STATE_FILE, ADAPTER_CONFIG])
@pytest.mark.parametrize("kept", [None, 0, 0.5, -1])
def test_a_missing_or_truncated_file_is_rejected_in_one_line(checkpoint, name, kept):
    file = checkpoint / name
    content = file.read_bytes()
    if kept is None:
        file.unlink()
    else:
        file.write_bytes(content[: int(kept * len(content)) if kept >= 0 else -1])
    with pytest.raises(DamagedState) as caught:
        load_checkpoint(checkpoint)
    assert name in str(caught.value)
    assert "\n" not in str(caught.value)


def test_of_several_damaged_states_the_newest_is_kept_and_one_that_does_not_fit_is_not_passed_over(tmp_path):
    policy = tiny_policy()
    for number in range(5):
        save(tmp_path / f"{number}", policy)
    for number in (2, 4):
        (tmp_path / f"{number}" / STATE_FILE).unlink()

    def load(number: int) -> int:
        load_checkpoint(tmp_path / f"{number}")
        if number == 3:
            raise InputError("checkpoint", "it was saved with other transforms", "Use those.")
        return number

    def place(number: int) -> Path:
        return tmp_path / f"{number}"

    with pytest.raises(InputError, match="other transforms"):
        newest_whole(range(5), place, load)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1", "2", "3", "4"]
    loaded, notice = newest_whole([0, 1, 2, 4], place, load)
    assert (loaded, notice) == (1, "4 and 2 are damaged; continuing from 1")
    assert sorted(path.name for path in tmp_path.iterdir()) == [".4.damaged", "0", "1", "3"]


@pytest.mark.parametrize(("numbers", "tried"), [([7], "7"), ([2, 7], "7 and 2"), ([1, 2, 7], "7, 2 and 1")])
def test_if_all_states_are_damaged_the_error_says_that_all_were_tried(numbers, tried, tmp_path):
    with pytest.raises(DamagedState) as caught:
        newest_whole(
            numbers, lambda number: tmp_path / f"{number}", lambda n: load_checkpoint(tmp_path / f"{n}")
        )
    assert f"{tmp_path / '7'}" in caught.value.problem
    assert caught.value.problem.endswith(f"every checkpoint was tried ({tried})")
    assert "Take another" not in str(caught.value)


@pytest.mark.parametrize("name", [ADAPTER_CONFIG, STATE_FILE])
def test_a_file_that_is_nested_too_deeply_is_rejected_in_one_line(checkpoint, name):
    (checkpoint / name).write_text("[" * 200_000)
    with pytest.raises(DamagedState, match=name):
        load_checkpoint(checkpoint)


@pytest.mark.parametrize("config", [[], {}, {"peft_type": "IA3"}, {"peft_type": "LORA", "r": 4}])
def test_a_directory_without_a_lora_adapter_is_rejected(checkpoint, config):
    (checkpoint / ADAPTER_CONFIG).write_text(json.dumps(config))
    with pytest.raises(InputError):
        load_adapter(checkpoint)


def test_a_run_does_not_begin_with_an_adapter_that_has_another_formula_for_its_scale(checkpoint):
    config = json.loads((checkpoint / ADAPTER_CONFIG).read_text())
    (checkpoint / ADAPTER_CONFIG).write_text(json.dumps(config | {"use_rslora": True}))
    (checkpoint / "manifest.json").unlink()  # an adapter of another program has none
    with pytest.raises(InputError, match="its use_rslora is True, the run's None"):
        check_lora_shape(checkpoint, load_adapter(checkpoint)[1], tiny_policy())
