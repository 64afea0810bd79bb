"""What is asked of an engine, in this process or elsewhere: answers with options, adapters under names."""

import math
from abc import abstractmethod
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from sparring.core import InferenceClient, InputError, Messages, ModelResponse
from sparring.core.adapters import TRAINED, Quantization

if TYPE_CHECKING:
    from sparring.engine.adapter_check import Delivery

Served = TypeVar("Served")


@dataclass(frozen=True)
class Shaping:
    """How a distribution is shaped before a token is drawn from it; see ``shaped_logits``.

    Attributes:
        top_p: the smallest set of most likely tokens with at least this probability is kept.
        top_k: this many most likely tokens are kept; 0 keeps all.
        min_p: tokens of at least this share of the highest probability are kept.
        logit_bias: numbers that are added to the logits of tokens, each with its token.
    """

    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class AnswerOptions:
    """What a server's request may ask of an answer beyond temperature, limit, seed and stop strings.

    Runs do not use it, because a policy cannot learn from tokens whose probability was changed after the
    model.

    Attributes:
        shaping: how distributions are shaped.
        likeliest: the number of most likely tokens that are returned for each token, with their
            log-probabilities.
        as_drawn: log-probabilities are those of the distributions that tokens are drawn from; otherwise the
            model's own: at temperature 1 and unshaped.
        prompt_logprobs: the prompt's tokens get log-probabilities too, always the model's own. Then an answer
            may have no tokens.
        stop_token_ids: further tokens that end an answer, as the model's own do.
        ignore_eos: the model's own stop tokens do not end an answer.
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
    """How an engine computes the base model.

    Attributes:
        path: the model's directory.
        dtype: dtype of its weights, as torch names it.
        device: device of its weights.
        threads: threads of the computation.
        quantization: ``none`` or ``nf4``; see ``model.quantization``.
        max_context: maximum tokens of prompt and answer together.
        vocabulary_size: number of the model's token ids, which may be more than its tokenizer has.
    """

    path: str
    dtype: str
    device: str
    threads: int
    quantization: Quantization
    max_context: int
    vocabulary_size: int


class Answering(InferenceClient):
    """A client that serves models by name, and knows their tokens.

    Attributes:
        max_tokens: maximum number of tokens of an answer if a request does not give one.
        max_context: maximum number of tokens of prompt and answer together.
        vocabulary_size: the number of the model's token ids, which may be more than its tokenizer has.
        tokenizer: the model's tokenizer.
    """

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

    @abstractmethod
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
        options: AnswerOptions = PLAIN,
    ) -> ModelResponse:
        """Answer ``messages``; see :meth:`InferenceClient.complete`. The prompt may be a message of role
        ``text`` whose ``token_ids`` are its tokens.
        """

    async def stream(
        self,
        messages: Messages,
        temperature: float = 1.0,
        max_tokens: int | None = None,
        *,
        model: str | None = None,
        seed: int | None = None,
        stop: tuple[str, ...] = (),
        options: AnswerOptions = PLAIN,
    ) -> AsyncGenerator[ModelResponse]:
        """Answer as :meth:`complete` does, in parts; the last has the text and the reason of its end.

        An engine that sends whole answers yields one part.
        """
        yield await self.complete(
            messages, temperature, max_tokens, model=model, seed=seed, stop=stop, options=options
        )


class Publisher(Protocol):
    """Where adapters are published and withdrawn while an engine answers."""

    def names(self) -> list[str]:
        """Return the names of all models that are served, the base model's included."""

    async def publish_in_background(
        self, name: str, directory: Path, version: int | None = None, *, proof: bool = False
    ) -> "Delivery":
        """Serve the adapter in ``directory`` as ``name``, in place of one of that name.

        Args:
            name: the model name that clients request.
            directory: an adapter in PEFT's format.
            version: the version that its answers carry; one more than the newest by default.
            proof: whether its answers must be those that its learner described.

        Raises:
            InputError: it cannot be read or does not fit the model.
            DeliveryError: the answers are not those of this adapter.
            SparringError: no engine can be reached, or there is no memory for it.
        """

    def withdraw(self, name: str) -> None:
        """Stop serving ``name``."""


def find_model(served: Mapping[str, Served], name: str | None) -> Served:
    """Return the model that is served under a name, by default that of the trained policy.

    Raises:
        InputError: there is none.
    """
    name = name or TRAINED
    if name not in served:
        names = ", ".join(served) or "nothing yet"
        raise InputError("model", f"the engine does not serve {name}", f"It serves {names}")
    return served[name]


def check_sampling(max_tokens: int, temperature: float, least: int = 1) -> None:
    """Check the limit of an answer, which must be ``least`` tokens or more, and its temperature.

    Raises:
        InputError: one of them is impossible.
    """
    if max_tokens < least:
        raise InputError("max_tokens", f"{max_tokens} leaves no room for an answer", "Give at least 1")
    if not (temperature >= 0 and math.isfinite(temperature)):
        raise InputError("temperature", f"{temperature} is not possible", "Give 0 or more, such as 1")
