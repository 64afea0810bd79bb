"""The limits of a learner's passes, and the execution of tree attention that is fastest on its device.

On CPUs it is attention in runs. On GPUs, the first learner of a model measures: flex_attention has to compute
the same gradients in less time; otherwise, or if it cannot be used there, it is not. What is measured is a
gradient as the learner computes it, in sections of its size and within its memory. Times vary, so a repeated
run may choose otherwise, and the two round differently; the model's notes say what was chosen.
"""

from dataclasses import replace
from statistics import median
from time import perf_counter

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from sparring.core import pass_sizes
from sparring.core.errors import first_line
from sparring.learn.flex_attention import COMPILE_ERRORS, FlexAttention, TreeAttention
from sparring.learn.logprobs import PassLimits, plan_logprobs
from sparring.learn.memory import KeptMemory
from sparring.learn.policy import PolicyModel
from sparring.learn.tree_attention import RunAttention
from sparring.learn.trie import TreePlan, build_plan

ANSWERS, PROMPT_TOKENS, ANSWER_TOKENS = 12, 512, 256
"""The tree that is measured: answers to one prompt."""
LEAST_COSINE = 0.999
"""Gradients of two executions in bfloat16 agree at least so far."""
ROUNDS = 3
"""Timed computations of each execution, in turn, after a first one that compiles."""


def learner_limits(policy: PolicyModel, adapter: str, max_tokens: int) -> PassLimits:
    """Return the limits of a learner of an adapter, with what is measured on the model's device."""
    limits = PassLimits(max_tokens, KeptMemory(policy, adapter))
    limits.attention = choose_attention(policy, adapter, limits)
    return limits


def choose_attention(policy: PolicyModel, adapter: str, limits: PassLimits) -> TreeAttention:
    """Return the execution for learners of this model; the first call on a GPU measures and notes it."""
    if policy.device.type not in pass_sizes.FLASH_DEVICES:
        return RunAttention
    if policy.tree_attention is None:
        try:
            _choose(policy, adapter, limits)
        except (*COMPILE_ERRORS, RuntimeError) as error:  # of the device, for example too little memory
            policy.use_runs(f"measuring failed with {type(error).__name__}: {first_line(error)}")
    return policy.tree_attention or RunAttention


def _choose(policy: PolicyModel, adapter: str, limits: PassLimits) -> None:
    plan = _tree(policy.context_length)
    executions = [replace(limits, attention=one) for one in (RunAttention, FlexAttention)]
    in_runs, by_kernel = (_gradient(policy, plan, adapter, one) for one in executions)
    if policy.tree_attention is not None:
        return  # the kernel could not be compiled
    cosine = float(cosine_similarity(in_runs, by_kernel, dim=0))
    if not cosine >= LEAST_COSINE:
        policy.use_runs(f"the cosine of their gradients is {cosine:.4f}")
        return
    rounds = [[_seconds(policy, plan, adapter, one) for one in executions] for _ in range(ROUNDS)]
    slow, fast = (median(seconds) for seconds in zip(*rounds, strict=True))
    if fast >= slow:
        policy.use_runs(f"it takes {fast / slow:.2f} times as long here")
        return
    policy.tree_attention = FlexAttention
    policy.notes.append(
        "attention while learning is computed by flex_attention: "
        f"a gradient takes {fast / slow:.2f} times as long as in runs"
    )


def _tree(context_length: int) -> TreePlan:
    prompt = [number % 100 for number in range(min(PROMPT_TOKENS, context_length // 2))]
    length = min(ANSWER_TOKENS, context_length // 2)
    answers = [[answer, *(number % 90 for number in range(length - 1))] for answer in range(ANSWERS)]
    return build_plan([prompt] * ANSWERS, answers)


def _seconds(policy: PolicyModel, plan: TreePlan, adapter: str, limits: PassLimits) -> float:
    started = perf_counter()
    float(_gradient(policy, plan, adapter, limits)[0])  # waits for the device
    return perf_counter() - started


def _gradient(policy: PolicyModel, plan: TreePlan, adapter: str, limits: PassLimits) -> Tensor:
    weights = policy.adapter_parameters(adapter)
    own = [weight.grad for weight in weights]
    for weight in weights:
        weight.grad = None
    try:
        with torch.enable_grad(), policy.adapter(adapter):
            torch.autograd.backward(plan_logprobs(policy, plan, limits=limits).mean())
        found = [torch.zeros_like(one) if one.grad is None else one.grad for one in weights]
    finally:
        for weight, gradient in zip(weights, own, strict=True):
            weight.grad = gradient
    return torch.cat([one.flatten() for one in found])
