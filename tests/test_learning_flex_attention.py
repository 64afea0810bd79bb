"""Attention on GPUs, as far as a CPU goes: it has no backward pass of flex_attention."""

from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from selfplay.core import pass_sizes
from selfplay.learning import attention_choice
from selfplay.learning.attention_choice import choose_attention
from selfplay.learning.flex_attention import FlexAttention
from selfplay.learning.logprobs import PassLimits, plan_logprobs
from selfplay.learning.memory import KeptMemory
from selfplay.learning.model_attention import DotProduct
from selfplay.learning.policy import TRAINED
from selfplay.learning.tree_attention import RunAttention
from selfplay.learning.trie import build_plan
from test_learning_tree_attention import plans, windows
from tiny_models import tiny_policy

pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
CPU = torch.device("cpu")

products = st.sampled_from(
    [
        DotProduct(0.3),
        DotProduct(0.3, soft_cap=2.0),
        DotProduct(0.3, sinks_H=torch.tensor([0.5, -1.0, 2.0, 0.0])),
    ]
)


@settings(max_examples=60, deadline=None)
@given(plans, windows, products)
def test_flex_attention_equals_attention_in_runs(plan, window, product):
    torch.manual_seed(0)
    inputs = [torch.randn(heads, plan.num_tokens, 16) for heads in (4, 2, 2)]
    found = FlexAttention(plan, torch.float32, CPU)(0, *inputs, window, product)
    expected = RunAttention(plan, torch.float32, CPU)(0, *inputs, window, product)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("architecture", ["llama", "qwen3"])
def test_sections_with_flex_attention_have_the_log_probabilities_of_the_whole_plan(architecture):
    policy = tiny_policy(architecture)
    plan = build_plan([list(range(30))] * 3, [[answer, *range(40, 60)] for answer in range(3)])
    with torch.no_grad():
        expected = plan_logprobs(policy, plan)
        for max_tokens in (4096, 13):
            limits = PassLimits(max_tokens, KeptMemory(policy, TRAINED), FlexAttention)
            torch.testing.assert_close(
                plan_logprobs(policy, plan, limits=limits), expected, atol=1e-5, rtol=0
            )


def test_a_learner_uses_flex_attention_only_where_it_runs_and_agrees():
    policy = tiny_policy()
    assert choose_attention(policy) is RunAttention
    with patch.object(pass_sizes, "FLASH_DEVICES", {"cpu"}):
        assert choose_attention(policy) is RunAttention  # it has no backward pass on CPUs

        class Wrong(RunAttention):
            def __call__(self, *arguments):
                return -super().__call__(*arguments)

        with patch.object(attention_choice, "FlexAttention", Wrong):
            assert choose_attention(policy) is RunAttention
    assert all(parameter.grad is None for parameter in policy.model.parameters())
