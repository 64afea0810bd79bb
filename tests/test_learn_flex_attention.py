"""Attention on GPUs, as far as a CPU goes: it has no backward pass of flex_attention."""

from functools import partial
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._dynamo.exc import FailOnRecompileLimitHit
from torch._dynamo.testing import CompileCounter

from matrices import first_of
from sparring.core import pass_sizes
from sparring.learn import attention_choice, flex_attention
from sparring.learn.attention_choice import learner_limits
from sparring.learn.flex_attention import FlexAttention
from sparring.learn.logprobs import PassLimits, plan_logprobs
from sparring.learn.memory import KeptMemory
from sparring.learn.model_attention import DotProduct
from sparring.learn.policy import TRAINED
from sparring.learn.tree_attention import RunAttention, sections_of, whole
from sparring.learn.trie import build_plan
from tiny_models import tiny_policy
from tree_plans import plans, windows

pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
CPU = torch.device("cpu")

products = st.sampled_from(
    [
        DotProduct(0.3),
        DotProduct(0.3, soft_cap=2.0),
        DotProduct(0.3, sinks_H=torch.tensor([0.5, -1.0, 2.0, 0.0])),
    ]
)


@settings(max_examples=12, deadline=None)
@given(plans, windows, products)
def test_flex_attention_equals_attention_in_runs(plan, window, dot_product):
    torch.manual_seed(0)
    inputs = [torch.randn(heads, plan.num_tokens, 16) for heads in (4, 2, 2)]
    found = FlexAttention(plan, torch.float32, CPU)(0, *inputs, window, dot_product)
    expected = RunAttention(plan, torch.float32, CPU)(0, *inputs, window, dot_product)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("architecture", first_of(["llama", "qwen3"]))
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


@pytest.fixture
def cpu_is_a_gpu(monkeypatch):
    """Let learners measure on a CPU, with attention in runs in place of flex_attention."""
    monkeypatch.setattr(pass_sizes, "FLASH_DEVICES", {"cpu"})

    def use(kernel):
        monkeypatch.setattr(attention_choice, "FlexAttention", kernel)

    return use


def clock(*seconds):
    """A clock by which one computation after the other takes so long."""
    return (reading for start, one in enumerate(seconds) for reading in (100 * start, 100 * start + one))


class Kernel(RunAttention):
    made = 0

    def __init__(self, *arguments):
        super().__init__(*arguments)
        type(self).made += 1


def raising(error):
    class Failing(RunAttention):
        def __call__(self, layer, *arguments):
            if layer == 1:
                raise error
            return super().__call__(layer, *arguments)

    return Failing


def test_on_cpus_nothing_is_measured():
    policy = tiny_policy()
    assert learner_limits(policy, TRAINED, 2048).attention is RunAttention
    assert policy.notes == []


@pytest.mark.parametrize(
    ("seconds", "chosen", "note"),
    [
        ((4, 2, 4, 9, 4, 2), Kernel, "by flex_attention: a gradient takes 0.50 times as long as in runs"),
        ((4, 5, 9, 5, 4, 1), RunAttention, "in runs, not by flex_attention: it takes 1.25 times as long"),
    ],
)
def test_the_faster_execution_is_chosen_and_named(cpu_is_a_gpu, monkeypatch, seconds, chosen, note):
    cpu_is_a_gpu(Kernel)
    monkeypatch.setattr(attention_choice, "perf_counter", clock(*seconds).__next__)
    policy = tiny_policy()
    assert learner_limits(policy, TRAINED, 2048).attention is chosen
    assert len(policy.notes) == 1
    assert note in policy.notes[0]
    assert all(parameter.grad is None for parameter in policy.model.parameters())


def test_it_is_measured_once_for_all_learners_of_a_model(cpu_is_a_gpu):
    cpu_is_a_gpu(Kernel)
    policy = tiny_policy()
    first = learner_limits(policy, TRAINED, 2048)
    Kernel.made = 0
    second = learner_limits(policy, TRAINED, 2048)
    assert second.attention is first.attention
    assert Kernel.made == 0
    assert len(policy.notes) == 1


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (torch.OutOfMemoryError("no room"), "measuring failed with OutOfMemoryError: no room"),
        (NotImplementedError("no backward pass"), "measuring failed with NotImplementedError: no backward"),
        (FailOnRecompileLimitHit("too many variants"), "FailOnRecompileLimitHit: too many variants"),
    ],
)
def test_runs_are_used_where_flex_attention_fails_and_the_reason_is_named(cpu_is_a_gpu, error, said):
    cpu_is_a_gpu(raising(error))
    policy = tiny_policy()
    assert learner_limits(policy, TRAINED, 2048).attention is RunAttention
    assert len(policy.notes) == 1
    assert said in policy.notes[0]
    assert all(parameter.grad is None for parameter in policy.model.parameters())


def test_other_errors_are_not_hidden(cpu_is_a_gpu):
    cpu_is_a_gpu(raising(ValueError("a fault of this package")))
    with pytest.raises(ValueError, match="a fault of this package"):
        learner_limits(tiny_policy(), TRAINED, 2048)


def test_runs_are_used_where_the_gradients_differ(cpu_is_a_gpu):
    class Wrong(RunAttention):
        def __call__(self, *arguments):
            return -super().__call__(*arguments)

    cpu_is_a_gpu(Wrong)
    policy = tiny_policy()
    assert learner_limits(policy, TRAINED, 2048).attention is RunAttention
    assert "the cosine of their gradients is" in policy.notes[0]


@pytest.mark.parametrize("max_tokens", [4096, 13])
def test_a_pass_whose_kernel_cannot_be_compiled_is_computed_in_runs(max_tokens):
    plan = build_plan([list(range(30))] * 3, [[answer, *range(40, 60)] for answer in range(3)])
    gradients = []
    for attention in (RunAttention, raising(FailOnRecompileLimitHit("too many variants"))):
        policy = tiny_policy()
        limits = PassLimits(max_tokens, KeptMemory(policy, TRAINED), attention)
        plan_logprobs(policy, plan, limits=limits).sum().backward()
        gradients.append([parameter.grad for parameter in policy.adapter_parameters()])
        assert limits.attention is RunAttention
    assert all(map(torch.equal, *gradients))
    assert len(policy.notes) == 1
    assert "FailOnRecompileLimitHit: too many variants" in policy.notes[0]


@pytest.mark.slow
def test_the_kernel_has_few_variants_whatever_the_tree_its_sections_and_windows(monkeypatch):
    counter = CompileCounter()
    monkeypatch.setattr(pass_sizes, "FLASH_DEVICES", {"cpu"})
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=counter))
    flex_attention._compiled.cache_clear()
    for gradients, (answers, length), window in product(
        (False, True), ((1, 20), (3, 40), (2, 300), (1, 500)), (None, 1, 7)
    ):
        plan = build_plan([list(range(length))] * answers, [[one, *range(40)] for one in range(answers)])
        for section in (*sections_of(plan, 150), whole(plan)):
            keys = len(section.above_K) + section.size
            inputs = [torch.randn(4, section.size, 16), torch.randn(2, keys, 16), torch.randn(2, keys, 16)]
            with torch.set_grad_enabled(gradients):
                found, expected = (
                    one(plan, torch.float32, CPU, section)(0, *inputs, window, DotProduct(0.3))
                    for one in (FlexAttention, RunAttention)
                )
            torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    flex_attention._compiled.cache_clear()
    assert counter.frame_count <= 6  # torch's limit is 8 for each kind of pass


def test_one_variant_too_many_is_an_error(monkeypatch):
    monkeypatch.setattr(pass_sizes, "FLASH_DEVICES", {"cpu"})
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=CompileCounter()))
    flex_attention._compiled.cache_clear()
    plan = build_plan([list(range(20))], [[1]])
    with torch._dynamo.config.patch(recompile_limit=1), pytest.raises(FailOnRecompileLimitHit):  # noqa: PT012
        for size in (8, 16, 32):
            inputs = [torch.randn(2, plan.num_tokens, size) for _ in range(3)]
            FlexAttention(plan, torch.float32, CPU)(0, *inputs, None, DotProduct(0.3))
    flex_attention._compiled.cache_clear()
