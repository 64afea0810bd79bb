"""The weight of a frozen linear layer: kept whole, in four bits, or in parts with other learners."""

from typing import Any

from torch import Tensor, dtype

from selfplay.learning.quantised import dequantised


def weight_of(layer: Any, type_of_inputs: dtype) -> Tensor:
    """Return weight_OI of a linear layer, for use at once."""
    sharded = getattr(layer, "sharded", None)
    if sharded is not None:
        gathered: Tensor = sharded.whole()
        return gathered
    weight: Tensor = layer.weight
    return weight if getattr(weight, "quant_state", None) is None else dequantised(weight, type_of_inputs)
