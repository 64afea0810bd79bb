"""The attention that transformers calls in place of its own; its caller decides which tokens see which.

The model still determines how scores are computed from queries and keys. Letters: H query heads on G
key-value heads, Q queries, K keys, d and e the head sizes of keys and values.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.bias import causal_lower_right
from transformers import AttentionInterface

from sparring.core import InputError, pass_sizes

ATTENTION_NAME = "sparring_tree"
NO_MASK_SHAPE = (1, 1, 1, 1)
"""Models pass on a mask of four dimensions and make none."""
FEW_QUERIES = 16
"""Up to so many queries, torch's attention on CPUs takes up to six times as long if every head reads keys."""
IGNORED = {
    # Queries and keys contain positions already, ``attend`` is causal, and dropout and extra outputs are off.
    *("dropout", "is_causal", "position_ids", "cache_position", "use_cache"),
    *("output_attentions", "output_hidden_states", "output_router_logits"),
}


@dataclass(frozen=True)
class DotProduct:
    """Scaled dot-product attention as one layer of a model computes it.

    ``soft_cap`` bounds scores by a tanh, as in Gemma 2; ``sinks_H`` are scores that have no value, as in
    gpt-oss.
    """

    scale: float
    soft_cap: float | None = None
    sinks_H: Tensor | None = None

    def __call__(
        self, query_HQd: Tensor, key_GKd: Tensor, value_GKe: Tensor, mask_QK: Tensor | None
    ) -> Tensor:
        """Return output_HQe. ``mask_QK`` is added to the scores. All may begin with dimensions of a batch.

        ``None`` is causal attention, in which the queries are the last Q of the K positions.
        """
        repeats = query_HQd.shape[-3] // key_GKd.shape[-3]
        in_full = self.soft_cap is not None or self.sinks_H is not None
        masked_flash = mask_QK is not None and query_HQd.device.type in pass_sizes.FLASH_DEVICES
        if repeats > 1 and (in_full or masked_flash):
            key_GKd, value_GKe = (one.repeat_interleave(repeats, dim=-3) for one in (key_GKd, value_GKe))
            repeats = 1
        if in_full:
            return self._in_full(query_HQd, key_GKd, value_GKe, mask_QK)
        queries, keys = query_HQd.shape[-2], key_GKd.shape[-2]
        continues = mask_QK is None and 1 < queries < keys
        batched = query_HQd.dim() > 3
        if repeats > 1 and mask_QK is not None and batched and queries <= FEW_QUERIES:
            return self._folded(query_HQd, key_GKd, value_GKe, mask_QK)
        if not batched:  # torch's fused kernels are for batches only
            query_HQd, key_GKd, value_GKe = query_HQd[None], key_GKd[None], value_GKe[None]
        output = F.scaled_dot_product_attention(
            query_HQd,
            key_GKd,
            value_GKe,
            attn_mask=causal_lower_right(queries, keys) if continues else mask_QK,
            is_causal=mask_QK is None and queries == keys,
            scale=self.scale,
            enable_gqa=repeats > 1,
        )
        return output if batched else output[0]

    def _folded(self, query_BHQd: Tensor, key_BGKd: Tensor, value_BGKe: Tensor, mask_B1QK: Tensor) -> Tensor:
        batch, heads, queries, size = query_BHQd.shape
        repeats = heads // key_BGKd.shape[1]
        query_BGqd = query_BHQd.reshape(batch, heads // repeats, repeats * queries, size)
        mask_B1qK = mask_B1QK.repeat(1, 1, repeats, 1)
        output_BGqe = F.scaled_dot_product_attention(
            query_BGqd, key_BGKd, value_BGKe, attn_mask=mask_B1qK, scale=self.scale
        )
        return output_BGqe.reshape(batch, heads, queries, -1)

    def _in_full(
        self, query_HQd: Tensor, key_HKd: Tensor, value_HKe: Tensor, mask_QK: Tensor | None
    ) -> Tensor:
        weights_HQK = self.weights(query_HQd @ key_HKd.transpose(-2, -1) * self.scale, mask_QK)
        return weights_HQK.to(value_HKe.dtype) @ value_HKe

    def weights(self, scores_HQK: Tensor, mask_QK: Tensor | None) -> Tensor:
        """Return weights_HQK, in float32 at least, of scaled products; ``mask_QK`` as above."""
        if self.soft_cap is not None:
            scores_HQK = self.soft_cap * torch.tanh(scores_HQK / self.soft_cap)
        queries, keys = scores_HQK.shape[-2:]
        if mask_QK is None:
            mask_QK = scores_HQK.new_full((queries, keys), float("-inf")).triu(1 + keys - queries)
        scores_HQK = scores_HQK + mask_QK
        if self.sinks_H is not None:
            sinks_HQ1 = self.sinks_H.to(scores_HQK.dtype)[:, None, None].expand(*scores_HQK.shape[:-1], 1)
            scores_HQK = torch.cat([scores_HQK, sinks_HQ1], dim=-1)
        exact = torch.promote_types(scores_HQK.dtype, torch.float32)
        return torch.softmax(scores_HQK, dim=-1, dtype=exact)[..., :keys]


Attend = Callable[[int, Tensor, Tensor, Tensor, int | None, DotProduct], Tensor]
"""(layer, query_HTd, key_GTd, value_GTe, window, dot_product) -> output_THe.

A query sees no key that is ``window`` or more positions before it; ``None`` means no limit.
"""


def _tree_attention(
    module: torch.nn.Module,
    query_1HTd: Tensor,
    key_1GTd: Tensor,
    value_1GTe: Tensor,
    attention_mask: Tensor | None,
    *,
    attend: Attend | None = None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    extra = [name for name, value in others.items() if value is not None and name not in IGNORED]
    if attention_mask is not None and attention_mask.shape != NO_MASK_SHAPE:
        extra.append("a mask of its own")
    if attend is None:
        raise InputError(
            "model", "its layers do not pass on the arguments of a forward pass", "Use another model."
        )
    if extra:
        raise InputError("model", f"its attention uses {', '.join(extra)}", "Use another model.")
    product = DotProduct(query_1HTd.shape[-1] ** -0.5 if scaling is None else scaling, softcap, s_aux)
    output_THe = attend(
        int(module.layer_idx),  # type: ignore[arg-type]
        query_1HTd[0],
        key_1GTd[0],
        value_1GTe[0],
        sliding_window,
        product,
    )
    return output_THe.unsqueeze(0).contiguous(), None  # some families take a view of it


AttentionInterface.register(ATTENTION_NAME, _tree_attention)
