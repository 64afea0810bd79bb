"""ModelCaller: makes the model calls of an arena, with the defaults of roles and a limit on calls."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar, cast

from sparring.core.adapters import BASE, TRAINED
from sparring.core.client import InferenceClient, ModelResponse, told_of_reasoning
from sparring.core.concurrency import CallSlots
from sparring.core.current_episode import current_episode, wait_for_slot
from sparring.core.errors import InputError, SparringError, TransientError, is_transient, reason_of, shown
from sparring.core.messages import Message, Messages, as_messages
from sparring.core.own_code import method_of, returned
from sparring.core.reasoning import checked_tags
from sparring.core.sampling import AS_LEARNED, drawn_text
from sparring.core.text import encodable
from sparring.core.types import UNSET, CallSettings, Role, seated
from sparring.core.verbose_logger import VerboseLogger

Answered = TypeVar("Answered")


class ModelCaller:
    """Makes model calls for roles.

    ``model_without_role`` answers calls that name neither role nor model; ``None`` selects the client's
    default. ``frozen`` are the models that roles may name as their policy without being trained.
    """

    def __init__(self, client: InferenceClient, max_calls: int, logger: VerboseLogger | None) -> None:
        self.client = client
        self.logger = logger
        self.roles: dict[str, Role] = {}
        self.frozen = {BASE}
        self.model_without_role: str | None = None
        self._slots = CallSlots(max_calls)

    def add_role(self, role: Role) -> None:
        """Register a role under its id; raise a TypeError if one of its settings is of the wrong type."""
        if not isinstance(role, Role):
            raise TypeError(f"a role is written Role(...), not {shown(role)}")
        numbers = (role.temperature, 1 if role.max_tokens is None else role.max_tokens)
        if not all(isinstance(one, int | float) for one in numbers):
            raise TypeError(f"temperature and max_tokens of role {role.id!r} must be numbers")
        if not isinstance(role.id, str) or not isinstance(role.policy, str):
            raise TypeError(f"the id and the policy of a role are texts, not {role.id!r} and {role.policy!r}")
        self.roles[role.id] = role

    def get_role(self, role_id: str) -> Role:
        """Return the role with this id; raise an InputError if there is none."""
        if role_id not in self.roles:
            known = ", ".join(self.roles) or "none"
            raise InputError(
                "role_id", f"there is no role {role_id}", f"Add it with add_role; there are: {known}"
            )
        return self.roles[role_id]

    @property
    def concurrency(self) -> int:
        """The maximum number of model calls in flight in the whole arena."""
        return self._slots.limit

    def set_concurrency(self, concurrency: int) -> None:
        """Change the maximum number of model calls in flight in the whole arena, from now on."""
        self._slots.set_limit(concurrency)

    async def call_model(
        self,
        messages: Messages | str,
        role_id: str | None = None,
        temperature: float | None = None,
        max_tokens: int | None = None,
        return_tokens: bool | None = None,
        *,
        model: str | None = None,
        seed: int | None = None,
        stop: Sequence[str] | None = None,
        calls: CallSettings = UNSET,
        given: str | None = None,
    ) -> ModelResponse:
        """Call the model for ``role_id``, whose settings are the defaults. A call without a role is not
        trained on. ``calls`` are further settings of this call; ``temperature``, ``max_tokens`` and ``stop``
        go before them.

        If the episode's request gives the role an agent, that one answers, with its own settings where it has
        any, and its kind says whether the answer is trained on. A string in place of messages is sent as one
        user message. Without ``seed``, the call uses the next call seed of the current episode. If the client
        does not report which policy version answered, the response gets the episode's. With ``given``, the
        model answers with this text; see :meth:`InferenceClient.give`.

        Raises InputError if there is no such role, or a sampling is for an answer that is trained on, and
        TransientError if the client failed; errors of this package that the client raises pass unchanged.
        """
        messages = as_messages(messages)
        if role_id is not None and (model is None or return_tokens is None):
            self.get_role(role_id)
        role = self.roles.get(role_id or "")
        agent = seated.get().get(role_id or "") if model is None else None
        stops = None if stop is None else tuple(stop)
        calls = CallSettings(temperature, max_tokens, stops).over(calls)
        for one in (agent, role):
            calls = calls if one is None else calls.over(one)
        if model is None:
            model = agent.model if agent else role.policy if role else self.model_without_role
        if return_tokens is None:
            trained = model not in self.frozen if agent is None else agent.kind == "policy"
            return_tokens = role is not None and trained
        temperature = 1.0 if calls.temperature is None else calls.temperature
        policy = (model or TRAINED) if return_tokens and role_id is not None else ""
        sampling = None if calls.sampling == AS_LEARNED else calls.sampling
        if policy and sampling is not None:
            problem = f"{drawn_text(None, sampling)} is for an answer that {policy} learns from"
            raise InputError("sampling", problem, "Leave it out: it learns what it draws from")
        episode = current_episode.get()
        if seed is None and episode is not None:
            seed = episode.next_call_seed()
        tags = checked_tags(calls.reasoning or "auto")
        told: dict[str, Any] = {}
        if given is None:
            # A client of one's own may not know these arguments, so it gets those that are set.
            some: dict[str, Any] = {"stop": calls.stop, "max_reasoning": calls.max_reasoning}
            some["sampling"] = sampling
            limits = {"max_tokens": calls.max_tokens} | {name: one for name, one in some.items() if one}
            told = told_of_reasoning(self.client, tags)
            ask = partial(
                self.client.complete, messages, return_tokens=return_tokens, seed=seed, **limits, **told
            )
        else:
            ask = partial(self.client.give, messages, given)
        source = method_of(self.client, "complete" if given is None else "give")
        call = partial(ask, temperature=temperature, model=model)
        response = _encodable(returned(await self._in_slot(call), ModelResponse, source))
        if not told or response.reasoning is None:
            response = response.read_by(tags)
        if self._slots.contended:
            await asyncio.sleep(0)  # the next call starts before this episode continues: no slot idles
        version = response.policy_version
        if version is None and episode is not None:
            version = episode.meta.get("policy_version")
        response = replace(response, policy_version=version, policy=policy, temperature=temperature)
        if self.logger is not None:
            has_tokens = response.completion_token_ids is not None
            self.logger.log_model_call(role_id or "(no role)", messages, response.text, has_tokens)
        return response

    async def score(
        self,
        messages: Messages,
        completions: list[str],
        *,
        model: str | None = None,
        role_id: str | None = None,
    ) -> list[float]:
        """Return the log-probability of each whole completion, see InferenceClient.score; the call takes a
        slot. With ``role_id``, whoever plays that role scores, as in :meth:`call_model`."""
        if model is None and role_id is not None:
            agent = seated.get().get(role_id)
            model = agent.model if agent else self.get_role(role_id).policy
        model = model or self.model_without_role
        return await self._in_slot(partial(self.client.score, messages, completions, model=model))

    async def _in_slot(self, call: Callable[[], Awaitable[Answered]]) -> Answered:
        """Call the client when a slot is free. An error that is neither this package's nor known to be
        transient becomes a TransientError."""
        if not self._slots.take():
            await wait_for_slot(self._slots)
        try:
            return await call()
        except Exception as error:
            if isinstance(error, SparringError) or is_transient(error):
                raise
            raise TransientError(f"the client failed: {reason_of(error)}") from error
        finally:
            self._slots.release()


def _encodable(response: ModelResponse) -> ModelResponse:
    """Return a response of a client without halves of surrogate pairs, which nothing can read or write."""
    texts = [response.text, response.written or "", *(one["content"] for one in response.completion)]
    if all(map(str.isascii, texts)):
        return response
    reasoning, written = response.reasoning, response.written
    if reasoning is not None:
        reasoning = replace(reasoning, text=encodable(reasoning.text))
    return replace(
        response,
        text=encodable(response.text),
        completion=list(map(_encodable_message, response.completion)),
        reasoning=reasoning,
        written=None if written is None else encodable(written),
    )


def _encodable_message(message: Message) -> Message:
    texts = {name: encodable(one) for name, one in message.items() if isinstance(one, str)}
    return cast(Message, message | texts)
