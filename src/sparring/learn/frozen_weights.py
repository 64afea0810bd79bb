"""The weight of a frozen linear layer: kept whole, in four bits, or in parts with other learners.

Base weights of four bits (NF4; Dettmers et al. 2023, "QLoRA") are blocks of 64 indices into a table of 16
values, with a scale. A layer's weights are computed from their indices whenever they are needed, in the
forward and again in the backward pass, and not kept.

In parts: with FSDP, ranks run the same layers in the same order. Learners do not: each packs its own shard of
a batch into passes of its own number and size. So a learner that needs a layer says which, all learners hear
what each of them wants, and every wanted layer is then gathered by all; a learner that has nothing left to
compute goes on giving its parts until all are done. Before the group exists, and where a learner computes
alone, each keeps all weights in the machine's memory and copies a layer to its device when it is used.
"""

from typing import Any, Protocol

import torch
from torch import Tensor
from transformers import BitsAndBytesConfig

DONE = -1
"""What a learner wants that needs no more layers."""


class Peers(Protocol):
    """The group of learners, as far as a sharded base needs it."""

    rank: int
    size: int

    def exchange(self, number: int) -> list[int]:
        """Return each learner's number, by rank."""
        ...

    def gather_parts(self, part: Tensor) -> Tensor:
        """Return the parts of all learners, which are equally long, one after the other."""
        ...


class ShardedBase:
    """The weights of a model's adapted linear layers, whose own ``weight`` becomes empty."""

    def __init__(self, layers: list[Any], device: torch.device) -> None:
        self._device = device
        self._shapes: list[torch.Size] = [layer.weight.shape for layer in layers]
        self._kept: list[Tensor] = [layer.weight.detach() for layer in layers]
        self._parts_of: int | None = None
        self._peers: Peers | None = None
        for number, layer in enumerate(layers):
            empty = torch.empty(0, dtype=layer.weight.dtype, device=device)
            layer.weight = torch.nn.Parameter(empty, requires_grad=False)
            layer.sharded = _ShardedWeight(self, number)

    @property
    def is_whole(self) -> bool:
        """Whether this learner still has all weights, so that it can compute without the others."""
        return self._parts_of is None

    @property
    def nbytes(self) -> int:
        """Bytes of the weights that this learner keeps."""
        return sum(kept.nbytes for kept in self._kept)

    @property
    def device_bytes(self) -> int:
        """Those of them that are in the memory of the device on which they are multiplied."""
        return sum(kept.nbytes for kept in self._kept if kept.device.type == self._device.type)

    def join(self, peers: Peers) -> None:
        """Keep only this rank's parts, on the device, and gather layers with ``peers`` from now on."""
        if self.is_whole:
            self._kept = [_part(kept, peers).to(self._device) for kept in self._kept]
            self._parts_of = peers.size
        if self._parts_of != peers.size:
            raise ValueError(f"the base is in {self._parts_of} parts, but {peers.size} learners joined")
        self._peers = peers

    def leave(self) -> None:
        """Forget the peers; layers cannot be used until others are joined."""
        self._peers = None

    def whole(self, number: int) -> Tensor:
        """Return weight_OI of a layer, for use at once."""
        if self.is_whole:
            return self._kept[number].to(self._device)
        _, gathered = self._take_part(number)
        return gathered

    def serve(self) -> None:
        """Give parts to the other learners until none of them needs a layer any more."""
        others_need_layers = True
        while others_need_layers:
            others_need_layers, _ = self._take_part(DONE)

    def _take_part(self, wanted: int) -> tuple[bool, Tensor]:
        if self._peers is None:
            raise RuntimeError("the learner has a part of the base model only, and has left its group")
        layers = sorted({*self._peers.exchange(wanted)} - {DONE})
        own = torch.empty(0)
        for number in layers:
            flat = self._peers.gather_parts(self._kept[number])
            if number == wanted:
                shape = self._shapes[number]
                own = flat[: shape.numel()].view(shape)
        return bool(layers), own


class _ShardedWeight:
    """A layer's place in the sharded base."""

    def __init__(self, base: ShardedBase, number: int) -> None:
        self._base = base
        self._number = number

    def whole(self) -> Tensor:
        """See :meth:`ShardedBase.whole`."""
        return self._base.whole(self._number)


def _part(weight: Tensor, peers: Peers) -> Tensor:
    flat = weight.flatten()
    length = -(-len(flat) // peers.size)
    own = flat[peers.rank * length : (peers.rank + 1) * length]
    part = torch.zeros(length, dtype=weight.dtype)
    part[: len(own)] = own
    return part


def nf4(dtype: torch.dtype) -> BitsAndBytesConfig:
    """Return the setting with which transformers quantises a model while it loads it."""
    return BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=dtype)


def keep_layout(model: torch.nn.Module) -> None:
    """Have bitsandbytes leave quantised weights as they are; on some CPUs it would reorder them."""
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
