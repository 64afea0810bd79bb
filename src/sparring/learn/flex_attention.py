"""Attention of a section by torch's flex_attention, for GPUs: one kernel call a layer, whatever the tree.

The kernel takes the plan's own rule, key <= query < end[key], skips blocks of 128 x 128 tokens in which no
query sees a key, and keeps no scores. Without a compiler for the device it would compute all of them, so only
GPUs use it for learning; torch has no backward pass for it on CPUs.

torch compiles a variant of the kernel for each kind of call, and beyond a few of them it would compute all
scores without saying so. So calls are made alike: the tree and the window are arrays, queries and keys fill
at least two blocks, passes with and without gradients have kernels of their own, and one variant too many is
an error.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch._dynamo.exc import FailOnRecompileLimitHit, TorchDynamoException
from torch.nn.attention.flex_attention import AuxRequest, BlockMask, create_block_mask, flex_attention
from torch.nn.functional import pad

from sparring.core import pass_sizes
from sparring.learn.model_attention import DotProduct
from sparring.learn.tree_attention import RunAttention, Section, SectionKeys, whole
from sparring.learn.trie import IntArray, TreePlan

COMPILE_ERRORS = (TorchDynamoException, FailOnRecompileLimitHit)
"""Errors of torch's compiler, that of too many variants included."""
LEAST_TOKENS = 129
"""Fewer queries or keys are filled up: they would be one block, for which torch compiles another variant."""


def _forward_only(*arguments: Any, **options: Any) -> Any:
    return flex_attention(*arguments, **options)


def _differentiable(*arguments: Any, **options: Any) -> Any:
    return flex_attention(*arguments, **options)


@cache
def _compiled(with_gradients: bool) -> Callable[..., Any]:
    kernel = _differentiable if with_gradients else _forward_only
    compiled: Callable[..., Any] = torch.compile(kernel, dynamic=True, fullgraph=True)
    return compiled


class FlexAttention:
    """The attention of a section, as :class:`RunAttention` computes it; see the module."""

    def __init__(
        self,
        plan: TreePlan,
        dtype: torch.dtype,
        device: torch.device,
        section: Section | None = None,
        keys: SectionKeys | None = None,
    ) -> None:
        section = section or whole(plan)
        nodes_Q = np.arange(section.start, section.stop)
        nodes_K = np.concatenate([section.above_K, nodes_Q])
        self.keys = keys
        self._device = device
        self._deepest = int(plan.depths_T[nodes_Q].max(initial=0))
        # What fills up sees nothing and is not seen.
        self._node_Q, self._node_K = self._filled(nodes_Q, -1), self._filled(nodes_K, 0)
        self._end_K = self._filled(plan.end_T[nodes_K], 0)
        self._depth_Q, self._depth_K = (self._filled(plan.depths_T[nodes], 0) for nodes in (nodes_Q, nodes_K))
        self._masks: dict[int, BlockMask] = {}

    def __call__(
        self,
        layer: int,
        query_HTd: Tensor,
        key_GTd: Tensor,
        value_GTe: Tensor,
        window: int | None,
        dot_product: DotProduct,
    ) -> Tensor:
        """Return output_THe."""
        if window is None or window > self._deepest:
            window = self._deepest + 1  # it reaches back to the first token from everywhere
        if self.keys is not None:
            key_GTd = self.keys.join((layer, "key"), key_GTd)
            value_GTe = self.keys.join((layer, "value"), value_GTe)
        queries = query_HTd.shape[1]
        on_gpu = query_HTd.device.type in pass_sizes.FLASH_DEVICES
        kernel = _compiled(torch.is_grad_enabled()) if on_gpu else _forward_only
        output_1HQe, auxiliary = kernel(
            _at_least(len(self._node_Q), query_HTd)[None],
            _at_least(len(self._node_K), key_GTd)[None],
            _at_least(len(self._node_K), value_GTe)[None],
            score_mod=None if dot_product.soft_cap is None else _capped(dot_product.soft_cap),
            block_mask=self._mask(window),
            scale=dot_product.scale,
            enable_gqa=len(query_HTd) != len(key_GTd),
            return_aux=AuxRequest(lse=True),
        )
        output_HTe: Tensor = output_1HQe[0, :, :queries]
        if dot_product.sinks_H is not None:
            # The sink takes its share of the softmax: e^lse / (e^lse + e^sink) is left.
            share_HT = torch.sigmoid(auxiliary.lse[0, :, :queries] - dot_product.sinks_H.float()[:, None])
            output_HTe = output_HTe * share_HT[..., None].to(output_HTe.dtype)
        return output_HTe.transpose(0, 1)

    def _mask(self, window: int) -> BlockMask:
        if window not in self._masks:
            self._masks[window] = create_block_mask(
                self._sees(window), None, None, len(self._node_Q), len(self._node_K), device=self._device
            )
        return self._masks[window]

    def _sees(self, window: int) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
        node_Q, node_K, end_K, depth_K = self._node_Q, self._node_K, self._end_K, self._depth_K
        unseen_Q = self._depth_Q - window  # keys of this depth or less are before the window

        def sees(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            node = node_Q[query]
            return (node_K[key] <= node) & (node < end_K[key]) & (depth_K[key] > unseen_Q[query])

        return sees

    def _filled(self, numbers: IntArray, value: int) -> Tensor:
        missing = max(LEAST_TOKENS - len(numbers), 0)
        return torch.from_numpy(np.pad(numbers, (0, missing), constant_values=value)).to(self._device)


def _at_least(tokens: int, states_HTd: Tensor) -> Tensor:
    missing = tokens - states_HTd.shape[1]
    return pad(states_HTd, (0, 0, 0, missing)) if missing else states_HTd


@cache
def _capped(soft_cap: float) -> Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]:
    def capped(score: Tensor, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return soft_cap * torch.tanh(score / soft_cap)

    return capped


TreeAttention = type[RunAttention] | type[FlexAttention]
"""An execution of tree attention."""
