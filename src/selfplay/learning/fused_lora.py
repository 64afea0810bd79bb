"""LoRA of a linear layer as one step of autograd, in the type of the layer's input.

PEFT computes an adapter beside a bfloat16 layer in float32: it converts the input, keeps the converted copy
for the gradient, and multiplies float32 matrices. Here the input is kept once, as it is, and only the
adapter's weights are converted, which are small. They stay float32 themselves, and so do their gradients and
the optimizer's moments. With float32 inputs the two are equal up to rounding.
"""

from typing import Any, NamedTuple

import torch
from peft.tuners.lora.layer import Linear
from torch import Tensor
from torch.nn.functional import linear


class Rows(NamedTuple):
    """Consecutive tokens of a forward pass, and the adapter that is added to them."""

    adapter: str
    start: int
    stop: int


class _Converted(NamedTuple):
    """An adapter's weights in the type of the inputs, and what they were made of."""

    made_of: tuple[Any, ...]
    a_RI: Tensor
    b_OR: Tensor


class FusedLinear(Linear):  # type: ignore[misc]  # PEFT has no annotations
    """PEFT's LoRA of a linear layer, with a fused forward pass without dropout.

    It uses the one active adapter, or, without gradients, each adapter in ``rows`` for its tokens.
    """

    rows: tuple[Rows, ...] = ()

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Return x W^T + scaling * x A^T B^T."""
        if self.rows:
            return self._mixed(x)
        names = [name for name in self.active_adapters if name in self.lora_A]
        if self.disable_adapters or self.merged or len(names) != 1 or args or kwargs:
            output: Tensor = super().forward(x, *args, **kwargs)
            return output
        (name,) = names
        if not torch.is_grad_enabled():
            return self._added(linear(x, self.base_layer.weight, self.base_layer.bias), x, name)
        fused: Tensor = _LoraStep.apply(  # type: ignore[no-untyped-call]
            x,
            self.base_layer.weight,
            self.base_layer.bias,
            self.lora_A[name].weight,
            self.lora_B[name].weight,
            self.scaling[name],
        )
        return fused

    def delete_adapter(self, adapter_name: str) -> None:
        """Delete an adapter, and its converted weights."""
        super().delete_adapter(adapter_name)
        self.__dict__.get("_conversions", {}).pop(adapter_name, None)

    def _mixed(self, x: Tensor) -> Tensor:
        """Return the outputs of a pass in which tokens have different adapters."""
        output = linear(x, self.base_layer.weight, self.base_layer.bias)
        x_TI, output_TO = x.reshape(-1, x.shape[-1]), output.view(-1, output.shape[-1])
        for name, start, stop in self.rows:
            if name in self.lora_A:
                self._added(output_TO[start:stop], x_TI[start:stop], name)
        return output

    def _added(self, output: Tensor, x: Tensor, name: str) -> Tensor:
        """Add an adapter's part to the outputs of the layer, in place."""
        _, a_RI, b_OR = self._converted(name, x.dtype)
        low_R = linear(x, a_RI)
        output.view(-1, output.shape[-1]).addmm_(
            low_R.view(-1, low_R.shape[-1]), b_OR.t(), alpha=self.scaling[name]
        )
        return output

    def _converted(self, name: str, dtype: torch.dtype) -> _Converted:
        """Return an adapter's weights in another type; they are converted again when they have changed."""
        a_RI, b_OR = self.lora_A[name].weight, self.lora_B[name].weight
        made_of = (dtype, *((one.data_ptr(), one._version) for one in (a_RI, b_OR)))
        known: dict[str, _Converted] = self.__dict__.setdefault("_conversions", {})
        if name not in known or known[name].made_of != made_of:
            known[name] = _Converted(made_of, a_RI.detach().to(dtype), b_OR.detach().to(dtype))
        return known[name]


class _LoraStep(torch.autograd.Function):
    """I inputs, O outputs, rank R: weight_OI, a_RI, b_OR; the base's weight and bias have no gradient."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight_OI: Tensor,
        bias_O: Tensor | None,
        a_RI: Tensor,
        b_OR: Tensor,
        scale: float,
    ) -> Tensor:
        low_R = linear(x, a_RI.to(x.dtype))
        ctx.save_for_backward(x, low_R, weight_OI, a_RI, b_OR)
        ctx.scale = scale
        output = linear(x, weight_OI, bias_O)
        rows = output.view(-1, output.shape[-1])
        rows.addmm_(low_R.view(-1, low_R.shape[-1]), b_OR.to(x.dtype).t(), alpha=scale)
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, low_R, weight_OI, a_RI, b_OR = ctx.saved_tensors
        out_TO = gradients[0].reshape(-1, gradients[0].shape[-1])
        x_TI, low_TR = x.reshape(-1, x.shape[-1]), low_R.reshape(-1, low_R.shape[-1])
        into_low_TR = (out_TO @ b_OR.to(x.dtype)) * ctx.scale
        into_x = None
        if ctx.needs_input_grad[0]:
            into_x = torch.addmm(out_TO @ weight_OI, into_low_TR, a_RI.to(x.dtype)).view_as(x)
        into_a = (into_low_TR.t() @ x_TI).to(a_RI.dtype)
        into_b = (out_TO.t() @ low_TR).to(b_OR.dtype) * ctx.scale
        return into_x, None, None, into_a, into_b, None
