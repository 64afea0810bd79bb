"""LoRA of a linear layer as one step of autograd, in the type of the layer's input.

PEFT computes an adapter beside a bfloat16 layer in float32: it converts the input, keeps the converted copy
for the gradient, and multiplies float32 matrices. Here the input is kept once, as it is, and only the
adapter's weights are converted, which are small. They stay float32 themselves, and so do their gradients and
the optimizer's moments. With float32 inputs the two are equal up to rounding.
"""

from typing import Any

import torch
from peft.tuners.lora.layer import Linear
from torch import Tensor
from torch.nn.functional import linear


class FusedLinear(Linear):  # type: ignore[misc]  # PEFT has no annotations
    """PEFT's LoRA of a linear layer, with a fused forward pass for one active adapter without dropout."""

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Return x W^T + scaling * x A^T B^T."""
        names = [name for name in self.active_adapters if name in self.lora_A]
        if self.disable_adapters or self.merged or len(names) != 1 or args or kwargs:
            output: Tensor = super().forward(x, *args, **kwargs)
            return output
        (name,) = names
        fused: Tensor = _LoraStep.apply(  # type: ignore[no-untyped-call]
            x,
            self.base_layer.weight,
            self.base_layer.bias,
            self.lora_A[name].weight,
            self.lora_B[name].weight,
            self.scaling[name],
        )
        return fused


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
