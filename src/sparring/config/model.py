"""The base model, its adapter, the engine, and how answers are drawn that nobody learns from."""

import re
from dataclasses import replace
from typing import Annotated, Literal

from pydantic import Field, field_validator

from sparring.config.base import FilePath, Line, Name, Names, Settings, Texts, ThoughtTags, at_field
from sparring.config.facts import MODEL, Needs, Only
from sparring.core.adapters import ALL_LINEAR, BUNDLED_MODEL, LORA_ALPHA, LORA_RANK, Quantization
from sparring.core.concurrency import MAX_CACHED_TOKENS, MAX_QUEUE
from sparring.core.sampling import MAX_PENALTY, MIN_PENALTY


class SamplingSettings(Settings):
    """How answers are drawn that nobody learns from. What a policy learns from is always drawn from the
    distribution that it learns."""

    top_p: float | None = Field(default=None, ge=1e-9, le=1)
    """Draw from the likeliest tokens that together have this probability; 1 keeps all."""
    top_k: int | None = Field(default=None, ge=0, le=10_000_000)
    """Draw from this many of the likeliest tokens; 0 keeps all."""
    min_p: float | None = Field(default=None, ge=0, le=1)
    """Leave out tokens that have less than this share of the highest probability."""
    repetition_penalty: float | None = Field(default=None, ge=MIN_PENALTY, le=MAX_PENALTY)
    """Divide the positive logits of tokens in the prompt or the answer by this, and multiply the others."""
    from_model: bool = False
    """Take what is left out here from the model's own `generation_config.json`, and the temperature too where
    none is set."""


TemplateNumber = Annotated[int, Field(ge=-1_000_000_000, le=1_000_000_000)]


class ModelSettings(Settings):
    """The base model, which stays frozen."""

    name: Annotated[FilePath, MODEL] = BUNDLED_MODEL
    """`smollm2-135m`, a Hugging Face directory or id, or a GGUF file. If a configuration file names a
    directory or a file, it is looked up beside that file, then in the working directory."""
    template_options: dict[Name, bool | TemplateNumber | Line] = Field(default={}, max_length=100)
    """Options of the model's chat template, such as `{enable_thinking = false}` for Qwen 3 or
    `{reasoning_effort = "low"}` for gpt-oss."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Type of the base weights. `auto` uses bfloat16 if the machine computes it faster than float32."""
    quantization: Annotated[Quantization, Needs("bitsandbytes", "quantized", ("nf4",))] = "none"
    """`nf4` keeps the base's linear layers in four bits (needs the extra `quantized`; not for vLLM). The
    adapters fit the unquantised base too."""
    device: Name = "auto"
    """`cpu`, `cuda` or `auto`, which uses a GPU if one is available."""
    threads: int | None = Field(default=None, ge=1, le=4096)
    """CPU threads for torch. By default, the fastest number is measured when the run starts, and kept; with
    `ray.address`, each engine and learner uses its share of its node's cores."""

    @field_validator("device")
    @classmethod
    def _known_device(cls, device: str) -> str:
        if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", device):
            raise at_field(f"there is no device {device!r}", "Use auto, cpu or cuda")
        return device


class LoraSection(Settings):
    """The adapter that is trained. Its weights are float32, whatever the type of the base weights."""

    rank: int = Field(default=LORA_RANK, ge=1, le=8192)
    """Rank of the two factors."""
    alpha: int = Field(default=LORA_ALPHA, ge=1, le=1_000_000)
    """The update is scaled by alpha / rank."""
    dropout: float = 0.0
    """Must be 0: with dropout, samples could not share tokens in a prefix tree."""
    target_modules: Names = Field(default=list(ALL_LINEAR), min_length=1)
    """Names of the linear layers that get an adapter."""

    @field_validator("dropout")
    @classmethod
    def _no_dropout(cls, dropout: float) -> float:
        if dropout != 0:
            problem = (
                f"must be 0 (got {dropout}): with dropout, samples could not share tokens in a prefix tree"
            )
            raise at_field(problem, "Leave it out")
        return dropout


_VLLM = Only("engine", ("vllm",))


class InferenceSettings(Settings):
    """The engine that generates answers."""

    engine: Annotated[Literal["embedded", "vllm"], Needs("vllm", "vllm", ("vllm",))] = "embedded"
    """The engine of this package, or vLLM, which needs the extra `vllm`."""
    max_tokens: int = Field(default=16, ge=1, le=1_000_000)
    """Maximum length of an answer, in tokens. A game and a role may have another."""
    temperature: float = Field(default=1.0, ge=0.01, le=100)
    """Sampling temperature; the learner uses the same value. A game, a role in `[roles]` and a program's own
    roles may have another."""
    stop: Texts = Field(default=[], max_length=100)
    """Texts that end an answer, such as `["\\n"]`; they are not part of its text. For base models, which do
    not end their turns. A game, a role in `[roles]` and a program's own roles may have others."""
    reasoning: ThoughtTags = "auto"
    """The tags around a model's thoughts, which only the model itself sees: `auto` for those that models are
    known to use, a pair such as `["<plan>", "</plan>"]`, or `none` if all of an answer is what is said. A
    game, a role in `[roles]` and a program's own roles may have others."""
    max_reasoning: int | None = Field(default=None, ge=1, le=1_000_000)
    """Number of tokens of a thought after which the engine ends it, so that an answer follows within
    `max_tokens`; nobody learns from the tokens that end it. Not with vLLM. A game and a role may have
    another."""
    max_context: int | None = Field(default=None, ge=8, le=10_000_000)
    """Maximum length of prompt and answer together, in tokens; the embedded engine allows at most
    `max_cached_tokens`. By default, the model's own limit applies."""
    max_queue: int = Field(default=MAX_QUEUE, ge=1, le=10_000_000)
    """Maximum number of requests in progress at one engine; further requests are rejected."""
    max_cached_tokens: Annotated[int, Only("engine", ("embedded",))] = Field(
        default=MAX_CACHED_TOKENS, ge=64, le=1_000_000_000
    )
    """Maximum number of tokens whose keys and values the embedded engine holds at once, over all adapters. A
    request waits until its prompt and `max_tokens` more fit."""
    max_adapters: Annotated[int, Only("loads_adapters", why="the engine shares the learner's adapters")] = (
        Field(default=8, ge=1, le=100_000)
    )
    """Maximum number of adapters that vLLM, or an inference actor (`run.runtime` ray), holds at once."""
    max_batch: Annotated[int, _VLLM] = Field(default=256, ge=1, le=1_000_000)
    """Maximum number of requests that vLLM computes together."""
    gpu_memory: Annotated[float, _VLLM] = Field(default=0.9, ge=0.01, le=1)
    """Share of a GPU's memory that vLLM may use."""
    tensor_parallel: Annotated[int, replace(_VLLM, refused=True)] = Field(default=1, ge=1, le=1024)
    """Number of GPUs of one machine over which vLLM spreads the model. Above 1, Ray reserves that many GPUs
    for each inference actor, whatever `ray.gpus_per_engine` says."""
    sleep: Annotated[int, replace(_VLLM, refused=True)] = Field(default=0, ge=0, le=1)
    """What vLLM does while the learner learns, by vLLM's own levels: 1 moves its weights to the machine's
    memory and gives a GPU's back. For one process on a CUDA GPU, with `collection.max_staleness` 0. Level 2,
    which would drop them, is not offered."""
