"""What is asked of an engine, in this process or elsewhere: answers with options, adapters under names."""

import math
from abc import abstractmethod
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from sparring.core import InferenceClient, InputError, Messages, ModelResponse
from sparring.core.adapters import TRAINED, Quantization
from sparring.core.chat_template import TemplateOption
from sparring.core.reasoning import ReasoningTags
from sparring.core.sampling import AS_LEARNED, Sampling

VERSION_HEADER = "x-sparring-policy-version"
"""The header in which ``sparring serve`` gives the policy version that answered."""
TOKEN_VARIABLE = "SPARRING_API_KEY"
"""The environment variable of the token that ``sparring serve`` and its clients share."""
EMPTY_PROMPT = "an empty prompt has no continuation"
Served = TypeVar("Served")


@dataclass(frozen=True)
class Shaping:
    """How a distribution is shaped before a token is drawn: numbers added to the logits of tokens, then
    ``sampling``."""

    sampling: Sampling = AS_LEARNED
    logit_bias: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class AnswerOptions:
    """What may be asked of an answer that nobody learns from; only a server's requests ask for more than a
    sampling.

    ``likeliest`` tokens are returned for each token. Log-probabilities are those of the draw (``as_drawn``)
    or the model's own, at temperature 1 and unshaped; those of the prompt always the model's own. With
    ``prompt_logprobs`` an answer may have no tokens.
    """

    shaping: Shaping = Shaping()
    likeliest: int = 0
    as_drawn: bool = True
    prompt_logprobs: bool = False
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False


PLAIN = AnswerOptions()


@dataclass(frozen=True)
class ModelFacts:
    """How an engine computes the base model; the vocabulary may be larger than the tokenizer's."""

    path: str
    dtype: str
    device: str
    threads: int
    quantization: Quantization
    max_context: int
    vocabulary_size: int
    template_options: Mapping[str, TemplateOption] = field(default_factory=dict)


@dataclass(frozen=True)
class EngineCall:
    """One call of an engine: what :meth:`InferenceClient.complete` is given, and ``options``.

    With ``given``, the answer is this text, as in :meth:`InferenceClient.give`.
    """

    messages: Messages
    temperature: float = 1.0
    max_tokens: int | None = None
    return_tokens: bool = True
    model: str | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    options: AnswerOptions = PLAIN
    given: str | None = None
    max_reasoning: int | None = None
    reasoning: ReasoningTags = "auto"


class Engine(InferenceClient):
    """A client that takes a call as a whole. In messages of role ``text``, ``token_ids`` may be the prompt's
    own."""

    @abstractmethod
    async def answer(self, call: EngineCall) -> ModelResponse:
        """Answer a call."""

    async def complete(
        self,
        messages: Messages,
        temperature: float = 1.0,
        max_tokens: int | None = None,
        return_tokens: bool = True,
        *,
        model: str | None = None,
        seed: int | None = None,
        stop: tuple[str, ...] = (),
        max_reasoning: int | None = None,
        sampling: Sampling | None = None,
        reasoning: ReasoningTags = "auto",
    ) -> ModelResponse:
        """Answer ``messages``; see :meth:`answer`."""
        options = PLAIN if sampling is None else AnswerOptions(Shaping(sampling))
        return await self.answer(
            EngineCall(
                messages,
                temperature,
                max_tokens,
                return_tokens,
                model,
                seed,
                stop,
                options,
                max_reasoning=max_reasoning,
                reasoning=reasoning,
            )
        )

    async def give(
        self, messages: Messages, text: str, temperature: float = 1.0, *, model: str | None = None
    ) -> ModelResponse:
        """Answer with ``text``; see :class:`InferenceClient` and :meth:`answer`."""
        return await self.answer(EngineCall(messages, temperature, model=model, given=text))


class Answering(Engine):
    """An engine that serves models by name, and knows their tokens. ``max_tokens`` limits an answer if a call
    does not, ``max_context`` prompt and answer together."""

    max_tokens: int
    max_context: int
    vocabulary_size: int
    tokenizer: Any

    @abstractmethod
    def names(self) -> list[str]:
        """Return the names of the served models."""

    @abstractmethod
    def render(self, messages: Messages) -> list[int]:
        """Return the token ids of a prompt; it may be called in a thread."""

    async def stream(self, call: EngineCall) -> AsyncGenerator[ModelResponse]:
        """Answer in parts, of which the last has the text and the reason of its end. An engine that sends
        whole answers yields one part."""
        yield await self.answer(call)


def find_model(served: Mapping[str, Served], name: str | None) -> Served:
    """Return the model that is served under a name, by default the trained policy. Raises InputError: there
    is none."""
    name = name or TRAINED
    if name not in served:
        names = ", ".join(served) or "nothing yet"
        raise InputError("model", f"the engine does not serve {name}", f"It serves {names}")
    return served[name]


def check_sampling(max_tokens: int, temperature: float, least: int = 1) -> None:
    """Check an answer's limit, ``least`` tokens or more, and its temperature. Raises InputError."""
    if max_tokens < least:
        raise InputError("max_tokens", f"{max_tokens} leaves no room for an answer", "Give at least 1")
    if not (temperature >= 0 and math.isfinite(temperature)):
        raise InputError("temperature", f"{temperature} is not possible", "Give 0 or more, such as 1")
