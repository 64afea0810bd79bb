"""The memory that a forward pass keeps for the gradient, and the decision whether to recompute its layers.

Recomputing layers (activation checkpointing) gives a bit-identical gradient for a third more work and less
than a tenth of the memory. The decision depends on the model, the adapter, the pass and the size of the
device's memory, never on how much of it is currently free, so a repeated run is equally fast.
"""

from pathlib import Path

import psutil
import torch
from torch import Tensor

from sparring.learn.model_attention import DotProduct
from sparring.learn.policy import PolicyModel
from sparring.learn.tree_attention import RunAttention, Section, split_runs, whole
from sparring.learn.trie import TreePlan, build_plan

SHARE_OF_MEMORY = 0.25
"""Share of the memory beside the weights."""
PROBES = (32, 128)
"""Sizes, in tokens, of the two passes from which the memory of larger passes is extrapolated."""
CONTAINER_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


class KeptMemory:
    """The bytes that a pass of one adapter keeps, as a function of its size.

    They grow with the number of tokens, with the keys and values that are copied for shared prefixes, and
    with the query-key pairs for which attention keeps masks or scores. The three rates are measured on two
    small passes.
    """

    def __init__(self, policy: PolicyModel, adapter: str) -> None:
        self._sharded = policy.sharded
        weights = sum(weight.nbytes for weight in policy.model.parameters())
        self.limit: float = SHARE_OF_MEMORY * (memory_of(policy.device) - weights)
        with policy.adapter(adapter):
            (small, self._per_key), (large, _) = (_probe(policy, tokens) for tokens in PROBES)
        few, many = PROBES
        self._per_pair = max((large / many - small / few) / (many - few), 0.0)
        self._per_token = large / many - self._per_pair * many

    @property
    def room(self) -> float:
        """The limit, less the share for a sharded base's parts, which come to the device with a group."""
        return self.limit - SHARE_OF_MEMORY * (0 if self._sharded is None else self._sharded.device_bytes)

    def of(self, plan: TreePlan, section: Section | None = None) -> float:
        """Return the bytes that a pass over ``plan``, or a section of it, keeps without recomputing."""
        section = section or whole(plan)
        copied, pairs = 0, 0
        for start, stop in split_runs(plan, section):
            tokens, context = stop - start, int(plan.depths_T[start])
            copied += context
            pairs += tokens * (context + tokens)
        return self._per_token * section.size + self._per_key * copied + self._per_pair * pairs

    def is_short_for(self, plan: TreePlan, section: Section | None = None) -> bool:
        """Return whether memory is too short to keep such a pass, so that its layers are recomputed."""
        return self.of(plan, section) > self.room


def memory_of(device: torch.device) -> int:
    """Return the bytes of a device's memory, free or not; for a CPU, those of the machine or container."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    limits = [Path(path).read_text().strip() for path in CONTAINER_LIMITS if Path(path).is_file()]
    machine = psutil.virtual_memory().total
    return min([int(machine), *(int(limit) for limit in limits if limit.isdigit())])


class _Watched(RunAttention):
    """Attention that counts the bytes of its keys and values."""

    key_bytes = 0

    def __call__(
        self,
        layer: int,
        query_HTd: Tensor,
        key_GTd: Tensor,
        value_GTe: Tensor,
        window: int | None,
        dot_product: DotProduct,
    ) -> Tensor:
        self.key_bytes += (key_GTd.numel() + value_GTe.numel()) * self.dtype.itemsize
        return super().__call__(layer, query_HTd, key_GTd, value_GTe, window, dot_product)


def _probe(policy: PolicyModel, tokens: int) -> tuple[int, float]:
    half, quarter = range(tokens // 2), tokens // 4
    plan = build_plan([[*half, *half[:quarter]], [*half, *half[quarter:]]], [[0], [0]])
    attend = _Watched(plan, policy.dtype, policy.device)
    storages = {}

    def keep(tensor: Tensor) -> Tensor:
        storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    tokens_T = torch.from_numpy(plan.tokens_T).to(policy.device)
    positions_T = torch.from_numpy(plan.depths_T).to(policy.device)
    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        hidden_TD = policy.hidden_states(tokens_T, positions_T, attend)
    for parameter in policy.model.parameters():
        storages.pop(parameter.untyped_storage().data_ptr(), None)
    del (
        hidden_TD
    )  # it kept the saved tensors alive until here, so that no address was counted for two tensors
    return sum(storages.values()), attend.key_bytes / plan.num_tokens
