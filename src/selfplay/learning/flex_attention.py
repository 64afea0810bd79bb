"""Attention of a section by torch's flex_attention, for GPUs: one kernel call a layer, whatever the tree.

The kernel takes the plan's own rule, key <= query < end[key], skips blocks of 128 x 128 tokens in which no
query sees a key, and keeps no scores. Without a compiler for the device it would compute all of them, so only
GPUs use it for learning; torch has no backward pass for it on CPUs.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import AuxRequest, BlockMask, create_block_mask, flex_attention

from selfplay.learning.kept_keys import SectionKeys
from selfplay.learning.model_attention import DotProduct
from selfplay.learning.sections import Section, whole
from selfplay.learning.trie import TreePlan


@cache
def _kernel(device_type: str) -> Callable[..., Any]:
    kernel: Callable[..., Any] = flex_attention
    return kernel if device_type == "cpu" else torch.compile(kernel, dynamic=True)


class FlexAttention:
    """The attention of a section, as :class:`RunAttention` computes it; see the module.

    Args:
        plan: the plan to which the section belongs.
        dtype: not needed here: scores are accumulated in float32.
        device: device of queries and keys.
        section: the tokens of the forward pass; ``None`` for the whole plan.
        keys: keeps keys and values for other sections; ``None`` if there are none.
    """

    def __init__(
        self,
        plan: TreePlan,
        dtype: torch.dtype,
        device: torch.device,
        section: Section | None = None,
        keys: SectionKeys | None = None,
    ) -> None:
        section = section or whole(plan)
        nodes_K = np.concatenate([section.above_K, np.arange(section.start, section.stop)])
        self.keys = keys
        self._above = len(section.above_K)
        self._node_K, self._end_K, self._depth_K = (
            torch.from_numpy(one).to(device) for one in (nodes_K, plan.end_T[nodes_K], plan.depths_T[nodes_K])
        )
        self._deepest = int(plan.depths_T[section.start : section.stop].max(initial=0))
        self._masks: dict[int | None, BlockMask] = {}

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
        if window is not None and window > self._deepest:
            window = None  # it reaches back to the first token from everywhere
        if self.keys is not None:
            key_GTd = self.keys.join((layer, "key"), key_GTd)
            value_GTe = self.keys.join((layer, "value"), value_GTe)
        output_1HTe, auxiliary = _kernel(query_HTd.device.type)(
            query_HTd[None],
            key_GTd[None],
            value_GTe[None],
            score_mod=None if dot_product.soft_cap is None else _capped(dot_product.soft_cap),
            block_mask=self._mask(window),
            scale=dot_product.scale,
            enable_gqa=len(query_HTd) != len(key_GTd),
            return_aux=AuxRequest(lse=True),
        )
        output_HTe: Tensor = output_1HTe[0]
        if dot_product.sinks_H is not None:
            # The sink takes its share of the softmax: e^lse / (e^lse + e^sink) is left.
            share_HT = torch.sigmoid(auxiliary.lse[0] - dot_product.sinks_H.float()[:, None])
            output_HTe = output_HTe * share_HT[..., None].to(output_HTe.dtype)
        return output_HTe.transpose(0, 1)

    def _mask(self, window: int | None) -> BlockMask:
        """Return the mask of layers with a window; the first call makes it."""
        if window not in self._masks:
            keys = len(self._node_K)
            self._masks[window] = create_block_mask(
                self._sees(window), None, None, keys - self._above, keys, device=self._node_K.device
            )
        return self._masks[window]

    def _sees(self, window: int | None) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
        node_K, end_K, depth_K, above = self._node_K, self._end_K, self._depth_K, self._above

        def sees(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            node = node_K[query + above]
            seen = (node_K[key] <= node) & (node < end_K[key])
            return seen if window is None else seen & (depth_K[query + above] - depth_K[key] < window)

        return sees


@cache
def _capped(soft_cap: float) -> Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]:
    def capped(score: Tensor, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return soft_cap * torch.tanh(score / soft_cap)

    return capped
