"""The memory model counts what a policy, its optimizer and autograd really hold."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import memory_model
from autograd_memory import SHARED, SINGLE, kept_by_autograd
from memory_formulas import (
    ALL_LINEAR,
    SHAPES,
    LoraShape,
    ModelShape,
    PassSize,
    adapter_parameters,
    as_run,
    base_bytes,
    kept_bytes,
    largest_pass,
    needed_together,
    play_memory,
    training_memory,
)
from sparring.core import InputError
from sparring.learn.algorithms import Reinforce
from sparring.learn.learner import Learner
from sparring.learn.policy import LoraSettings, PolicyModel
from sparring.learn.tree_attention import RunAttention
from sparring.learn.trie import TreePlan, build_plan
from tiny_models import ARCHITECTURES, constant, make_record, tiny_model, tiny_policy

PUBLISHED = {  # weights of the models as they are distributed, tied matrices once
    "SmolLM2-135M": 134_515_008,
    "Qwen3-0.6B": 596_049_920,
    "Qwen3-1.7B": 1_720_574_976,
    "Qwen3-4B": 4_022_468_096,
    "Qwen3-8B": 8_190_735_360,
    "Llama-3.2-1B": 1_235_814_400,
    "Llama-3.2-3B": 3_212_749_824,
}
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def shape_of(architecture: str, tied: bool = True) -> ModelShape:
    return ModelShape.from_config(json.loads((tiny_model(architecture, tied) / "config.json").read_text()))


def nbytes(tensors) -> int:
    return sum(tensor.nbytes for tensor in tensors)


def size_of(plan: TreePlan, policy: PolicyModel) -> PassSize:
    attend = RunAttention(plan, policy.dtype, policy.device)
    runs = attend.runs
    return PassSize(
        plan.num_tokens,
        copied_keys=sum(len(run.context_K) for run in runs),
        score_dtype="float32",
        mask_entries=sum(mask.numel() for run in runs if (mask := attend.mask(run, None)) is not None),
    )


@pytest.mark.parametrize("name", SHAPES)
def test_parameters_of_public_models_are_the_published_ones(name):
    assert SHAPES[name].parameters == PUBLISHED[name]


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_base_is_as_large_as_a_loaded_model(architecture, tied):
    for name, dtype in DTYPES.items():
        policy = tiny_policy(architecture, tied=tied, dtype=dtype)
        weights = [weight for key, weight in policy.model.named_parameters() if "lora_" not in key]
        assert base_bytes(shape_of(architecture, tied), name) == nbytes(weights)


@pytest.mark.parametrize("targets", [ALL_LINEAR, ("q_proj", "v_proj"), ("down_proj",)])
@pytest.mark.parametrize("rank", [1, 8])
def test_an_adapter_is_as_large_as_pefts(rank, targets):
    policy = PolicyModel(
        str(tiny_model("qwen3")), LoraSettings(rank, 8.0, list(targets)), dtype=torch.bfloat16
    )
    expected = 4 * adapter_parameters(shape_of("qwen3"), LoraShape(rank, targets))
    assert nbytes(policy.adapter_parameters()) == expected


def test_gradient_moments_and_average_are_as_large_as_the_learners():
    policy = tiny_policy()
    learner = Learner(policy, Reinforce(), constant(average_decay=0.9))
    learner.update([make_record([1, 2, 3], [4, 5])])
    memory = training_memory(shape_of("llama"), LoraShape(4), PassSize(4), "float32", average=True)
    parameters = policy.adapter_parameters()
    assert memory.gradient == nbytes(parameter.grad for parameter in parameters)
    states = [learner.optimizer.state[parameter] for parameter in parameters]
    assert memory.moments == nbytes(state[name] for state in states for name in ("exp_avg", "exp_avg_sq"))
    assert memory.average == nbytes(policy.adapter_parameters(learner.result))


@pytest.mark.parametrize("plan", [SINGLE, SHARED], ids=["single", "shared"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_what_is_kept_for_the_gradient_is_what_autograd_keeps(architecture, dtype, plan):
    policy = tiny_policy(architecture, dtype=DTYPES[dtype])
    size = size_of(plan, policy)
    expected = kept_bytes(shape_of(architecture), LoraShape(4), size, dtype)
    assert kept_by_autograd(policy, plan, recomputed=False) == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize("targets", [("q_proj", "v_proj"), ("o_proj", "gate_proj")])
@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_kept_depends_on_the_target_modules(dtype, targets):
    policy = PolicyModel(str(tiny_model("llama")), LoraSettings(8, 8.0, list(targets)), dtype=DTYPES[dtype])
    expected = kept_bytes(
        shape_of("llama"), LoraShape(8, targets), PassSize(SINGLE.num_tokens, score_dtype="float32"), dtype
    )
    assert kept_by_autograd(policy, SINGLE, recomputed=False) == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_recomputed_pass_keeps_the_layers_inputs(dtype):
    policy = tiny_policy("llama", dtype=DTYPES[dtype])
    plan = build_plan([[i % 200 for i in range(1500)]], [[1]])
    expected = kept_bytes(
        shape_of("llama"), LoraShape(4), PassSize(1500, recomputed=True, score_dtype="float32"), dtype
    )
    assert kept_by_autograd(policy, plan, recomputed=True) == pytest.approx(expected, rel=0.15)


@settings(deadline=None)
@given(
    st.sampled_from(sorted(SHAPES)),
    st.sampled_from(sorted(DTYPES)),
    st.integers(16, 20_000),
    st.integers(1, 128),
)
def test_more_of_anything_never_needs_less(name, dtype, tokens, rank):
    shape, lora, size = SHAPES[name], LoraShape(rank), PassSize(tokens)
    total = training_memory(shape, lora, size, dtype).total
    assert training_memory(shape, LoraShape(rank + 1), size, dtype).total > total
    assert training_memory(shape, lora, size, dtype, average=True).total > total
    assert training_memory(shape, lora, replace(size, copied_keys=100), dtype).total >= total
    assert training_memory(shape, lora, replace(size, mask_entries=100), dtype).total > total
    assert training_memory(shape, lora, replace(size, tokens=tokens + 1), dtype).total > total
    assert training_memory(shape, lora, size, "float32").base == 2 * base_bytes(shape, "bfloat16")


@pytest.mark.parametrize("name", SHAPES)
def test_recomputation_needs_less_than_the_same_pass_without(name):
    kept, recomputed = (
        kept_bytes(SHAPES[name], LoraShape(32), PassSize(1536, recomputed=again), "bfloat16")
        for again in (False, True)
    )
    assert recomputed < kept / 10


@settings(deadline=None)
@given(st.sampled_from(sorted(SHAPES)), st.integers(1, 80), st.booleans())
def test_the_largest_pass_fits_and_so_do_all_smaller_ones(name, gigabytes, shared):
    shape, lora, memory = SHAPES[name], LoraShape(32), gigabytes * 10**9
    play = play_memory(shape, "bfloat16", max_cached_tokens=4096) if shared else None
    largest = largest_pass(shape, lora, "bfloat16", memory, play=play, most=4096)

    def needed(tokens: int) -> int:
        size = as_run(shape, lora, "bfloat16", memory, tokens)
        return needed_together(training_memory(shape, lora, size, "bfloat16"), play)

    assert all(needed(tokens) <= memory for tokens in range(256, largest + 1, 256))
    assert largest == 4096 or needed(largest + 256) > memory


def test_the_cache_of_the_engine_is_keys_and_values_of_all_layers():
    shape = SHAPES["Qwen3-4B"]
    one = play_memory(shape, "bfloat16", max_cached_tokens=1000).cache
    assert one == 2 * 1000 * 36 * 2 * 8 * 128 * 2  # room for twice as many tokens
    assert play_memory(shape, "float32", max_cached_tokens=1000).cache == 2 * one


def test_bad_input_is_named():
    with pytest.raises(InputError, match="dtype"):
        base_bytes(SHAPES["Qwen3-4B"], "int4")
    with pytest.raises(InputError, match="target_modules"):
        adapter_parameters(SHAPES["Qwen3-4B"], LoraShape(8, ["lm_head"]))
    with pytest.raises(InputError, match="no hidden_size"):
        ModelShape.from_config({"num_attention_heads": 4})


def test_the_page_on_memory_shows_what_the_model_computes(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["memory_model.py", "--table"])
    memory_model.main()
    printed = capsys.readouterr().out
    assert printed.count("\n") > 5
    assert printed in (Path(__file__).parents[1] / "docs" / "memory.md").read_text()
