"""Check on loading, with two short sequences, whether a model can be run over a token tree.

Samples share their common prefix, so a token may depend only on its position and its context, and on its
context only through attention. Recurrent and convolutional layers would read a packed tree as one sequence;
other models change attention or logits in a manner that this package does not implement. In both cases the
log-probabilities differ from those of the model's own forward pass, with its own attention, over a single
sequence.
"""

from typing import Any

import torch
from torch import Tensor

from sparring.core import InputError
from sparring.core.errors import first_line
from sparring.learn.base_model import hidden_states, logits
from sparring.learn.model_attention import ATTENTION_NAME, Attend, DotProduct
from sparring.learn.tree_attention import RunAttention
from sparring.learn.trie import ancestors, build_plan

PREFIX_TOKENS, BRANCH_TOKENS = 4, 8
EXACT, ROUNDED = 1e-3, 0.1
"""Differences that count as rounding, in float32 and in lower precision.

Both are relative to the mean difference between neighbouring positions. In bfloat16, supported families
differed by 0.001 to 0.04, unsupported families by 0.14 and more.
"""
FIX = "Use a model that mixes tokens only by attention, such as Llama or Qwen3."
LENGTH = "Write its longest context, in tokens, into its config.json."


def check_tree(model_name: str, causal_lm: Any) -> tuple[int, str]:
    """Return the context length for which a tree is exact, and why it is shorter than the model's own, or "".

    Raises InputError if a packed tree, or a sequence continued from cached keys and values, differs from the
    model's own pass, or the model cannot be run over a tree.
    """
    try:
        config = causal_lm.config.get_text_config()
        with torch.no_grad():
            differences, spread, windows = _differences(causal_lm, int(config.vocab_size))
        _check_equal(differences, spread, causal_lm.dtype, int(config.num_hidden_layers), len(windows))
        return _context_limit(config, windows)
    except InputError as error:
        raise InputError("model", f"{model_name} cannot be trained: {error.problem}", error.fix) from error
    except Exception as error:  # an unknown architecture may raise anything
        reason = f"{type(error).__name__}: {first_line(error)}"
        raise InputError("model", f"{model_name} cannot be run over a tree ({reason})", FIX) from error


def _check_equal(
    differences: dict[str, float], spread: float, dtype: torch.dtype, layers: int, attending: int
) -> None:
    tolerance = EXACT if dtype == torch.float32 else ROUNDED
    elsewhere = layers - attending
    why = f"; {elsewhere} of its {layers} layers are not attention" if elsewhere > 0 else ""
    for where, nats in differences.items():
        if not nats <= tolerance * spread:
            differs = f"its log-probabilities {where} are {nats:.2g} nats from those of its own forward pass"
            raise InputError("model", f"{differs}{why}", FIX)


class _Remembering:
    """Attention of one sequence over several passes; it keeps keys and values as an engine does."""

    def __init__(self) -> None:
        self.keys: dict[int, Tensor] = {}
        self.values: dict[int, Tensor] = {}
        self.windows: dict[int, int | None] = {}

    def __call__(
        self,
        layer: int,
        query_HTd: Tensor,
        key_GTd: Tensor,
        value_GTe: Tensor,
        window: int | None,
        dot_product: DotProduct,
    ) -> Tensor:
        self.windows[layer] = window
        if layer in self.keys:
            key_GTd = torch.cat([self.keys[layer], key_GTd], dim=1)
            value_GTe = torch.cat([self.values[layer], value_GTe], dim=1)
        self.keys[layer], self.values[layer] = key_GTd, value_GTe
        keys, queries = key_GTd.shape[1], query_HTd.shape[1]
        position_K = torch.arange(keys, device=key_GTd.device)
        distance_QK = position_K[keys - queries :, None] - position_K[None]
        hidden_QK = (distance_QK < 0) | (distance_QK >= (window or keys))
        mask_QK = torch.zeros(hidden_QK.shape, dtype=query_HTd.dtype, device=query_HTd.device)
        mask_QK.masked_fill_(hidden_QK, float("-inf"))
        return dot_product(query_HTd, key_GTd, value_GTe, mask_QK).transpose(0, 1)


def _differences(causal_lm: Any, vocabulary: int) -> tuple[dict[str, float], float, dict[int, int | None]]:
    """Return the mean differences in nats between our passes and the model's own, by kind of pass, the same
    between neighbouring positions of the model's own pass, and the window of each attention layer.
    """
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randint(vocabulary, (PREFIX_TOKENS + 2 * BRANCH_TOKENS,), generator=generator).tolist()
    prefix, left, right = drawn[:PREFIX_TOKENS], drawn[PREFIX_TOKENS:-BRANCH_TOKENS], drawn[-BRANCH_TOKENS:]
    left[0], right[0] = sorted((left[0], right[0]))  # a plan has the smaller token first
    device = causal_lm.get_output_embeddings().weight.device
    sequence_L = torch.tensor(prefix + right, device=device)
    own_LV = _own_logprobs(causal_lm, sequence_L)

    plan = build_plan([prefix] * 2, [[*left, 0], [*right, 0]])
    packed_TV = _logprobs(
        causal_lm,
        torch.from_numpy(plan.tokens_T).to(device),
        torch.from_numpy(plan.depths_T).to(device),
        RunAttention(plan, causal_lm.dtype, device),
    )
    last = int(plan.predict_node_C[-1])
    packed_LV = packed_TV[[*ancestors(plan, last).tolist(), last]]

    remembering, position_L = _Remembering(), torch.arange(len(sequence_L), device=device)
    pieces = [slice(0, PREFIX_TOKENS), slice(PREFIX_TOKENS, None)]
    continued_LV = torch.cat(
        [_logprobs(causal_lm, sequence_L[piece], position_L[piece], remembering) for piece in pieces]
    )
    differences = {
        "over a packed tree": float((packed_LV - own_LV).abs().mean()),
        "from cached keys and values": float((continued_LV - own_LV).abs().mean()),
    }
    spread = float((own_LV[1:] - own_LV[:-1]).abs().mean())
    return differences, spread, remembering.windows


def _logprobs(causal_lm: Any, tokens_T: Tensor, positions_T: Tensor, attend: Attend) -> Tensor:
    return torch.log_softmax(logits(causal_lm, hidden_states(causal_lm, tokens_T, positions_T, attend)), -1)


def _own_logprobs(causal_lm: Any, sequence_L: Tensor) -> Tensor:
    causal_lm.set_attn_implementation("eager")
    try:
        logits_1LV: Tensor = causal_lm(input_ids=sequence_L[None], use_cache=False).logits
    finally:
        causal_lm.set_attn_implementation(ATTENTION_NAME)
    return torch.log_softmax(logits_1LV[0].float(), dim=-1)


def _context_limit(config: Any, windows: dict[int, int | None]) -> tuple[int, str]:
    longest = getattr(config, "max_position_embeddings", None)
    if not longest:
        raise InputError("model", "its configuration has no max_position_embeddings", LENGTH)
    if getattr(config, "attn_temperature_tuning", None):
        raise InputError("model", "it scales queries by their index in the pass, not by their position", FIX)
    limits = [(int(longest), "")]
    chunk = getattr(config, "attention_chunk_size", None)
    if chunk:
        limits.append((int(chunk), "beyond that it attends in chunks"))
    window = getattr(config, "sliding_window", None)
    sliding = "sliding_attention" in (getattr(config, "layer_types", None) or [])
    if window and sliding and not any(windows.values()):
        limits.append((int(window), "its attention does not pass on its sliding window"))
    for rope in _ropes(config):
        original = rope.get("original_max_position_embeddings")
        if rope.get("rope_type") == "longrope" and original:
            limits.append((int(original), "beyond that its rotary embedding changes for all positions"))
    return min(limits, key=lambda limit: limit[0])


def _ropes(config: Any) -> list[dict[str, Any]]:
    parameters = getattr(config, "rope_parameters", None) or {}
    nested = [value for value in parameters.values() if isinstance(value, dict)]
    return nested or [parameters]
