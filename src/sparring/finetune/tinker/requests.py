"""The SDK's requests in JSON. A field that this server does not know is refused."""

import json
import re
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from sparring.core.adapters import MAX_RANK
from sparring.engine.server_requests import (
    MAX_CHOICES,
    MAX_LIKELIEST,
    MAX_STOP_CHARACTERS,
    MAX_STOPS,
    TokenIds,
)
from sparring.learn.token_learner import AdamStep

CHECKPOINT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
SESSION = re.compile(r"[0-9a-f]{32}")
MODEL = re.compile(rf"{SESSION.pattern}:train:[0-9]{{1,9}}")
SAMPLER = re.compile(rf"{SESSION.pattern}:sample:[0-9]{{1,9}}")
Number = Annotated[int, Field(ge=0, lt=10**9)]
MAX_METADATA_BYTES = 2**16


def _writable(metadata: dict[str, Any]) -> dict[str, Any]:
    """Refuse what could not be listed again."""
    try:
        text = json.dumps(metadata, allow_nan=False, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:  # broken Unicode is a ValueError
        raise ValueError("only finite numbers and valid text can be kept") from error
    if len(text) > MAX_METADATA_BYTES:
        raise ValueError(f"it has {len(text):,} bytes. Send at most {MAX_METADATA_BYTES:,}")
    return metadata


Metadata = Annotated[dict[str, Any], Field(max_length=64), AfterValidator(_writable)]


class TrainingRequest(BaseModel):
    """What all requests have in common."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, protected_namespaces=())

    type: str = ""


class CreateSession(TrainingRequest):
    """Body of ``create_session``; a session only gives its models and samplers their names."""

    tags: list[str] = Field(default=[], max_length=64)
    user_metadata: Metadata | None = None
    sdk_version: str = ""
    project_id: str | None = None
    display_name: str | None = Field(default=None, max_length=1000)


class OfSession(TrainingRequest):
    """Body of ``session_heartbeat``."""

    session_id: str


class LoraShape(TrainingRequest):
    """The shape of a new adapter. The output layer has none, whatever ``train_unembed`` says."""

    rank: int = Field(ge=1, le=MAX_RANK)
    seed: int | None = Field(default=None, ge=0, lt=2**63)
    train_unembed: bool = True
    train_mlp: bool = True
    train_attn: bool = True


class Adam(TrainingRequest):
    """The optimizer, the only one."""

    type: Literal["adamw"] = "adamw"


class CreateModel(TrainingRequest):
    """Body of ``create_model``."""

    session_id: str
    model_seq_id: Number
    base_model: str
    user_metadata: Metadata | None = None
    lora_config: LoraShape
    optimizer_config: Adam = Adam()


class OfModel(TrainingRequest):
    """Body of ``get_info``."""

    model_id: str


class InTurn(OfModel):
    """A request that a model takes when it has taken the one before."""

    seq_id: Number


class AdamParams(TrainingRequest):
    """The values of a step of AdamW."""

    learning_rate: float = Field(default=1e-4, ge=0)
    beta1: float = Field(default=0.9, ge=0, lt=1)
    beta2: float = Field(default=0.95, ge=0, lt=1)
    eps: float = Field(default=1e-12, ge=1e-30)  # 0 divides zero gradients by zero
    weight_decay: float = Field(default=0.0, ge=0)
    grad_clip_norm: float = 0.0

    def step(self) -> AdamStep:
        """Return them as the learner takes them."""
        betas = (self.beta1, self.beta2)
        return AdamStep(self.learning_rate, betas, self.eps, self.weight_decay, self.grad_clip_norm)


class OptimStep(InTurn):
    """Body of ``optim_step``."""

    adam_params: AdamParams


class SaveWeights(InTurn):
    """Body of ``save_weights``. What is saved stays until it is deleted, whatever ``ttl_seconds`` says."""

    path: str | None = Field(default=None, pattern=rf"^{CHECKPOINT_NAME.pattern}$")
    ttl_seconds: int | None = None
    overwrite: bool = False
    user_metadata: Metadata | None = None


class SaveForSampler(InTurn):
    """Body of ``save_weights_for_sampler``: under a name, or for one sampling session."""

    path: str | None = Field(default=None, pattern=rf"^{CHECKPOINT_NAME.pattern}$")
    sampling_session_seq_id: Number | None = None
    kind: Literal["snapshot"] = "snapshot"
    ttl_seconds: int | None = None
    user_metadata: Metadata | None = None


class LoadWeights(TrainingRequest):
    """Body of ``load_weights``: into a model, or into a new one, which a session then numbers."""

    model_id: str | None = None
    seq_id: Number | None = None
    session_id: str | None = None
    model_seq_id: Number | None = None
    base_model: str | None = None
    user_metadata: Metadata | None = None
    path: str
    optimizer: bool
    optimizer_config: Adam | None = None
    weights_access_token: None = None


class CreateSampler(TrainingRequest):
    """Body of ``create_sampling_session``."""

    session_id: str
    sampling_session_seq_id: Number
    base_model: str | None = None
    model_path: str | None = None


def _no_stability(value: object) -> object:
    if value:
        raise ValueError("this server records none. Train with importance_sampling, cispo or gspo")
    return value


class Chunk(TrainingRequest):
    """A part of a prompt, which is text."""

    type: Literal["encoded_text"] = "encoded_text"
    tokens: TokenIds


class Prompt(TrainingRequest):
    """A prompt."""

    chunks: list[Chunk] = Field(min_length=1)

    def ids(self) -> list[int]:
        """Return its token ids."""
        return [token for chunk in self.chunks for token in chunk.tokens]


StopText = Annotated[str, Field(max_length=MAX_STOP_CHARACTERS)]
Stop = TypeVar("Stop")
Stops = Annotated[list[Stop], Field(max_length=MAX_STOPS)]


class SamplingParams(TrainingRequest):
    """How tokens are drawn. Without ``stop``, the model's own ends stop; an empty list lets nothing stop."""

    max_tokens: int | None = Field(default=None, ge=1)
    seed: int | None = None
    stop: StopText | Stops[int] | Stops[StopText] | None = None
    temperature: float = Field(default=1.0, ge=0)
    top_k: int = Field(default=-1, ge=-1)
    top_p: float = Field(default=1.0, gt=0, le=1)

    def stops(self) -> tuple[tuple[str, ...], tuple[int, ...]]:
        """Return the texts and the tokens that stop."""
        given = [self.stop] if isinstance(self.stop, str) else self.stop or []
        texts = tuple(one for one in given if isinstance(one, str) and one)
        return texts, tuple(one for one in given if isinstance(one, int))


class Sample(TrainingRequest):
    """Body of ``asample``."""

    num_samples: int = Field(default=1, ge=1, le=MAX_CHOICES)
    prompt: Prompt
    sampling_params: SamplingParams
    sampling_session_id: str
    seq_id: Annotated[int, Field(ge=0)]
    prompt_logprobs: bool | None = None
    topk_prompt_logprobs: int = Field(default=0, ge=0, le=MAX_LIKELIEST)
    topk_sample_logprobs: int = Field(default=0, ge=0, le=MAX_LIKELIEST)
    prompt_logprobs_last_n: int | None = Field(default=None, ge=1)
    target_prompt_logprobs: None = None
    prompt_alt_tokens_k: Literal[0] = 0
    record_stability_info: Annotated[bool | None, BeforeValidator(_no_stability)] = None


class Retrieve(TrainingRequest):
    """Body of ``retrieve_future``."""

    request_id: str = Field(max_length=200)
    allow_metadata_only: bool = False


class OfPath(TrainingRequest):
    """Body of ``weights_info``."""

    tinker_path: str
