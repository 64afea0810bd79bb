"""What a forward pass really keeps for the gradient, as autograd says."""

import torch
from torch import Tensor

from sparring.learn.policy import PolicyModel
from sparring.learn.tree_attention import RunAttention
from sparring.learn.trie import TreePlan, build_plan

SINGLE = build_plan([[i % 200 for i in range(90)]], [[1]])
SHARED = build_plan([[*range(60), first, *range(first)] for first in range(100, 140, 5)], [[1, 2]] * 8)


def kept_by_autograd(policy: PolicyModel, plan: TreePlan, recomputed: bool) -> int:
    """Bytes of the distinct tensors that a forward pass leaves for the gradient, weights apart."""
    storages = {}

    def keep(tensor: Tensor) -> Tensor:
        storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage()
        return tensor

    tokens_T, depths_T = torch.from_numpy(plan.tokens_T), torch.from_numpy(plan.depths_T)
    attend = RunAttention(plan, policy.dtype, policy.device)
    with (
        torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
        policy.recomputing(recomputed),
    ):
        hidden_TD = policy.hidden_states(tokens_T, depths_T, attend)
    assert hidden_TD.requires_grad
    for parameter in policy.model.parameters():
        storages.pop(parameter.untyped_storage().data_ptr(), None)
    return sum(storage.nbytes() for storage in storages.values())
