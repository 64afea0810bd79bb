"""The messages of the SDK that are protobuf: a request for gradients, and its answer and that of sampling."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

import numpy as np
from numpy.typing import NDArray

from sparring.core import InputError, ModelResponse
from sparring.finetune.tinker import protobuf
from sparring.finetune.tinker.protobuf import as_bytes, as_double, as_text, fields
from sparring.learn.token_learner import TokenSample

FLOAT32, INT64, INT32 = 1, 2, 3
DTYPES = {FLOAT32: "<f4", INT64: "<i8", INT32: "<i4"}
STOP, LENGTH = 0, 1
NO_TOKEN, NO_LOGPROB = 0, -99999.0
"""What fills the cells of a table of likely tokens that has fewer than K."""
TARGETS = "target_tokens"
MAX_SAMPLES = 1024


@dataclass
class GradientRequest:
    """A request for a forward pass, and for gradients unless ``forward_only``; ``data`` are the samples, each
    a message."""

    model_id: str = ""
    seq_id: int = 0
    data: list[bytes] = field(default_factory=list)
    loss_fn: str = ""
    settings: dict[str, float | str] = field(default_factory=dict)
    forward_only: bool = False

    @classmethod
    def read(cls, body: bytes) -> Self:
        """Return what a body says. Raises InputError: it is broken."""
        request = cls()
        try:
            for number, value in fields(body):
                request._take(number, value)
        except ValueError as error:
            problem = f"it is no ForwardBackwardRequest: {error}"
            raise InputError("body", problem, "Send what Tinker's SDK 0.38 sends.") from error
        return request

    def _take(self, number: int, value: int | bytes) -> None:
        match number:
            case 1:
                self.model_id = as_text(value)
            case 2:
                self.seq_id = int(value) if isinstance(value, int) else 0
            case 3:
                self.data.append(as_bytes(value))
            case 4:
                self.loss_fn = as_text(value)
            case 5:
                key, number_of = _entry(value)
                self.settings[key] = as_double(number_of)
            case 6:
                self.forward_only = bool(value)
            case 7:
                key, setting = _entry(value)
                for kind, content in fields(as_bytes(setting)):
                    self.settings[key] = as_double(content) if kind == 1 else as_text(content)

    def samples(self, vocabulary: int, context: int) -> list[TokenSample]:
        """Return the samples, whose tokens the model has. Raises InputError."""
        if not 0 < len(self.data) <= MAX_SAMPLES:
            problem = f"there are {len(self.data)} samples"
            raise InputError("data", problem, f"Send 1 to {MAX_SAMPLES} in a request.")
        found = []
        for number, one in enumerate(self.data):
            try:
                found.append(_sample(one, vocabulary, context))
            except InputError as error:
                raise InputError(f"data.{number}.{error.field}", error.problem, error.fix) from error
            except ValueError as error:
                raise InputError(f"data.{number}", f"it is broken: {error}", "Send a Datum.") from error
        names = {frozenset(one.inputs) for one in found}
        if len(names) > 1:
            problem = "not all samples have the same inputs"
            raise InputError("data", problem, "Give each sample the same loss_fn_inputs.")
        return found


def _entry(value: int | bytes) -> tuple[str, int | bytes]:
    """Return the key and the value of an entry of a map."""
    entry = dict(fields(as_bytes(value)))
    return as_text(entry.get(1, b"")), entry.get(2, b"")


def _sample(message: bytes, vocabulary: int, context: int) -> TokenSample:
    tokens: list[int] = []
    inputs: dict[str, NDArray[np.generic]] = {}
    for number, value in fields(message):
        if number == 1:
            tokens += _chunk(as_bytes(value))
        elif number == 2:
            name, tensor = _entry(value)
            inputs[name] = _tensor(name, as_bytes(tensor))
    _check_tokens("model_input", tokens, vocabulary)
    if not 0 < len(tokens) <= context:
        problem = f"it has {len(tokens)} tokens, and the model's context {context}"
        raise InputError("model_input", problem, "Send a shorter one.")
    if TARGETS not in inputs:
        raise InputError("loss_fn_inputs", f"there are no {TARGETS}", "Give one for each token.")
    for name, values in inputs.items():
        if values.shape != (len(tokens),):
            problem = f"{name} has the shape {list(values.shape)}, but model_input {len(tokens)} tokens"
            raise InputError("loss_fn_inputs", problem, "Give one number for each token.")
    targets_N = inputs.pop(TARGETS).astype(np.int64)
    _check_tokens(f"loss_fn_inputs.{TARGETS}", targets_N.tolist(), vocabulary)
    return TokenSample(tokens, targets_N, {name: one.astype(np.float32) for name, one in inputs.items()})


def _chunk(message: bytes) -> list[int]:
    for number, value in fields(message):
        if number != 1:
            raise InputError("model_input", "it has more than text", "This server's models read only text.")
        content = dict(fields(as_bytes(value))).get(1, b"")
        return [int(one) for one in np.frombuffer(as_bytes(content), "<i4")]
    return []


def _tensor(name: str, message: bytes) -> NDArray[np.generic]:
    dense, dtype, shape = b"", 0, list[int]()
    for number, value in fields(message):
        if number == 2:
            problem = f"{name} is sparse"
            raise InputError("loss_fn_inputs", problem, "Give one number for each token.")
        if number == 1:
            dense = as_bytes(value)
        elif number == 3 and isinstance(value, int):
            dtype = value
        elif number == 4:
            shape += protobuf.varints(value)
    if dtype not in DTYPES:
        raise InputError("loss_fn_inputs", f"{name} has the type {dtype}", "Send float32 or int64.")
    values = np.frombuffer(dense, DTYPES[dtype])
    return values.reshape(shape) if shape and math.prod(shape) == len(values) else values


def _check_tokens(name: str, tokens: Sequence[int], vocabulary: int) -> None:
    wrong = next((one for one in tokens if not 0 <= one < vocabulary), None)
    if wrong is not None:
        raise InputError(name, f"{wrong} is not one of the {vocabulary} tokens", "Use the model's tokenizer.")


def gradient_answer(loss: float, logprobs: Sequence[NDArray[np.float32]]) -> bytes:
    """Return the answer to a :class:`GradientRequest`: the loss, and log-probabilities of each sample."""
    ends = np.cumsum([0, *(one.nbytes for one in logprobs)], dtype="<i8")
    data = np.concatenate(logprobs).astype("<f4").tobytes()
    batched = protobuf.field(1, data) + protobuf.field(2, ends.tobytes()) + protobuf.field(3, FLOAT32)
    record = protobuf.field(1, "ArrayRecord") + protobuf.field(2, _map_entry("logprobs", batched))
    record += protobuf.field(3, len(logprobs))
    metrics = protobuf.field(1, "loss:sum") + protobuf.field(2, loss)
    return protobuf.field(1, "ArrayRecord") + protobuf.field(2, record) + protobuf.field(3, metrics)


def _map_entry(key: str, value: bytes) -> bytes:
    return protobuf.field(1, key) + protobuf.field(2, value)


def sample_answer(
    answers: Sequence[ModelResponse], *, likeliest: int, prompt: Sequence[float] | None, prompt_likeliest: int
) -> bytes:
    """Return the answer to a request for samples: ``likeliest`` tokens for each that was drawn; log-
    probabilities of the prompt (NaN where there is none), and as many of its likeliest tokens."""
    encoded = b"".join(protobuf.field(1, _sequence(one, likeliest)) for one in answers)
    if prompt is not None:
        encoded += protobuf.field(2, np.array(prompt, "<f4").tobytes())
    more = answers[0].more
    if prompt_likeliest and more is not None:
        encoded += protobuf.field(3, _likeliest([[], *more.prompt_likeliest], prompt_likeliest))
    return encoded


def _sequence(answer: ModelResponse, likeliest: int) -> bytes:
    reason = STOP if answer.finish_reason == "stop" else LENGTH
    encoded = protobuf.field(1, reason)
    encoded += protobuf.field(2, np.array(answer.completion_token_ids or [], "<i4").tobytes())
    encoded += protobuf.field(3, np.array(answer.completion_logprobs or [], "<f4").tobytes())
    if likeliest and answer.more is not None:
        encoded += protobuf.field(4, _likeliest(answer.more.likeliest, likeliest))
    return encoded


def _likeliest(rows: Sequence[Sequence[tuple[int, float]]], most: int) -> bytes:
    cells = [[*row[:most], *[(NO_TOKEN, NO_LOGPROB)] * (most - len(row))] for row in rows]
    tokens = np.array([[token for token, _ in row] for row in cells], "<i4")
    logprobs = np.array([[logprob for _, logprob in row] for row in cells], "<f4")
    encoded = protobuf.field(1, tokens.tobytes()) + protobuf.field(2, logprobs.tobytes())
    return encoded + protobuf.field(3, most) + protobuf.field(4, len(rows))
