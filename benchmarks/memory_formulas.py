"""Formulas for the bytes that training and play need, without loading a model or measuring.

The learner itself does not use them: ``sparring.learn.memory`` measures the bytes that a pass keeps.

The tensors that autograd keeps for the gradient are counted one by one, as the code makes them. This covers
transformers' Llama and Qwen3 layers, ``fused_lora`` (an adapter keeps its layer's input in the base's type,
and no float32 copy of it), ``tree_attention`` and ``logprobs``. ``tests/test_memory_formulas.py`` compares
the count with autograd's own. Temporary memory inside a layer and among the logits is not counted, but
estimated as a multiple of one tensor; ``benchmarks/memory_model.py`` fits those two factors. The formulas
assume that attention keeps no scores, as on a CPU, and leave out the engine's copies of adapters in the
base's type.

Letters: H hidden size, Q = query heads x head size, K = key-value heads x head size, I intermediate size,
V vocabulary, r LoRA rank, s bytes of a number of the base (bfloat16 2, float32 4).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sparring.core import InputError
from sparring.core.adapters import ALL_LINEAR
from sparring.core.pass_sizes import ROWS_AT_ONCE, STORED_LOGITS_BYTES
from sparring.learn.memory import SHARE_OF_MEMORY

BYTES = {"float32": 4, "bfloat16": 2}
FLOAT32 = 4
LOGITS_COPIES = 5.0
"""Float32 arrays of [rows, V] that exist at once in the backward pass of the logits; fitted."""
WORKING_COPIES = 4.0
"""Float32 arrays of [tokens, max(I, Q)] that exist briefly in the backward pass of a layer; fitted."""


@dataclass(frozen=True)
class ModelShape:
    """The sizes of a Llama-like decoder, named as in ``config.json`` where it has a name for them.

    ``tied``: embedding and output layer are one matrix. ``qk_norm``: queries and keys are normalised, as in
    Qwen3.
    """

    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocabulary: int
    tied: bool = True
    qk_norm: bool = False

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> "ModelShape":
        """Read the contents of a ``config.json`` (``AutoConfig.to_dict()``) of a Llama or Qwen3 model.

        Raises:
            InputError: a size is missing.
        """
        try:
            heads = int(config["num_attention_heads"])
            hidden = int(config["hidden_size"])
            return cls(
                hidden_size=hidden,
                num_layers=int(config["num_hidden_layers"]),
                num_heads=heads,
                num_kv_heads=int(config.get("num_key_value_heads") or heads),
                head_dim=int(config.get("head_dim") or hidden // heads),
                intermediate_size=int(config["intermediate_size"]),
                vocabulary=int(config["vocab_size"]),
                tied=bool(config.get("tie_word_embeddings", False)),
                qk_norm=config.get("model_type") == "qwen3",
            )
        except KeyError as error:
            raise InputError(
                "config", f"has no {error.args[0]}", "Give the config.json of a Llama or Qwen3 model."
            ) from error

    @property
    def query_size(self) -> int:
        """Q."""
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """K."""
        return self.num_kv_heads * self.head_dim

    def linear_shapes(self) -> dict[str, tuple[int, int]]:
        """Return (inputs, outputs) of each linear layer in one decoder layer, by name."""
        hidden, inner = self.hidden_size, self.intermediate_size
        return {
            "q_proj": (hidden, self.query_size),
            "k_proj": (hidden, self.kv_size),
            "v_proj": (hidden, self.kv_size),
            "o_proj": (self.query_size, hidden),
            "gate_proj": (hidden, inner),
            "up_proj": (hidden, inner),
            "down_proj": (inner, hidden),
        }

    @property
    def parameters(self) -> int:
        """The number of weights of the base model; a tied matrix counts once."""
        linear = sum(inputs * outputs for inputs, outputs in self.linear_shapes().values())
        norms = 2 * self.hidden_size + (2 * self.head_dim if self.qk_norm else 0)
        matrices = 1 if self.tied else 2
        return (
            matrices * self.vocabulary * self.hidden_size
            + self.num_layers * (linear + norms)
            + self.hidden_size
        )


SHAPES = {
    "SmolLM2-135M": ModelShape(576, 30, 9, 3, 64, 1536, 49_152),
    "Qwen3-0.6B": ModelShape(1024, 28, 16, 8, 128, 3072, 151_936, qk_norm=True),
    "Qwen3-1.7B": ModelShape(2048, 28, 16, 8, 128, 6144, 151_936, qk_norm=True),
    "Qwen3-4B": ModelShape(2560, 36, 32, 8, 128, 9728, 151_936, qk_norm=True),
    "Qwen3-8B": ModelShape(4096, 36, 32, 8, 128, 12_288, 151_936, tied=False, qk_norm=True),
    "Llama-3.2-1B": ModelShape(2048, 16, 32, 8, 64, 8192, 128_256),
    "Llama-3.2-3B": ModelShape(3072, 28, 24, 8, 128, 8192, 128_256),
}
"""Sizes of some public models, from their ``config.json``."""


@dataclass(frozen=True)
class LoraShape:
    """An adapter's rank and the linear layers that it is on."""

    rank: int = 16
    target_modules: Sequence[str] = ALL_LINEAR


@dataclass(frozen=True)
class PassSize:
    """The input sizes of one forward and backward pass of the learner.

    ``rows`` are the tokens after which something is predicted. ``copied_keys`` and ``mask_entries`` come from
    shared prefixes (``tree_attention``): keys of all runs' contexts, which each run has beside its own, and
    entries of all runs' masks. A single sequence has neither. ``recomputed`` means that layers are computed
    again for the gradient (activation checkpointing). ``score_dtype`` is the type in which attention is
    computed, if it is not that of the base: float32 on CPUs.
    """

    tokens: int
    rows: int = ROWS_AT_ONCE
    copied_keys: int = 0
    mask_entries: int = 0
    recomputed: bool = False
    score_dtype: str | None = None


@dataclass(frozen=True)
class TrainingMemory:
    """Bytes of one update at its peak.

    ``adapter`` weights, their running ``average``, ``gradient`` and AdamW's two ``moments`` are float32.
    ``kept`` is what the forward pass keeps for the gradient; ``passing`` is temporary memory on top of it.
    """

    base: int
    adapter: int
    average: int
    gradient: int
    moments: int
    kept: int
    passing: int

    @property
    def total(self) -> int:
        """The sum of all parts."""
        return (
            self.base + self.adapter + self.average + self.gradient + self.moments + self.kept + self.passing
        )


@dataclass(frozen=True)
class PlayMemory:
    """Bytes that the embedded engine adds to the weights: its cache, the last logits, a forward pass."""

    cache: int
    hidden: int
    logits: int
    passing: int

    @property
    def lasting(self) -> int:
        """The part that remains while the learner works."""
        return self.cache + self.hidden + self.logits


def base_bytes(shape: ModelShape, dtype: str) -> int:
    """Return the bytes of the frozen weights.

    Raises:
        InputError: the type is unknown. All functions below raise it too.
    """
    return shape.parameters * _bytes_of(dtype)


def adapter_parameters(shape: ModelShape, lora: LoraShape) -> int:
    """Return the number of LoRA weights: r x inputs and outputs x r on each target layer.

    Source: Hu et al. 2021, arXiv 2106.09685.
    """
    return shape.num_layers * sum(lora.rank * sum(_linear(shape, name)) for name in lora.target_modules)


def layer_bytes(shape: ModelShape, lora: LoraShape, size: PassSize, dtype: str) -> int:
    """Return the bytes that one decoder layer keeps for the gradient if it is not recomputed."""
    number = _bytes_of(dtype)
    query, kv, inner = shape.query_size, shape.kv_size, shape.intermediate_size
    norms = 2 * (FLOAT32 * shape.hidden_size + FLOAT32)  # inputs in float32, and 1 / root mean square
    if shape.qk_norm:
        norms += FLOAT32 * (query + kv) + FLOAT32 * (shape.num_heads + shape.num_kv_heads)
    score = _bytes_of(size.score_dtype or dtype)
    attention = 2 * score * query + FLOAT32 * shape.num_heads  # queries, outputs, log of the normaliser
    keys_and_values = 2 * score * kv
    mlp = 3 * number * inner  # gate, silu(gate), up
    per_token = norms + attention + keys_and_values + mlp + _lora_bytes(shape, lora, number)
    return size.tokens * per_token + size.copied_keys * keys_and_values


def kept_bytes(shape: ModelShape, lora: LoraShape, size: PassSize, dtype: str) -> int:
    """Return the bytes that the whole forward pass, including the final norm, keeps for the gradient."""
    number = _bytes_of(dtype)
    final_norm = FLOAT32 * shape.hidden_size + FLOAT32
    rotations = 2 * number * shape.head_dim  # cosines and sines, shared by all layers
    shared = size.tokens * (final_norm + rotations) + size.mask_entries * _bytes_of(size.score_dtype or dtype)
    if size.recomputed:
        return shared + shape.num_layers * size.tokens * number * shape.hidden_size
    return shared + shape.num_layers * layer_bytes(shape, lora, size, dtype)


def training_memory(
    shape: ModelShape, lora: LoraShape, size: PassSize, dtype: str, *, average: bool = False
) -> TrainingMemory:
    """Return the bytes of an update whose largest pass is ``size``.

    ``average`` is true with ``learning.average_decay``. The backward pass begins with the logits,
    ``ROWS_AT_ONCE`` at a time, and continues layer by layer; a recomputed layer then keeps what it would have
    kept without recomputation. The larger of the two counts.
    """
    adapter = FLOAT32 * adapter_parameters(shape, lora)
    rows = min(size.rows, ROWS_AT_ONCE)
    logits = LOGITS_COPIES * FLOAT32 * rows * shape.vocabulary
    working = _working_bytes(shape, size.tokens)
    if size.recomputed:
        working += layer_bytes(shape, lora, size, dtype)
    return TrainingMemory(
        base=base_bytes(shape, dtype),
        adapter=adapter,
        average=adapter if average else 0,
        gradient=adapter,
        moments=2 * adapter,
        kept=kept_bytes(shape, lora, size, dtype),
        passing=round(max(logits, working)),
    )


def play_memory(
    shape: ModelShape, dtype: str, *, max_cached_tokens: int = 32_768, max_batch_tokens: int = 2048
) -> PlayMemory:
    """Return the bytes of the embedded engine for one served model.

    The keys and values of a token are 2 L K numbers, where L is the number of layers. Their store grows by
    doubling, so it may be twice as large as its contents. A hidden state is kept for each token that was
    drawn, and counted here for all tokens.
    """
    number = _bytes_of(dtype)
    row = FLOAT32 * ROWS_AT_ONCE * shape.vocabulary
    return PlayMemory(
        cache=2 * max_cached_tokens * 2 * shape.num_layers * shape.kv_size * number,
        hidden=max_cached_tokens * shape.hidden_size * number,
        logits=max(STORED_LOGITS_BYTES, row),
        passing=round(max(row, _working_bytes(shape, max_batch_tokens))),  # a row as the base computed it
    )


def as_run(shape: ModelShape, lora: LoraShape, dtype: str, memory: int, tokens: int) -> PassSize:
    """Return the pass of a single sequence as the learner runs it on a device with ``memory`` bytes.

    Its layers are recomputed if it would otherwise keep more than a share of the memory that the weights
    leave; see ``sparring.learn.memory``.
    """
    size = PassSize(tokens)
    limit = SHARE_OF_MEMORY * (memory - base_bytes(shape, dtype) - FLOAT32 * adapter_parameters(shape, lora))
    return replace(size, recomputed=kept_bytes(shape, lora, size, dtype) > limit)


def largest_pass(
    shape: ModelShape,
    lora: LoraShape,
    dtype: str,
    memory: int,
    *,
    usable: float = 1.0,
    average: bool = False,
    play: PlayMemory | None = None,
    multiple: int = 256,
    most: int = 32_768,
) -> int:
    """Return the largest ``learning.max_batch_tokens`` whose passes need at most ``usable * memory`` bytes.

    Returns 0 if there is none. Passes are single sequences of any size up to the result. Learner and engine
    take turns, so the larger of their passes counts.

    Args:
        memory: bytes of the device.
        usable: the share of them that may be needed.
        play: the memory of an embedded engine on the same device.
        multiple: the result is a multiple of this many tokens.
        most: the largest size that is tried, in tokens.
    """
    largest = 0
    for tokens in range(multiple, most + 1, multiple):
        needed = training_memory(
            shape, lora, as_run(shape, lora, dtype, memory, tokens), dtype, average=average
        )
        if needed_together(needed, play) > usable * memory:
            break
        largest = tokens
    return largest


def needed_together(training: TrainingMemory, play: PlayMemory | None) -> int:
    """Return the bytes of a learner, and of an engine on the same weights if there is one."""
    if play is None:
        return training.total
    resting = replace(training, kept=0, passing=0).total
    return resting + play.lasting + max(training.kept + training.passing, play.passing)


def _working_bytes(shape: ModelShape, tokens: int) -> float:
    return WORKING_COPIES * FLOAT32 * tokens * max(shape.intermediate_size, shape.query_size)


def _lora_bytes(shape: ModelShape, lora: LoraShape, number: int) -> int:
    """Return the bytes per token: each target's input, and r numbers between its two matrices.

    Layers that read the same input keep it only once.
    """
    inputs = {name: _linear(shape, name)[0] for name in lora.target_modules}
    readers = {"k_proj": "q_proj", "v_proj": "q_proj", "up_proj": "gate_proj"}
    inputs = {readers.get(name, name): width for name, width in inputs.items()}
    return number * (sum(inputs.values()) + lora.rank * len(lora.target_modules))


def _linear(shape: ModelShape, name: str) -> tuple[int, int]:
    shapes = shape.linear_shapes()
    if name not in shapes:
        raise InputError(
            "target_modules", f"{name} is not a linear layer", f"Choose from {', '.join(shapes)}."
        )
    return shapes[name]


def _bytes_of(dtype: str) -> int:
    if dtype not in BYTES:
        raise InputError("dtype", f"{dtype!r} is not known", f"Take {' or '.join(BYTES)}.")
    return BYTES[dtype]
