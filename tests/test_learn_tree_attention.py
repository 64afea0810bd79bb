from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sparring.core import pass_sizes
from sparring.learn import tree_attention
from sparring.learn.model_attention import DotProduct
from sparring.learn.tree_attention import RunAttention, split_runs, whole
from sparring.learn.trie import TreePlan, build_plan
from tree_plans import plans, windows

overheads = st.sampled_from([-(10**9), 0, 6, 6000])
devices = st.sampled_from([frozenset(), frozenset({"cpu"})])


def sees(plan: TreePlan, window: int | None = None) -> torch.Tensor:
    """Return whether query i attends to key j, which is i or a near ancestor; unlike the code, by parents."""
    mask_TT = torch.zeros(plan.num_tokens, plan.num_tokens, dtype=torch.bool)
    for query in range(plan.num_tokens):
        key, seen = query, 0
        while key >= 0 and seen != window:
            mask_TT[query, key] = True
            key, seen = int(plan.parents_T[key]), seen + 1
    return mask_TT


def dense_attention(plan, query_HTd, key_GTd, value_GTd, scale, window):
    repeat = query_HTd.shape[0] // key_GTd.shape[0]
    key_HTd, value_HTd = (x.repeat_interleave(repeat, dim=0) for x in (key_GTd, value_GTd))
    scores_HTT = (query_HTd @ key_HTd.transpose(1, 2)) * scale
    scores_HTT = scores_HTT.masked_fill(~sees(plan, window), float("-inf"))
    return (torch.softmax(scores_HTT, dim=-1) @ value_HTd).transpose(0, 1)


@settings(deadline=None)
@given(plans, overheads)
def test_runs_cover_all_nodes_once_in_order(plan, overhead):
    with patch.object(tree_attention, "RUN_OVERHEAD_PAIRS", overhead):
        runs = split_runs(plan, whole(plan))
    assert [node for start, stop in runs for node in range(start, stop)] == list(range(plan.num_tokens))
    assert all(start < stop for start, stop in runs)


@given(plans, overheads, windows, devices)
def test_attention_in_runs_equals_dense_masked_attention_with_gradients(plan, overhead, window, flash):
    torch.manual_seed(0)
    T = plan.num_tokens
    inputs = [torch.randn(heads, T, 8, dtype=torch.float64, requires_grad=True) for heads in (4, 2, 2)]
    weights = torch.randn(T, 4, 8, dtype=torch.float64)
    with (
        patch.object(tree_attention, "RUN_OVERHEAD_PAIRS", overhead),
        patch.object(pass_sizes, "FLASH_DEVICES", flash),
    ):
        attend = RunAttention(plan, torch.float64, torch.device("cpu"))
        output_THd = attend(0, *inputs, window, DotProduct(0.3))
    expected_THd = dense_attention(plan, *inputs, 0.3, window)
    torch.testing.assert_close(output_THd, expected_THd)
    gradients = torch.autograd.grad((output_THd * weights).sum(), inputs)
    expected = torch.autograd.grad((expected_THd * weights).sum(), inputs)
    torch.testing.assert_close(gradients, expected)


def test_on_gpus_an_answer_after_its_prompt_needs_no_mask():
    plan = build_plan([[5] * 50] * 3, [[answer] + [7] * 80 for answer in range(3)])
    with (
        patch.object(tree_attention, "RUN_OVERHEAD_PAIRS", 0),
        patch.object(pass_sizes, "FLASH_DEVICES", {"cpu"}),
    ):
        attend = RunAttention(plan, torch.float32, torch.device("cpu"))
        assert len(attend.runs) == 3
        assert all(attend.mask(run, None) is None for run in attend.runs)
        assert all(attend.mask(run, 60) is not None for run in attend.runs)


def test_short_answers_and_their_shared_prompt_are_one_run():
    plan = build_plan([list(range(100))] * 8, [[answer, 1] for answer in range(8)])
    assert split_runs(plan, whole(plan)) == [(0, plan.num_tokens)]


@pytest.mark.parametrize("overhead", [0, 10**9])
def test_long_answers_after_a_shared_prompt_are_separate_runs_unless_runs_are_expensive(overhead):
    plan = build_plan([[5] * 50] * 3, [[answer] + [7] * 80 for answer in range(3)])
    with patch.object(tree_attention, "RUN_OVERHEAD_PAIRS", overhead):
        runs = split_runs(plan, whole(plan))
    assert len(runs) == (3 if overhead == 0 else 1)
