"""InferenceClient: the source of an episode's answers."""

import asyncio
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sparring.core.adapters import TRAINED
from sparring.core.errors import InputError, SparringError
from sparring.core.messages import Messages, as_answer, as_text, listed, said
from sparring.core.reasoning import Parts, Reasoning, ReasoningTags, split, tags_for
from sparring.core.sampling import Sampling
from sparring.core.types import Step

CANNOT_GIVE = "has no log-probabilities for an answer that it did not draw"
"""What a client is refused with that has no :meth:`InferenceClient.give`."""


@dataclass
class MoreLogprobs:
    """Log-probabilities beyond those of the drawn tokens, which only servers ask for.

    Attributes:
        likeliest: the most likely tokens instead of each drawn one, with their log-probabilities,
            falling.
        prompt: the log-probability of each token of the prompt after the first, if it was asked for.
        prompt_likeliest: the most likely tokens instead of each of these.
    """

    likeliest: list[list[tuple[int, float]]]
    prompt: list[float]
    prompt_likeliest: list[list[tuple[int, float]]]


@dataclass
class ModelResponse:
    """One answer. Token fields are ``None`` where the client cannot provide them; they are never made up.

    ``text`` is what was said. If the model thought before it spoke, ``reasoning`` is what it thought, and
    ``written`` the whole with its tags, if the client has it. ``forced`` is the range of the drawn ids that
    the engine put there to end a thought: nobody learns from these. ``completion`` is the answer as a message
    for later prompts, with its token ids if they are known. ``completion_logprobs`` are natural logarithms
    under the sampling distribution. ``policy_version`` is ``None`` if the client does not know it.
    ``finish_reason`` is ``stop`` (a stop token or string was drawn) or ``length`` (the answer was cut at the
    token limit). The arena sets ``policy`` and ``temperature``.
    """

    text: str
    completion: Messages
    prompt_token_ids: list[int] | None = None
    completion_token_ids: list[int] | None = None
    completion_logprobs: list[float] | None = None
    policy_version: int | None = None
    finish_reason: str = "stop"
    policy: str = TRAINED
    temperature: float = 1.0
    more: MoreLogprobs | None = None
    reasoning: Reasoning | None = None
    written: str | None = None
    forced: tuple[int, int] | None = None

    @property
    def drawn(self) -> list[int] | None:
        """The token ids of the answer, if known, even if the call did not ask for tokens to train on."""
        return self.completion[0].get("token_ids") if self.completion else None

    def read_by(self, tags: ReasoningTags) -> "ModelResponse":
        """Return the response read with a role's tags. With ``auto``, a client that knows the model's own
        tags has told its thoughts apart."""
        if tags == "auto" and self.reasoning is not None:
            return self
        whole = self.text if self.written is None else self.written
        return self.in_parts(split(whole, tags_for(tags)), whole)

    def in_parts(self, parts: Parts, written: str | None) -> "ModelResponse":
        """Return the response whose text is what was said, out of all that was written."""
        if parts.reasoning is None:
            if parts.said == self.text and self.reasoning is None:
                return self
            completion = [said("assistant", parts.said, self.drawn)]
            return replace(self, text=parts.said, completion=completion, reasoning=None, written=None)
        message = said("assistant", parts.said, self.drawn, written)
        message["reasoning"] = parts.reasoning.text
        return replace(
            self, text=parts.said, completion=[message], reasoning=parts.reasoning, written=written
        )

    def to_step(self, role_id: str, prompt: Messages | str, **info: Any) -> Step:
        """Return the step for this answer to ``prompt``. It is checked when the episode has ended
        (``played.py``)."""
        return Step(
            role_id=role_id,
            prompt=as_text(listed(prompt)),
            completion=as_answer(self.completion),
            prompt_token_ids=self.prompt_token_ids,
            completion_token_ids=self.completion_token_ids,
            completion_logprobs=self.completion_logprobs,
            policy_version=self.policy_version or 0,
            policy=self.policy,
            temperature=self.temperature,
            info={**info, "finish_reason": self.finish_reason, **self._notes()},
        )

    def _notes(self) -> dict[str, Any]:
        """Return what a step notes of the reasoning, if there is some."""
        if self.reasoning is None:
            return {}
        forced = {} if self.forced is None else {"forced": list(self.forced)}
        return {"reasoning": {"ended": self.reasoning.ended, "tokens": self.reasoning.tokens}, **forced}


def before_stop(text: str, stop: Sequence[str]) -> str | None:
    """Return the text before the first stop string in it; ``None`` if there is none."""
    places = [place for one in stop if (place := text.find(one)) >= 0]
    return text[: min(places)] if places else None


class InferenceClient(ABC):
    """Abstract interface for model calls."""

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
        max_reasoning: int | None = None,
        sampling: Sampling | None = None,
        reasoning: ReasoningTags = "auto",
    ) -> ModelResponse:
        """Answer ``messages``.

        Args:
            messages: OpenAI-style chat messages.
            temperature: sampling temperature; 0 takes the most likely token.
            max_tokens: maximum number of tokens to draw; ``None`` means the client's default.
            return_tokens: whether to return token ids and log-probabilities.
            model: the model that answers (a policy or a member); ``None`` means the client's default.
            seed: makes the draw repeatable if the client supports it.
            stop: the answer ends where one of these texts appears in what is said. Its text does not
                contain it, its tokens do.
            max_reasoning: number of tokens of a thought after which the client ends it.
            sampling: what is kept of each distribution; ``None`` means all. The arena leaves this,
                ``max_reasoning`` and ``stop`` out where there is none.
            reasoning: the tags of what ``stop`` and ``max_reasoning`` take for a thought, and of the
                response's. The arena reads the answer by them itself if a client does not take this.
        """

    async def give(
        self, messages: Messages, text: str, temperature: float = 1.0, *, model: str | None = None
    ) -> ModelResponse:
        """Return the response in which the model had drawn ``text`` and a stop token as its answer.

        The log-probabilities of its tokens are the model's own, as in :meth:`complete`. Raises InputError:
        the client cannot do this; ContextError: prompt and ``text`` are too long for the model.
        """
        raise InputError("client", f"{type(self).__name__} {CANNOT_GIVE}", "Use the embedded engine")

    async def score(
        self, messages: Messages, completions: list[str], *, model: str | None = None
    ) -> list[float]:
        """Return the log-probability of each whole completion, stop token included, at temperature 1."""
        raise SparringError(f"{type(self).__name__} cannot score completions; use the embedded engine")

    async def get_policy_version(self) -> int:
        """Return the version of the policy that currently answers."""
        return 0


class MockInferenceClient(InferenceClient):
    """A client for tests that answers by a function or from a cycle of texts, after ``latency`` seconds.

    Token ids are the UTF-8 bytes of the text with 0 as the stop token, each with log-probability ``logprob``.
    """

    def __init__(
        self,
        responses: Sequence[str] | Callable[[Messages, int | None], str] = ("a mock answer",),
        latency: float = 0.0,
        logprob: float = -0.5,
    ) -> None:
        self.responses = responses
        self.latency = latency
        self.logprob = logprob
        self.calls = 0
        self.in_flight = 0
        self.max_in_flight = 0

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
        if callable(self.responses):
            text = self.responses(messages, seed)
        else:
            text = self.responses[self.calls % len(self.responses)]
        stopped = before_stop(text, stop)
        return await self._response(messages, text if stopped is None else stopped, return_tokens)

    async def give(
        self, messages: Messages, text: str, temperature: float = 1.0, *, model: str | None = None
    ) -> ModelResponse:
        """Answer with ``text``."""
        return await self._response(messages, text, True)

    async def _response(self, messages: Messages, text: str, return_tokens: bool) -> ModelResponse:
        self.calls += 1
        self.in_flight += 1
        self.max_in_flight = max(self.max_in_flight, self.in_flight)
        try:
            await asyncio.sleep(self.latency)
        finally:
            self.in_flight -= 1
        response = ModelResponse(text, [{"role": "assistant", "content": text}])
        if return_tokens:
            response.prompt_token_ids = list(_bytes("\n".join(m["content"] for m in messages)))
            response.completion_token_ids = [*_bytes(text), 0]
            response.completion_logprobs = [self.logprob] * len(response.completion_token_ids)
        return response


def _bytes(text: str) -> bytes:
    return text.encode(errors="surrogatepass")


def told_of_reasoning(client: InferenceClient, tags: ReasoningTags) -> dict[str, Any]:
    """Return the argument that tells a client's ``complete`` the tags of a role's thoughts.

    There is none for the usual tags, nor for a client of one's own that takes no such argument; then whoever
    asks reads the answer by the tags (:meth:`ModelResponse.read_by`).
    """
    if tags == "auto":
        return {}
    parameters = inspect.signature(client.complete).parameters
    takes = "reasoning" in parameters or any(one.kind is one.VAR_KEYWORD for one in parameters.values())
    return {"reasoning": tags} if takes else {}
