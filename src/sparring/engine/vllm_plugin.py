"""A vLLM plugin for LoRA on CPUs, correct in mixed batches and as fast as two matrix products per adapter.

vLLM's own CPU code (0.32) gathers a copy of an adapter's weights for every token, takes index -1, "no
adapter", for the last slot, and cannot return log-probabilities of a prompt beside other requests. Here the
rows of a batch are grouped by adapter once, and each layer multiplies each group by its A and B. vLLM calls
:func:`register` in each of its processes, by the entry point ``sparring_cpu_lora``.

Letters: T tokens, N rows with logits, S slots for adapters, I inputs, O outputs, R the maximum rank.
"""

from typing import Any

from torch import Tensor
from vllm.lora.punica_wrapper.punica_cpu import PunicaWrapperCPU
from vllm.platforms import current_platform

from sparring.engine.vllm_process import stay_with_owner

Group = tuple[int, Tensor | slice]
"""A slot, and the rows of a batch that use it."""


def register() -> None:
    """Make vLLM use :class:`GroupedLora` if it runs on a CPU, and stay with the process that started it; a
    second call has no effect."""
    stay_with_owner()
    if current_platform.is_cpu():
        type(current_platform).get_punica_wrapper = classmethod(_wrapper_name)  # type: ignore[assignment]


def _wrapper_name(platform: type[Any]) -> str:
    return f"{GroupedLora.__module__}.{GroupedLora.__qualname__}"


class GroupedLora(PunicaWrapperCPU):  # type: ignore[misc]
    """Applies the adapters of a batch, group by group. A stack of weights is [S, 1, R, I] for A and [S, 1, O,
    R] for B."""

    def update_metadata(self, mapping: Any, *args: Any, **kwargs: Any) -> None:
        """Group the rows by adapter before every forward pass."""
        super().update_metadata(mapping, *args, **kwargs)
        self._token_groups = grouped(self.token_lora_indices)
        self._sampler_groups = grouped(self.sampler_indices)

    def _apply_shrink(self, y: Tensor, x: Tensor, w_t_all: Tensor, scale: float) -> None:
        _shrink(y.view(-1, y.shape[-1]), x, w_t_all, scale, self._token_groups)

    def _apply_expand(
        self,
        y: Tensor,
        x: Tensor,
        w_t_all: Tensor,
        y_offset: int,
        y_slice_size: int,
        add_inputs: bool = True,
    ) -> None:
        columns = y[:, y_offset : y_offset + y_slice_size]
        _expand(columns, x, w_t_all, self._token_groups, add_inputs)

    def add_lora_embedding(
        self, y: Tensor, x: Tensor, lora_b_stacked: Tensor, add_inputs: bool = True, **kwargs: Any
    ) -> None:
        """Add x B^T to y_TO, for token embeddings."""
        _expand(y, x, lora_b_stacked, self._token_groups, add_inputs)

    def add_lora_logits(
        self,
        y: Tensor,
        x: Tensor,
        lora_a_stacked: Tensor,
        lora_b_stacked: Tensor,
        scale: float,
        *,
        buffer: Tensor | None = None,
        **kwargs: Any,
    ) -> None:
        """Add x A^T B^T scale to the logits y_NO. vLLM also calls this for the tokens of a prompt, without
        their adapter: a RuntimeError if one changes the output layer."""
        y, x = y.view(-1, y.shape[-1]), x.view(-1, x.shape[-1])
        if len(x) != len(self.sampler_indices):
            if lora_b_stacked.any():
                raise RuntimeError("log-probabilities of a prompt beside an adapter of the output layer")
            return
        shrunk_NR = x.new_zeros(len(x), lora_b_stacked.shape[-1])
        _shrink(shrunk_NR, x, lora_a_stacked, scale, self._sampler_groups)
        _expand(y, shrunk_NR, lora_b_stacked, self._sampler_groups, add_inputs=True)


def grouped(indices: Tensor) -> list[Group]:
    """Return the used slots with their rows; index -1 (no adapter) is left out."""
    slots = sorted(set(indices.tolist()) - {-1})
    if len(slots) == 1 and bool((indices >= 0).all()):
        return [(slots[0], slice(None))]
    return [(slot, (indices == slot).nonzero().squeeze(1)) for slot in slots]


def _shrink(y: Tensor, x: Tensor, stack: Tensor, scale: float, groups: list[Group]) -> None:
    for slot, rows in groups:
        a_RI = stack[slot].view(stack.shape[-2:])
        y[rows, : len(a_RI)] = ((x[rows] @ a_RI.T) * scale).to(y.dtype)


def _expand(y: Tensor, x: Tensor, stack: Tensor, groups: list[Group], add_inputs: bool) -> None:
    for slot, rows in groups:
        b_OR = stack[slot].view(stack.shape[-2:])
        outputs = min(len(b_OR), y.shape[1])
        delta = (x[rows].to(b_OR.dtype) @ b_OR.T)[:, :outputs].to(y.dtype)
        if add_inputs:
            y[rows, :outputs] += delta
        else:
            y[rows, :outputs] = delta
