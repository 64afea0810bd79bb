"""LoRA of a linear layer as one step of autograd, in the type of the layer's input, for one adapter or
several.

PEFT computes an adapter beside a bfloat16 layer in float32, and keeps a converted copy of the input. Here the
input is kept once, as it is, and only the adapter's weights are converted, which are small. They stay float32
themselves, and so do their gradients and the optimizer's moments.

Base weights of four bits (NF4; Dettmers et al. 2023, "QLoRA") are blocks of 64 indices into a table of 16
values, with a scale. A layer's weights are computed from them whenever they are needed, and not kept.
"""

from collections.abc import Sequence
from itertools import accumulate, groupby, pairwise
from typing import Any, NamedTuple

import torch
from peft.tuners.lora.layer import Linear
from torch import Tensor
from torch.nn.functional import linear

FEW_TOKENS = 16
"""Adapters with at most this many tokens in a pass are multiplied together: tiny products take longer."""


class Rows(NamedTuple):
    """Consecutive tokens of a forward pass, and the adapters that are added to them.

    ``others_TN`` says which of the adapters are not a token's; ``None`` if all tokens have the only one.
    ``states`` are other numbers when an adapter's weights have changed.
    """

    adapters: tuple[str, ...]
    states: tuple[int, ...]
    start: int
    stop: int
    others_TN: Tensor | None = None


class AdapterRows:
    """The rows of passes over these layers with several adapters."""

    def __init__(self, layers: Sequence[Linear], device: torch.device) -> None:
        self._layers = layers
        self._device = device
        self._shapes: dict[str, tuple[Any, ...]] = {}
        self._weights: dict[str, list[Tensor]] = {}
        self._finite: dict[str, tuple[int, bool]] = {}

    def of(self, parts: Sequence[tuple[str, int]]) -> tuple[Rows, ...]:
        """Return the rows of a pass in which adapters have these numbers of tokens, one after the other.

        Neighbours with few tokens and equal shapes share rows. Those whose weights are not numbers share
        none: what is not a number stays so when it is multiplied by the other's zeros.
        """
        rows: list[Rows] = []
        start = 0
        for (shape, share), group in groupby(parts, lambda part: (self._shape(part[0]), self._share(*part))):
            members = list(group)
            stop = start + sum(count for _, count in members)
            if any(shape) and share:
                rows.append(self._shared(members, start, stop))
            elif any(shape):
                ends = accumulate((count for _, count in members), initial=start)
                for (name, _), places in zip(members, pairwise(ends), strict=True):
                    rows.append(Rows((name,), (self._state(name),), *places))
            start = stop
        return tuple(rows)

    def _shared(self, members: list[tuple[str, int]], start: int, stop: int) -> Rows:
        names = tuple(dict.fromkeys(name for name, _ in members))
        owners = [name for name, count in members for _ in range(count)]
        others_TN = torch.tensor([[name != one for name in names] for one in owners], device=self._device)
        return Rows(names, tuple(map(self._state, names)), start, stop, others_TN)

    def _share(self, name: str, tokens: int) -> bool:
        if tokens > FEW_TOKENS:
            return False
        state = self._state(name)
        if self._finite.get(name, (None, False))[0] != state:
            self._finite[name] = (state, all(bool(one.isfinite().all()) for one in self._weights[name]))
        return self._finite[name][1]

    def _shape(self, name: str) -> tuple[Any, ...]:
        if name not in self._shapes:
            self._shapes[name] = tuple(
                (one.r[name], one.scaling[name]) if name in one.lora_A else None for one in self._layers
            )
        return self._shapes[name]

    def _state(self, name: str) -> int:
        if name not in self._weights:
            adapted = [one for one in self._layers if name in one.lora_A]
            self._weights[name] = [
                weights[name].weight for one in adapted for weights in (one.lora_A, one.lora_B)
            ]
        return sum(weight._version for weight in self._weights[name])


SEVERAL = ""
"""Key of the weights of several adapters; no adapter has this name."""


class _Converted(NamedTuple):
    """Weights of adapters in the type of the inputs, side by side, and what they were made of."""

    made_of: tuple[tuple[str, ...], tuple[int, ...], torch.dtype]
    a_RI: Tensor
    b_OR: Tensor


class FusedLinear(Linear):  # type: ignore[misc]  # PEFT has no annotations
    """PEFT's LoRA of a linear layer, with a fused forward pass without dropout.

    It uses the one active adapter, or, without gradients, each adapter in ``rows`` for its tokens.
    """

    rows: tuple[Rows, ...] | None = None

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Return x W^T + scaling * x A^T B^T."""
        if self.rows is not None:
            return self._mixed(x, self.rows)
        names = [name for name in self.active_adapters if name in self.lora_A]
        if self.merged or len(names) > 1 or args or kwargs:
            output: Tensor = super().forward(x, *args, **kwargs)
            return output
        if self.disable_adapters or not names:
            return _output(x, self.base_layer)
        (name,) = names
        if not torch.is_grad_enabled():
            output_TO = _output(x, self.base_layer)
            low_R = linear(x, self.lora_A[name].weight.to(x.dtype))
            rows_TO = output_TO.view(-1, output_TO.shape[-1])
            added_OR = self.lora_B[name].weight.to(x.dtype)
            rows_TO.addmm_(low_R.view(-1, low_R.shape[-1]), added_OR.t(), alpha=self.scaling[name])
            return output_TO
        fused: Tensor = _LoraStep.apply(  # type: ignore[no-untyped-call]
            x,
            self.base_layer,
            self.lora_A[name].weight,
            self.lora_B[name].weight,
            self.scaling[name],
        )
        return fused

    def delete_adapter(self, adapter_name: str) -> None:
        """Delete an adapter, and its converted weights."""
        super().delete_adapter(adapter_name)
        self.__dict__.pop("_conversions", None)

    def _mixed(self, x: Tensor, rows: tuple[Rows, ...]) -> Tensor:
        output = _output(x, self.base_layer)
        x_TI, output_TO = x.reshape(-1, x.shape[-1]), output.view(-1, output.shape[-1])
        for one in rows:
            if one.adapters[0] in self.lora_A:
                self._add(output_TO[one.start : one.stop], x_TI[one.start : one.stop], one)
        return output

    def _add(self, output_TO: Tensor, x_TI: Tensor, rows: Rows) -> None:
        _, a_RI, b_OR = self._converted(rows.adapters, rows.states, x_TI.dtype)
        low_TR = linear(x_TI, a_RI)
        if rows.others_TN is not None:
            low_TR.view(len(low_TR), len(rows.adapters), -1).masked_fill_(rows.others_TN[:, :, None], 0)
        output_TO.addmm_(low_TR, b_OR.t(), alpha=self.scaling[rows.adapters[0]])

    def _converted(self, names: tuple[str, ...], states: tuple[int, ...], dtype: torch.dtype) -> _Converted:
        """Return adapters' weights in another type, converted again when they have changed."""
        made_of = (names, states, dtype)
        known: dict[str, _Converted] = self.__dict__.setdefault("_conversions", {})
        key = names[0] if len(names) == 1 else SEVERAL
        if key not in known or known[key].made_of != made_of:
            known[key] = self._convert(made_of)
        return known[key]

    def _convert(self, made_of: tuple[tuple[str, ...], tuple[int, ...], torch.dtype]) -> _Converted:
        names, states, dtype = made_of
        if len(names) == 1:
            (name,) = names
            a_RI, b_OR = self.lora_A[name].weight.detach(), self.lora_B[name].weight.detach()
            return _Converted(made_of, a_RI.to(dtype), b_OR.to(dtype))
        own = [self._converted((name,), (state,), dtype) for name, state in zip(names, states, strict=True)]
        return _Converted(
            made_of, torch.cat([one.a_RI for one in own]), torch.cat([one.b_OR for one in own], dim=1)
        )


def dequantised(weight: Any, dtype: torch.dtype) -> Tensor:
    """Return weight_OI in ``dtype``, computed from four bits."""
    from bitsandbytes.functional import dequantize_4bit

    computed: Tensor = dequantize_4bit(weight.data, weight.quant_state)
    return computed.to(dtype)


def weight_of(layer: Any, type_of_inputs: torch.dtype) -> Tensor:
    """Return weight_OI of a linear layer, for use at once."""
    if hasattr(layer, "sharded"):
        gathered: Tensor = layer.sharded()
        return gathered
    weight: Tensor = layer.weight
    return weight if getattr(weight, "quant_state", None) is None else dequantised(weight, type_of_inputs)


def _output(x: Tensor, base_layer: Any) -> Tensor:
    return linear(x, weight_of(base_layer, x.dtype), base_layer.bias)


class _LoraStep(torch.autograd.Function):
    """I inputs, O outputs, rank R: a_RI, b_OR; the base layer has no gradient."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        base_layer: Any,
        a_RI: Tensor,
        b_OR: Tensor,
        scale: float,
    ) -> Tensor:
        low_R = linear(x, a_RI.to(x.dtype))
        ctx.save_for_backward(x, low_R, a_RI, b_OR)
        ctx.base_layer, ctx.scale = base_layer, scale
        output = _output(x, base_layer)
        rows = output.view(-1, output.shape[-1])
        rows.addmm_(low_R.view(-1, low_R.shape[-1]), b_OR.to(x.dtype).t(), alpha=scale)
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, low_R, a_RI, b_OR = ctx.saved_tensors
        out_TO = gradients[0].reshape(-1, gradients[0].shape[-1])
        x_TI, low_TR = x.reshape(-1, x.shape[-1]), low_R.reshape(-1, low_R.shape[-1])
        into_low_TR = (out_TO @ b_OR.to(x.dtype)) * ctx.scale
        into_x = None
        if ctx.needs_input_grad[0]:
            weight_OI = weight_of(ctx.base_layer, x.dtype)
            into_x = torch.addmm(out_TO @ weight_OI, into_low_TR, a_RI.to(x.dtype)).view_as(x)
        into_a = (into_low_TR.t() @ x_TI).to(a_RI.dtype)
        into_b = (out_TO.t() @ low_TR).to(b_OR.dtype) * ctx.scale
        return into_x, None, into_a, into_b, None
