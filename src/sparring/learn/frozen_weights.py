"""The weight of a frozen linear layer: kept whole, in four bits, or in parts with other learners.

Base weights of four bits (NF4; Dettmers et al. 2023, "QLoRA") under a LoRA, with bitsandbytes.

Layers keep blocks of 64 weights as indices into a table of 16 values, with a scale. They are multiplied in
the type of the inputs: a layer's weights are computed from their indices whenever they are needed, in the
forward and again in the backward pass, and not kept. Embeddings, norms and the output layer stay as they are.
"""

from typing import Any

import torch
from torch import Tensor
from transformers import BitsAndBytesConfig


def nf4(dtype: torch.dtype) -> BitsAndBytesConfig:
    """Return the setting with which transformers quantises a model while it loads it."""
    return BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=dtype)


def keep_layout(model: torch.nn.Module) -> None:
    """Have bitsandbytes leave quantised weights as they are.

    On some CPUs it would reorder those of a layer at its first use, and ``dequantised`` could not read them.
    """
    for module in model.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            setattr(module, "support_avx512bf16_for_cpu", False)  # noqa: B010 (not a tensor or module)


def dequantised(weight: Any, dtype: torch.dtype) -> Tensor:
    """Return weight_OI in ``dtype``, computed from four bits."""
    from bitsandbytes.functional import dequantize_4bit

    computed: Tensor = dequantize_4bit(weight.data, weight.quant_state)
    return computed.to(dtype)


def weight_of(layer: Any, type_of_inputs: torch.dtype) -> Tensor:
    """Return weight_OI of a linear layer, for use at once."""
    sharded = getattr(layer, "sharded", None)
    if sharded is not None:
        gathered: Tensor = sharded.whole()
        return gathered
    weight: Tensor = layer.weight
    return weight if getattr(weight, "quant_state", None) is None else dequantised(weight, type_of_inputs)
