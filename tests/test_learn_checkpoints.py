import json
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from sparring.core import InputError
from sparring.core.adapters import ADAPTER_CONFIG, ADAPTER_FILE, LEARNER_FILE, MANIFEST_FILE, STATE_FILE
from sparring.core.errors import DamagedState
from sparring.learn.checkpoints import (
    SavedLearner,
    check_lora_shape,
    load_adapter,
    load_checkpoint,
    save_adapter,
    save_checkpoint,
)
from sparring.learn.logprobs import plan_logprobs
from sparring.learn.policy import ALL_LINEAR, TRAINED, LoraSettings, PolicyModel
from sparring.learn.saved_states import newest_whole
from sparring.learn.trie import build_plan
from sparring.run.given_adapters import adapter_in
from tiny_models import ARCHITECTURES, perturb_adapter, tiny_model, tiny_policy

LEARNER = {"optimizer.0.step": torch.tensor(3.0), "weights.w": torch.arange(4.0)}
STATE = {"step": 3, "nested": {"list": [1, 2.5, None]}}
PROMPT, COMPLETION = [1, 2, 3, 4], [5, 6, 7]


def save(directory: Path, policy: PolicyModel, result: str = TRAINED) -> Path:
    save_checkpoint(directory, policy, policy.model_name, [SavedLearner(TRAINED, result, LEARNER)], STATE)
    return directory


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return save(tmp_path / "step-3", tiny_policy())


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_saved_adapter_loads_with_plain_peft_and_gives_the_same_log_probabilities(architecture, tmp_path):
    policy = tiny_policy(architecture)
    save_adapter(tmp_path, policy, policy.model_name)
    base = AutoModelForCausalLM.from_pretrained(tiny_model(architecture))
    plain = PeftModel.from_pretrained(base, tmp_path)
    with torch.no_grad():
        logits_TV = plain(input_ids=torch.tensor([PROMPT + COMPLETION])).logits[0, len(PROMPT) - 1 : -1]
        ours = plan_logprobs(policy, build_plan([PROMPT], [COMPLETION]))
    expected = torch.log_softmax(logits_TV, dim=-1).gather(1, torch.tensor(COMPLETION)[:, None])[:, 0]
    torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-4)


def test_a_checkpoint_restores_what_was_saved(checkpoint):
    policy = tiny_policy()
    loaded = load_checkpoint(checkpoint)
    assert loaded.state == STATE
    assert all(torch.equal(loaded.learners[TRAINED][key], LEARNER[key]) for key in LEARNER)
    assert all(
        torch.equal(loaded.adapters[TRAINED][key], value) for key, value in policy.adapter_state().items()
    )


def test_the_adapter_of_a_checkpoint_is_the_one_saved_as_the_result(tmp_path):
    policy = tiny_policy()
    perturb_adapter(policy, "average", seed=8)
    loaded = load_checkpoint(save(tmp_path / "step-1", policy, "average"))
    assert all(
        torch.equal(loaded.adapters[TRAINED][k], v) for k, v in policy.adapter_state("average").items()
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


def test_a_checkpoint_with_only_the_default_policy_has_all_files_at_the_top(checkpoint):
    names = {path.name for path in checkpoint.rglob("*")}
    assert names == {ADAPTER_FILE, ADAPTER_CONFIG, LEARNER_FILE, STATE_FILE, MANIFEST_FILE}


def test_an_unrelated_folder_in_a_checkpoint_is_ignored(checkpoint):
    (checkpoint / ".snapshots").mkdir()
    assert list(load_checkpoint(checkpoint).learners) == [TRAINED]


def test_the_adapter_configuration_names_shape_and_base(checkpoint):
    _, config = load_adapter(checkpoint)
    policy = tiny_policy()
    shape = config["r"], config["lora_alpha"], sorted(config["target_modules"])
    assert shape == (4, 8.0, sorted(ALL_LINEAR))
    assert config["base_model_name_or_path"] == policy.model_name


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


def test_the_model_rejects_an_adapter_of_another_shape(tmp_path):
    policy = tiny_policy(rank=2)
    save_adapter(tmp_path, policy, policy.model_name)
    weights, _ = load_adapter(tmp_path)
    with pytest.raises(InputError, match="do not fit"):
        tiny_policy(rank=4).load_adapter_state(weights)


@pytest.mark.parametrize("name", ["hider", "seeker"])
def test_each_policy_of_a_checkpoint_is_found_with_its_own_weights(tmp_path, name):
    model = PolicyModel(str(tiny_model("llama")), LoraSettings(2, 4.0), policies=["hider", "seeker"])
    perturb_policies(model)
    learners = [SavedLearner(one, one, LEARNER) for one in ("hider", "seeker")]
    save_checkpoint(tmp_path / "step-1", model, "tiny", learners, STATE)
    weights, _ = load_adapter(adapter_in(tmp_path / "step-1", name, "start"))
    assert all(torch.equal(weights[key], value) for key, value in model.adapter_state(name).items())
    with pytest.raises(InputError, match="no adapter of a policy judge"):
        adapter_in(tmp_path / "step-1", "judge", "start.judge")


def perturb_policies(model: PolicyModel) -> None:
    """Give each policy other weights."""
    for seed, name in enumerate(model.policies):
        generator = torch.Generator().manual_seed(seed)
        state = model.adapter_state(name)
        model.load_adapter_state(
            {key: torch.randn(value.shape, generator=generator) for key, value in state.items()}, name
        )
