"""What clients send, in OpenAI's formats: the body of a request for a job, and the lines of a training file.

Supervised: ``{"messages": [...]}``; a message of the assistant is trained on unless its ``weight`` is 0.
Preferences: ``{"input": {"messages": [...]}, "preferred_output": [...], "non_preferred_output": [...]}`` with
one message of the assistant in each output. What could only be ignored (tools, names, images) is refused.
"""

import re
from codecs import BOM_UTF8
from collections.abc import Callable
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import PydanticCustomError

from sparring.config.problems import first_in_short
from sparring.core import Message, Messages
from sparring.core.adapters import LORA_RANK, MAX_RANK
from sparring.engine.server_errors import ApiError
from sparring.learn.fine_tuning.examples import Conversation, Preference, WrongLine
from sparring.learn.fine_tuning.settings import JobSettings

MAX_MESSAGES = 4096
Checked = TypeVar("Checked")


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class TextPart(BaseModel):
    """A text part of a message's content, the only kind: the models read only text."""

    type: Literal["text"]
    text: str


class _TrainingMessage(_Strict):
    role: Literal["system", "developer", "user", "assistant", "text"]
    content: str | list[TextPart]
    weight: Literal[0, 1] | None = None

    def to_message(self) -> Message:
        content = self.content
        if not isinstance(content, str):
            content = "".join(part.text for part in content)
        return {"role": "system" if self.role == "developer" else self.role, "content": content}


class _Answer(_Strict):
    role: Literal["assistant"]
    content: str | list[TextPart]


class _Talk(_Strict):
    messages: list[_TrainingMessage] = Field(min_length=1, max_length=MAX_MESSAGES)
    tools: list[Any] = Field(default=[], max_length=0)
    parallel_tool_calls: bool | None = None


class _Choice(_Strict):
    input: _Talk
    preferred_output: list[_Answer] = Field(min_length=1, max_length=1)
    non_preferred_output: list[_Answer] = Field(min_length=1, max_length=1)


def read_conversations(content: bytes) -> list[Conversation]:
    """Return the conversations of a file for the method ``supervised``. Raises WrongLine: the first one."""
    return _read(content, _conversation)


def read_preferences(content: bytes) -> list[Preference]:
    """Return the preferences of a file for the method ``dpo``. Raises WrongLine: the first one."""
    return _read(content, _preference)


def _read(content: bytes, check: Callable[[int, bytes], Checked]) -> list[Checked]:
    lines = content.removeprefix(BOM_UTF8).removesuffix(b"\n").split(b"\n")
    return [check(number, line) for number, line in enumerate(lines, 1)]


def _conversation(number: int, line: bytes) -> Conversation:
    talk = _parsed(number, line, _Talk)
    messages = _messages(number, talk)
    if messages[-1]["role"] != "assistant":
        raise WrongLine(number, "the last message must be the assistant's")
    trained = tuple(
        index for index, one in enumerate(talk.messages) if one.role == "assistant" and one.weight != 0
    )
    if not trained:
        raise WrongLine(number, "every message of the assistant has weight 0")
    if trained[0] == 0:
        raise WrongLine(number, "a message must come before the assistant's first")
    return Conversation(number, messages, trained)


def _preference(number: int, line: bytes) -> Preference:
    choice = _parsed(number, line, _Choice)
    messages = _messages(number, choice.input)
    if messages[-1]["role"] == "assistant":
        raise WrongLine(number, "input.messages must end before the assistant's message")
    if any(one.weight is not None for one in choice.input.messages):
        raise WrongLine(number, "weight is a field of supervised examples only")
    (good,), (bad,) = choice.preferred_output, choice.non_preferred_output
    answers = [_TrainingMessage(role=one.role, content=one.content).to_message() for one in (good, bad)]
    return Preference(number, messages, *answers)


def _messages(number: int, talk: _Talk) -> Messages:
    for index, one in enumerate(talk.messages):
        if one.weight is not None and one.role != "assistant":
            raise WrongLine(number, f"messages.{index}: only messages of the assistant have a weight")
        if one.role == "text" and (index or any(other.role != "assistant" for other in talk.messages[1:])):
            raise WrongLine(number, f"messages.{index}: a message of role text is a whole prompt")
    return [one.to_message() for one in talk.messages]


def _parsed(number: int, line: bytes, form: type[Checked]) -> Checked:
    if not line.strip():
        raise WrongLine(number, "it is empty")
    try:
        return form.model_validate_json(line)  # type: ignore[attr-defined, no-any-return]
    except ValidationError as error:
        raise WrongLine(number, first_in_short(error)) from error


Auto = Literal["auto"]
MAX_METADATA, MAX_KEY, MAX_VALUE = 16, 64, 512
MAX_EPOCHS, MAX_BATCH, MAX_MULTIPLIER, MAX_BETA = 1000, 4096, 1e6, 100.0
SUFFIX = re.compile(r"[A-Za-z0-9._-]{1,64}")


def _whole(most: int) -> AfterValidator:
    return _in_range(lambda value: 1 <= value <= most, f"give a number from 1 to {most}, or auto")


def _positive(most: float) -> AfterValidator:
    return _in_range(lambda value: 0 < value <= most, f"give a number above 0 and up to {most:g}, or auto")


def _in_range(holds: Callable[[float], bool], problem: str) -> AfterValidator:
    def check(value: Any) -> Any:
        if value == "auto" or holds(value):
            return value
        raise PydanticCustomError("range", "{problem}", {"problem": problem})

    return AfterValidator(check)


class SupervisedHyperparameters(_Strict):
    """The hyperparameters of a job that may be chosen, by OpenAI's names."""

    n_epochs: Annotated[int | Auto, _whole(MAX_EPOCHS)] = "auto"
    batch_size: Annotated[int | Auto, _whole(MAX_BATCH)] = "auto"
    learning_rate_multiplier: Annotated[float | Auto, _positive(MAX_MULTIPLIER)] = "auto"

    def given(self) -> dict[str, Any]:
        """Return the values of settings, ``None`` for auto."""
        return {name: None if value == "auto" else value for name, value in self}


class DpoHyperparameters(SupervisedHyperparameters):
    """Those of a job of DPO."""

    beta: Annotated[float | Auto, _positive(MAX_BETA)] = "auto"


class TinkerHyperparameters(SupervisedHyperparameters):
    """Those of a job at a service with Tinker's API, and the rank of a new adapter."""

    rank: int = Field(default=LORA_RANK, ge=1, le=MAX_RANK)

    def settings(self, seed: int) -> JobSettings:
        """Return the settings of a job."""
        given = self.given()
        del given["rank"]
        return JobSettings("supervised", seed, **given)


class _SupervisedMethod(_Strict):
    hyperparameters: SupervisedHyperparameters = SupervisedHyperparameters()


class _DpoMethod(_Strict):
    hyperparameters: DpoHyperparameters = DpoHyperparameters()


class _Method(_Strict):
    type: Literal["supervised", "dpo", "reinforcement"]
    supervised: _SupervisedMethod | None = None
    dpo: _DpoMethod | None = None
    reinforcement: Any = None


class CreateJob(_Strict):
    """Body of ``POST /v1/fine_tuning/jobs``."""

    model: str = Field(min_length=1)
    training_file: str = Field(min_length=1)
    validation_file: str | None = None
    suffix: str | None = None
    seed: int | None = Field(default=None, ge=0, lt=2**63)
    method: _Method | None = None
    hyperparameters: SupervisedHyperparameters | None = None
    metadata: dict[str, str] | None = None
    integrations: list[Any] | None = None

    def check(self) -> None:
        """Check what types do not show. Raises ApiError."""
        if self.integrations:
            raise _unsupported("integrations", "this server reports to nobody")
        if self.suffix is not None and not SUFFIX.fullmatch(self.suffix):
            raise _wrong("suffix", "use 1 to 64 letters, digits, '.', '_' and '-'")
        metadata = self.metadata or {}
        too_long = any(len(key) > MAX_KEY or len(value) > MAX_VALUE for key, value in metadata.items())
        if len(metadata) > MAX_METADATA or too_long:
            limits = f"{MAX_METADATA} pairs, keys of {MAX_KEY} and values of {MAX_VALUE} characters"
            raise _wrong("metadata", f"at most {limits}")
        if self.method is not None and self.hyperparameters is not None:
            raise _wrong("hyperparameters", "give them within method only")

    def settings(self, seed: int) -> JobSettings:
        """Return the settings; ``seed`` is used if the request has none. Raises ApiError."""
        method = self.method or _Method(type="supervised")
        if method.type == "reinforcement":
            raise _unsupported("method.type", "this server has the methods supervised and dpo")
        for name in ("supervised", "dpo", "reinforcement"):
            if name != method.type and getattr(method, name) is not None:
                raise _wrong(f"method.{name}", f"the type of the method is {method.type}")
        chosen: SupervisedHyperparameters
        if method.type == "dpo":
            chosen = method.dpo.hyperparameters if method.dpo else DpoHyperparameters()
        else:
            given = method.supervised.hyperparameters if method.supervised else None
            chosen = given or self.hyperparameters or SupervisedHyperparameters()
        return JobSettings(method.type, seed if self.seed is None else self.seed, **chosen.given())


def _wrong(param: str, problem: str) -> ApiError:
    return ApiError(400, f"{param}: {problem}", param=param)


def _unsupported(param: str, problem: str) -> ApiError:
    return ApiError(400, f"{param}: {problem}. Leave it out", param=param, code="unsupported_value")
