"""When layers are recomputed, and that this changes only memory and time."""

import math

import pytest
import torch

from autograd_memory import SHARED, SINGLE, kept_by_autograd
from family_models import family_model
from matrices import first_of
from sparring.learn import memory
from sparring.learn.algorithms import Reinforce
from sparring.learn.logprobs import PassLimits, plan_logprobs
from sparring.learn.memory import KeptMemory, memory_of
from sparring.learn.policy import TRAINED, LoraSettings, PolicyModel
from sparring.learn.tree_attention import sections_of
from sparring.learn.trie import TreePlan, build_plan
from tiny_models import ARCHITECTURES, algorithm_of, make_record, tiny_policy

CPU = torch.device("cpu")


class OneOfTwo:
    """A learner of a group of two, as far as a sharded base asks when it joins."""

    rank = 0
    size = 2


LONG = build_plan([[i % 200 for i in range(250)]], [[1]])


def share_that_is_foreseen(policy: PolicyModel, plan: TreePlan) -> float:
    return KeptMemory(policy, TRAINED).of(plan) / kept_by_autograd(policy, plan, recomputed=False)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_memory_that_a_pass_keeps_is_predicted_from_two_small_passes(architecture, dtype):
    policy = tiny_policy(architecture, dtype=dtype)
    assert 0.95 < share_that_is_foreseen(policy, SHARED) < 1.1
    for unmasked in (SINGLE, LONG):  # unlike these, the small passes need a mask
        assert 0.95 < share_that_is_foreseen(policy, unmasked) < 1.45


@pytest.mark.parametrize("family", ["Gemma 2", "gpt-oss", "DeepSeek-V3", "Qwen3-MoE"])
def test_the_memory_that_a_pass_keeps_is_predicted_for_models_that_keep_scores_or_have_experts(family):
    policy = PolicyModel(str(family_model(family)), LoraSettings(4, 8.0))
    assert 0.9 < share_that_is_foreseen(policy, SHARED) < 1.2
    assert 0.9 < share_that_is_foreseen(policy, LONG) < 1.3


@pytest.mark.parametrize("dtype", first_of([torch.bfloat16, torch.float32]))
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("max_batch_tokens", [40, 2048])
def test_gradients_are_bit_identical_however_much_is_recomputed(architecture, dtype, max_batch_tokens):
    gradients = []
    for limit in (0.0, 100_000.0, math.inf):
        policy = tiny_policy(architecture, dtype=dtype)
        algorithm = algorithm_of(Reinforce, regulariser="uniform")
        algorithm.initialize(policy, max_generation_len=4, max_batch_tokens=max_batch_tokens)
        algorithm.limits.memory.limit = limit
        records = [
            make_record([*range(60), seat, *range(seat)], [3, 4], 0.5 - seat % 2, alternatives=[[3, 4], [5]])
            for seat in range(100, 140, 5)
        ]
        algorithm.update(algorithm.prepare_batch(records), regulariser_weight=0.1)
        gradients.append([parameter.grad for parameter in policy.adapter_parameters()])
    for recomputed, partly, kept in zip(*gradients, strict=True):
        assert torch.equal(recomputed, kept)
        assert torch.equal(partly, kept)


@pytest.mark.parametrize("kept", [0, 1, 2, 3])
def test_of_a_pass_in_sections_the_last_ones_are_kept_as_far_as_memory_allows(monkeypatch, kept):
    policy = tiny_policy()
    limits = PassLimits(20, KeptMemory(policy, TRAINED))
    sections = sections_of(SINGLE, limits.max_tokens)
    assert len(sections) > 3
    last = sections[len(sections) - kept :]
    limits.memory.limit = sum(limits.memory.of(SINGLE, one) for one in last)
    passes, run = [], policy.hidden_states
    monkeypatch.setattr(policy, "hidden_states", lambda *args: passes.append(1) or run(*args))
    with policy.adapter(TRAINED):
        plan_logprobs(policy, SINGLE, limits=limits).sum().backward()
    assert len(passes) == 2 * len(sections) - kept


def test_layers_are_recomputed_if_a_pass_would_keep_more_than_the_limit():
    kept = KeptMemory(tiny_policy(), TRAINED)
    kept.limit = kept.of(SHARED)
    assert not kept.is_short_for(SHARED)
    kept.limit -= 1
    assert kept.is_short_for(SHARED)
    assert not kept.is_short_for(SINGLE)


def test_the_parts_of_a_sharded_base_that_are_on_the_device_take_of_a_passs_room(monkeypatch, tmp_path):
    policy = tiny_policy(shard_base=True)
    whole = policy.sharded.nbytes
    left = sum(weight.nbytes for weight in policy.model.parameters())
    limit = tmp_path / "memory.max"
    limit.write_text(f"{whole + left + 4_000_000}\n")
    monkeypatch.setattr(memory, "CONTAINER_LIMITS", [str(limit)])
    kept = KeptMemory(policy, TRAINED)
    assert kept.room == 1_000_000
    policy.sharded.join(OneOfTwo())
    part = policy.sharded.nbytes
    assert part < 0.51 * whole
    assert kept.room == 1_000_000 + (whole - part) / 4
    monkeypatch.setattr(policy.sharded, "_device", torch.device("cuda"))  # where the parts are not
    assert kept.room == 1_000_000 + whole / 4


def test_a_container_without_a_limit_may_use_the_machines_memory(monkeypatch, tmp_path):
    monkeypatch.setattr(memory, "CONTAINER_LIMITS", [])
    machine = memory_of(CPU)
    assert machine > 1e8
    unlimited = tmp_path / "memory.max"
    unlimited.write_text("max\n")
    monkeypatch.setattr(memory, "CONTAINER_LIMITS", [str(unlimited), str(tmp_path / "nothing")])
    assert memory_of(CPU) == machine
    unlimited.write_text(str(machine + 10**12))
    assert memory_of(CPU) == machine
