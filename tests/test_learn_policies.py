"""Several policies on one base: each is trained, saved and served as if it were the only one."""

import asyncio
import os
import warnings
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from policy_learners import LORA, POLICIES, RECORDS, make_learner, make_learners, make_policy
from sparring.core import InputError, ModelResponse, TrainingRecord
from sparring.core.adapters import ADAPTER_CONFIG, ADAPTER_FILE, LEARNER_FILE, MANIFEST_FILE, STATE_FILE
from sparring.engine.engine import EmbeddedEngine
from sparring.learn.checkpoints import (
    Checkpoint,
    SavedLearner,
    load_adapter,
    load_checkpoint,
    save_checkpoint,
)
from sparring.learn.learner import Learner
from sparring.learn.logprobs import plan_logprobs
from sparring.learn.policy import ALL_LINEAR, BASE, TRAINED, PolicyModel
from sparring.learn.trie import build_plan
from tiny_models import ARCHITECTURES, make_record, text_prompt, tiny_model

PROMPT, COMPLETION = [1, 2, 3, 4], [5, 6, 7]
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # plain models


def logprobs(policy: PolicyModel, name: str) -> list[float]:
    with torch.no_grad(), policy.adapter(name):
        return plan_logprobs(policy, build_plan([PROMPT], [COMPLETION])).tolist()


def equal(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[key], right[key]) for key in left)


# Names and initial weights


@pytest.mark.parametrize(
    "name", ["", "a.b", "a b", "a/b", "é", "line\n", "..", BASE, "average", "solver-average", "keys", "train"]
)
def test_a_name_that_no_policy_can_have_is_rejected_in_one_line(name):
    with pytest.raises(InputError, match="policies") as caught:
        PolicyModel(str(tiny_model("llama")), LORA, policies=["solver", name])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("names", [[], ["a", "a"], ["Solver", "solver"]])
def test_policies_must_have_different_names(names):
    """They must differ even on a file system that ignores upper and lower case."""
    with pytest.raises(InputError, match="policies"):
        PolicyModel(str(tiny_model("llama")), LORA, policies=names)


@pytest.mark.parametrize(
    "names", [("q_proj", "lora_A"), ("model", "layers"), ("a", "lora_"), ("weight", "0")]
)
def test_policies_may_have_names_that_occur_in_the_models_parameter_names(names):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        policy = make_policy("qwen3", names)
    assert [str(warning.message) for warning in caught] == []
    for name in names:
        alone = make_policy("qwen3", (name,))
        assert len(policy.adapter_parameters(name)) == 2 * 2 * len(ALL_LINEAR)
        assert equal(policy.adapter_state(name), alone.adapter_state(name))
        assert logprobs(policy, name) == logprobs(alone, name)


def test_initial_weights_depend_on_the_seed_and_the_policys_name_alone():
    directory = str(tiny_model("llama"))
    state = torch.get_rng_state()
    three = PolicyModel(directory, LORA, seed=3, policies=["a", TRAINED, "b"])
    alone = PolicyModel(directory, LORA, seed=3, policies=["b"])
    default = PolicyModel(directory, LORA, seed=3)
    assert equal(three.adapter_state("b"), alone.adapter_state("b"))
    assert equal(three.adapter_state(TRAINED), default.adapter_state())
    assert not equal(three.adapter_state("a"), three.adapter_state("b"))
    assert not equal(three.adapter_state("a"), three.adapter_state(TRAINED))
    assert not equal(
        three.adapter_state("b"), PolicyModel(directory, LORA, policies=["b"]).adapter_state("b")
    )
    assert torch.equal(torch.get_rng_state(), state)


# Gradients and updates


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_only_the_active_policy_gets_gradients(architecture):
    policy = make_policy(architecture)
    policy.load_adapter_state(policy.adapter_state("proposer"), "frozen")
    for name in ("solver", "proposer", "solver"):
        logprobs(policy, "frozen")
        policy.model.zero_grad(set_to_none=True)
        with policy.adapter(name):
            plan_logprobs(policy, build_plan([PROMPT], [COMPLETION])).sum().backward()
        with_gradient = {id(p) for p in policy.model.parameters() if p.grad is not None}
        assert with_gradient == {id(p) for p in policy.adapter_parameters(name)}
    with policy.adapter("frozen"):
        assert not any(p.requires_grad for p in policy.model.parameters())


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_gradients_and_updates_are_the_same_as_for_the_policy_alone(architecture):
    """Bit for bit, with the other policy's updates in between."""
    policy = make_policy(architecture)
    learners = make_learners(policy, average_decay=0.9)
    alone = {
        name: make_learner(make_policy(architecture, (name,)), name, average_decay=0.9) for name in POLICIES
    }
    for _ in range(3):
        for name in POLICIES:
            metrics, expected = learners[name].update(RECORDS[name]), alone[name].update(RECORDS[name])
            assert metrics["grad_norm"] == expected["grad_norm"] > 0
            assert metrics["kl_to_base"] == expected["kl_to_base"]
            pairs = zip(
                policy.adapter_parameters(name), alone[name].policy.adapter_parameters(name), strict=True
            )
            assert all(torch.equal(ours.grad, theirs.grad) for ours, theirs in pairs)
    for name in POLICIES:
        assert equal(learners[name].tensors(), alone[name].tensors())
        for adapter in (name, learners[name].result):
            assert equal(policy.adapter_state(adapter), alone[name].policy.adapter_state(adapter))


def test_a_learner_of_a_policy_that_the_model_does_not_have_is_rejected():
    policy = make_policy("llama")
    policy.load_adapter_state(policy.adapter_state("solver"), "frozen")
    for name in (TRAINED, "frozen", BASE):
        with pytest.raises(InputError, match=r"not a policy of this model.*proposer, solver"):
            make_learner(policy, name)


# Checkpoints


def save(directory: Path, learners: dict[str, Learner]) -> None:
    policy = next(iter(learners.values())).policy
    saved = [SavedLearner(name, learner.result, learner.tensors()) for name, learner in learners.items()]
    counts = {name: [learner.version, learner.samples_seen] for name, learner in learners.items()}
    save_checkpoint(directory, policy, policy.model_name, saved, {"counts": counts})


def restore(checkpoint: Checkpoint, learners: dict[str, Learner]) -> None:
    for name, learner in learners.items():
        learner.load_tensors(checkpoint.learners[name], *checkpoint.state["counts"][name])
        if learner.result != name:
            learner.policy.load_adapter_state(checkpoint.adapters[name], learner.result)


def train(learners: dict[str, Learner], names: list[str]) -> None:
    for name in names:
        learners[name].update(RECORDS[name])


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("decay", [0.0, 0.9])
def test_saved_and_loaded_learners_continue_bit_identically(architecture, decay, tmp_path):
    learners = make_learners(make_policy(architecture), average_decay=decay)
    train(learners, ["proposer", "solver", "proposer"])
    save(tmp_path / "step-2", learners)
    train(learners, ["solver", "proposer", "solver"])

    fresh = PolicyModel(str(tiny_model(architecture)), LORA, seed=8, policies=POLICIES)
    resumed = make_learners(fresh, average_decay=decay)
    restore(load_checkpoint(tmp_path / "step-2"), resumed)
    train(resumed, ["solver", "proposer", "solver"])
    for name in POLICIES:
        assert equal(resumed[name].tensors(), learners[name].tensors())
        assert resumed[name].version == learners[name].version == 3
        assert resumed[name].samples_seen == learners[name].samples_seen == 6
        results = [one[name].policy.adapter_state(one[name].result) for one in (resumed, learners)]
        assert equal(*results)


@pytest.mark.parametrize("policies", [POLICIES, ("solver",)])
def test_a_checkpoint_has_a_folder_for_each_policy(policies, tmp_path):
    policy = make_policy("llama", policies)
    save(tmp_path / "step-0", make_learners(policy, average_decay=0.9))
    files = {str(path.relative_to(tmp_path / "step-0")) for path in tmp_path.rglob("*") if path.is_file()}
    of_each = (ADAPTER_FILE, ADAPTER_CONFIG, LEARNER_FILE, MANIFEST_FILE)
    of_policy = {f"{name}/{file}" for name in policies for file in of_each}
    assert files == {STATE_FILE, MANIFEST_FILE} | of_policy
    loaded = load_checkpoint(tmp_path / "step-0")
    assert list(loaded.adapters) == list(loaded.learners) == list(policies)
    assert loaded.state == {"counts": {name: [0, 0] for name in policies}}
    assert [path.name for path in tmp_path.iterdir()] == ["step-0"]


def test_everything_in_a_checkpoint_is_synced_and_finally_its_parent_folder(tmp_path, monkeypatch):
    synced: list[int] = []
    fsync = os.fsync

    def noted_fsync(descriptor: int) -> None:
        synced.append(os.fstat(descriptor).st_ino)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    save(tmp_path / "step-0", make_learners(make_policy("llama")))
    written = [path.stat().st_ino for path in tmp_path.rglob("*")]
    assert len(written) == 1 + len(POLICIES) * 5 + 2
    assert sorted(synced[:-1]) == sorted(written)
    assert synced[-1] == tmp_path.stat().st_ino


@pytest.mark.parametrize("name", [ADAPTER_FILE, LEARNER_FILE, ADAPTER_CONFIG])
def test_a_file_that_one_policy_lacks_is_named(name, tmp_path):
    save(tmp_path / "step-0", make_learners(make_policy("llama")))
    (tmp_path / "step-0" / "solver" / name).unlink()
    with pytest.raises(InputError, match=r"step-0/solver") as caught:
        load_checkpoint(tmp_path / "step-0")
    assert name in str(caught.value)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_each_policys_folder_loads_in_plain_peft(architecture, tmp_path):
    policy = make_policy(architecture)
    learners = make_learners(policy, average_decay=0.5)
    train(learners, ["proposer", "solver"])
    save(tmp_path / "step-1", learners)
    tokens = torch.tensor([PROMPT + COMPLETION])
    for name, learner in learners.items():
        base = AutoModelForCausalLM.from_pretrained(tiny_model(architecture))
        plain = PeftModel.from_pretrained(base, tmp_path / "step-1" / name)
        with torch.no_grad():
            logprobs_TV = torch.log_softmax(plain(input_ids=tokens).logits[0, len(PROMPT) - 1 : -1], dim=-1)
        expected = logprobs_TV.gather(1, torch.tensor(COMPLETION)[:, None])[:, 0].tolist()
        assert logprobs(policy, learner.result) == pytest.approx(expected, abs=1e-4)
        weights, _ = load_adapter(tmp_path / "step-1" / name)
        assert equal(weights, policy.adapter_state(learner.result))


# The engine


async def ask_all(engine: EmbeddedEngine, names: list[str]) -> list[ModelResponse]:
    asked = [(name, text, seed) for name in names for text in ("ab", "abc", "xy") for seed in range(3)]
    return await asyncio.gather(
        *(engine.complete(text_prompt(text), model=name, seed=seed) for name, text, seed in asked)
    )


def learner_logprobs(policy: PolicyModel, name: str, response: ModelResponse) -> list[float]:
    plan = build_plan([response.prompt_token_ids or []], [response.completion_token_ids or []])
    with torch.no_grad(), policy.adapter(name):
        logprobs_C = plan_logprobs(policy, plan)
    return logprobs_C[torch.from_numpy(plan.prediction_S)].tolist()


@pytest.mark.parametrize("architecture", ARCHITECTURES)
async def test_the_engine_serves_each_policy_its_own_log_probabilities_while_both_are_trained(architecture):
    policy = make_policy(architecture)
    learners = make_learners(policy, max_mismatch=1e-4)
    engine = EmbeddedEngine(policy, max_tokens=6)
    for version in range(2):
        for name in POLICIES:
            engine.publish(name, name, version)
        responses = await ask_all(engine, list(POLICIES))
        half = len(responses) // 2
        of_policy = {"proposer": responses[:half], "solver": responses[half:]}
        assert answers(of_policy["proposer"]) != answers(of_policy["solver"])
        for name in POLICIES:
            for response in of_policy[name]:
                expected = learner_logprobs(policy, name, response)
                assert response.completion_logprobs == pytest.approx(expected, abs=2e-5)
        for name in POLICIES:  # the mismatch would stop it if the other's weights had been served
            learners[name].update([record_of(response) for response in of_policy[name]])


def answers(responses: list[ModelResponse]) -> list[list[int] | None]:
    return [response.completion_token_ids for response in responses]


def record_of(response: ModelResponse) -> TrainingRecord:
    return make_record(
        response.prompt_token_ids or [],
        response.completion_token_ids or [],
        advantage=1.0,
        logprobs=response.completion_logprobs,
        policy_version=response.policy_version or 0,
    )
