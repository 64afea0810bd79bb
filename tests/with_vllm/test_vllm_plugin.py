"""The matrix products of the CPU plugin, compared with products of one row at a time."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from vllm.platforms import current_platform

from sparring.engine import vllm_plugin
from sparring.engine.vllm_plugin import GroupedLora, grouped

SLOTS, RANK, INPUTS, SLICES = 3, 2, 5, (4, 6)


def make_wrapper(indices: list[int]) -> GroupedLora:
    """Return a wrapper for a batch whose row i is a separate request that uses slot ``indices[i]``."""
    wrapper = GroupedLora(64, 64, "cpu")
    wrapper._token_groups = wrapper._sampler_groups = grouped(torch.tensor(indices))
    wrapper.indices_len[1] = len(indices)
    return wrapper


def random_stacks(outputs: int) -> tuple[Tensor, Tensor]:
    return torch.randn(SLOTS, 1, RANK, INPUTS), torch.randn(SLOTS, 1, outputs, RANK)


@settings(deadline=None)
@given(st.lists(st.integers(-1, SLOTS - 1), min_size=1, max_size=12), st.integers(0, 9))
def test_each_row_of_a_linear_layer_gets_only_its_own_adapter(indices, seed):
    torch.manual_seed(seed)
    stacks = [random_stacks(outputs) for outputs in SLICES]
    x, y = torch.randn(len(indices), INPUTS), torch.randn(len(indices), sum(SLICES))
    expected = y.clone()
    for row, slot in enumerate(indices):
        if slot >= 0:
            expected[row] += torch.cat([0.5 * b[slot, 0] @ (a[slot, 0] @ x[row]) for a, b in stacks])
    a_stacks, b_stacks = zip(*stacks, strict=True)
    make_wrapper(indices).add_lora_linear(y, x, a_stacks, b_stacks, 0.5, SLICES)
    torch.testing.assert_close(y, expected)


@settings(deadline=None)
@given(st.lists(st.integers(-1, SLOTS - 1), min_size=1, max_size=12), st.integers(0, 9))
def test_each_row_of_logits_gets_only_its_own_adapter(indices, seed):
    torch.manual_seed(seed)
    a, b = random_stacks(7)
    x, y = torch.randn(len(indices), INPUTS), torch.randn(len(indices), 7)
    expected = y.clone()
    for row, slot in enumerate(indices):
        if slot >= 0:
            expected[row] += b[slot, 0] @ (a[slot, 0] @ x[row])
    make_wrapper(indices).add_lora_logits(y, x, a, b, 1.0)
    torch.testing.assert_close(y, expected)


def test_logits_are_unchanged_if_no_adapter_changes_the_output_layer():
    a, _ = random_stacks(7)
    y = torch.randn(9, 7)
    before = y.clone()
    make_wrapper([0, -1]).add_lora_logits(y, torch.randn(9, INPUTS), a, torch.zeros(SLOTS, 1, 7, RANK), 1.0)
    assert torch.equal(y, before)


def test_vllm_uses_the_wrapper_on_a_cpu_even_if_it_is_registered_twice():
    vllm_plugin.register()
    vllm_plugin.register()
    assert current_platform.is_cpu()
    assert current_platform.get_punica_wrapper() == "sparring.engine.vllm_plugin.GroupedLora"
