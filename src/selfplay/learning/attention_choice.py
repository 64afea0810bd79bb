"""The execution of tree attention that is fastest on a device, measured when a learner starts.

On CPUs it is attention in runs. On GPUs, flex_attention has to compute the same gradients in less time;
otherwise, or if it cannot be compiled there, it is not used.
"""

from collections.abc import Callable
from time import perf_counter

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from selfplay.core import pass_sizes
from selfplay.learning.flex_attention import FlexAttention
from selfplay.learning.policy import PolicyModel
from selfplay.learning.tree_attention import RunAttention
from selfplay.learning.trie import TreePlan, build_plan

TreeAttention = type[RunAttention] | type[FlexAttention]

ANSWERS, PROMPT_TOKENS, ANSWER_TOKENS = 12, 512, 256
"""The tree that is measured: answers to one prompt."""
LEAST_COSINE = 0.999
"""Gradients of two executions in bfloat16 agree at least so far."""


def choose_attention(policy: PolicyModel) -> TreeAttention:
    """Return the execution that a learner of this model uses."""
    if policy.device.type not in pass_sizes.FLASH_DEVICES:
        return RunAttention
    plan = _tree(policy.context_length)
    expected, in_runs = _measured(policy, plan, RunAttention)
    try:
        found, with_flex = _measured(policy, plan, FlexAttention)
    except Exception:  # noqa: BLE001 (a compiler's errors have no common type)
        return RunAttention
    agree = float(cosine_similarity(expected, found, dim=0)) >= LEAST_COSINE
    return FlexAttention if agree and with_flex < in_runs else RunAttention


def _tree(context_length: int) -> TreePlan:
    prompt = [number % 100 for number in range(min(PROMPT_TOKENS, context_length // 2))]
    length = min(ANSWER_TOKENS, context_length // 2)
    answers = [[answer, *(number % 90 for number in range(length - 1))] for answer in range(ANSWERS)]
    return build_plan([prompt] * ANSWERS, answers)


def _measured(policy: PolicyModel, plan: TreePlan, attention: TreeAttention) -> tuple[Tensor, float]:
    """Return a gradient of the first policy's adapter, and the seconds of its second computation."""
    gradient, _ = _timed(lambda: _gradient(policy, plan, attention))
    _, seconds = _timed(lambda: _gradient(policy, plan, attention))
    return gradient, seconds


def _timed(compute: Callable[[], Tensor]) -> tuple[Tensor, float]:
    started = perf_counter()
    found = compute()
    float(found[0])  # waits for the device
    return found, perf_counter() - started


def _gradient(policy: PolicyModel, plan: TreePlan, attention: TreeAttention) -> Tensor:
    """Return the gradient of the sum of hidden states; the adapters' own gradients stay as they are."""
    tokens_T = torch.from_numpy(plan.tokens_T).to(policy.device)
    positions_T = torch.from_numpy(plan.depths_T).to(policy.device)
    with torch.enable_grad(), policy.adapter(policy.policies[0]):
        attend = attention(plan, policy.dtype, policy.device)
        hidden_TD = policy.hidden_states(tokens_T, positions_T, attend)
        weights = [one for one in policy.adapter_parameters(policy.policies[0]) if one.requires_grad]
        gradients = torch.autograd.grad(hidden_TD.float().sum(), weights)
    return torch.cat([one.flatten() for one in gradients])
