"""TinkerService: the training API of Thinking Machines, or of ``sparring serve --training``, by its own SDK.

The SDK waits for as long as its server does not answer, and raises errors of many types. Here every wait has
a limit, and every error is one line.
"""

import asyncio
import contextlib
import logging
import threading
from collections.abc import Awaitable, Callable, Coroutine, Hashable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import urlsplit

from sparring.core import InputError, SparringError, TransientError
from sparring.core.answer_reader import AnswerReader
from sparring.core.chat_tokens import ChatTokens
from sparring.core.errors import imported
from sparring.engine.api_connection import checked_address, key_of
from sparring.engine.api_replies import read_error, words_of
from sparring.learn.model_files import load_chat_tokens

FIELD = "finetune.provider.type"
"""The setting that asks for this service."""
PATH = "tinker://"
"""Begins the names of saved weights; other models are base models."""
KEY_PREFIX = "tml-"
CONNECT_SECONDS, END_SECONDS = 60.0, 10.0
REFUSED_FOR_NOW = (402, 408, 409, 429)
"""Refusals (4xx) that are of the moment, not of the request."""
UNKNOWN_CONTEXT = 2**20
Made = TypeVar("Made")


@dataclass(frozen=True)
class TinkerBase:
    """What turns messages into ids of a base model and back, and how many tokens it takes."""

    tokens: ChatTokens
    reader: AnswerReader
    context: int


@dataclass(frozen=True)
class Connected:
    """The SDK's clients, whose session is open, and the base models with their longest contexts."""

    service: Any
    rest: Any
    contexts: dict[str, int | None]


class TinkerService:
    """A connection, made when it is first needed. ``sdk`` is the package ``tinker``. Raises InputError: the
    package, the address or the key is wrong."""

    def __init__(self, base_url: str) -> None:
        self.sdk = imported(FIELD, "tinker", "tinker")
        logging.getLogger("tinker").addHandler(logging.NullHandler())  # or Python prints its lines
        self.base_url = base_url.rstrip("/").removesuffix("/v1")
        self.host = urlsplit(self.base_url).netloc.rpartition("@")[2]
        self._key_name, self._key = key_of(checked_address(base_url).hostname or "")
        self._made: dict[Hashable, asyncio.Task[Any]] = {}

    async def connected(self) -> Connected:
        """Return the connection. Raises InputError: the key is wrong; SparringError: there is none now."""
        return await self._once("connected", self._connect)

    async def sampler(self, model: str) -> Any:
        """Return the SDK's sampler of a base model, or of weights that were saved for sampling."""

        async def make() -> Any:
            which = {"model_path": model}
            if not model.startswith(PATH):
                which = {"base_model": model}
                await self.base(model)
            service = (await self.connected()).service
            return await self.ask(
                lambda: service.create_sampling_client(**which),
                f"model {model}",
                CONNECT_SECONDS,
                failure=TransientError,
            )

        return await self._once(("sampler", model), make)

    async def base(self, model: str) -> TinkerBase:
        """Return what is needed of a base model. Raises InputError: there is none, or it has no tokenizer."""

        async def make() -> TinkerBase:
            contexts = (await self.connected()).contexts
            if model not in contexts:
                known = ", ".join(map(ascii, sorted(contexts)[:20]))
                raise InputError("model_name", f"{self.host} has no model {model!r:.100}", f"Use {known}")
            tokens = await asyncio.to_thread(load_chat_tokens, model)
            return TinkerBase(tokens, AnswerReader(tokens.tokenizer), contexts[model] or UNKNOWN_CONTEXT)

        return await self._once(("base", model), make)

    async def ask(
        self,
        begin: Callable[[], Awaitable[Made]],
        what: str,
        seconds: float,
        *,
        refused: type[SparringError] = SparringError,
        failure: type[SparringError] = SparringError,
    ) -> Made:
        """Return what a call of the SDK answers.

        Raises ``refused``: it never will, as it is asked; ``failure``: not now, or not within ``seconds``;
        InputError: the key is wrong.
        """
        about = f"{self.host}, {what}"
        try:
            async with asyncio.timeout(seconds):
                return await begin()
        except TimeoutError:
            problem: SparringError = failure(f"{about}: no answer within {seconds:g} s")
        except SparringError:
            raise
        except Exception as error:  # noqa: BLE001 (the SDK also raises ValueError and RuntimeError)
            problem = self._problem(error, about, refused, failure)
        # Raised outside of the handler, so that the error is not chained to one that may contain the key.
        raise problem

    async def close(self) -> None:
        """End the session; the next call opens another one."""
        connected = self._made.get("connected")
        for task in self._made.values():
            task.cancel()
        await asyncio.gather(*self._made.values(), return_exceptions=True)
        self._made.clear()
        if connected is not None and not connected.cancelled() and connected.exception() is None:
            service = connected.result().service
            with contextlib.suppress(SparringError):  # a session that nobody ends times out
                await self.ask(lambda: service.close("success"), "the end of the session", END_SECONDS)

    def _problem(
        self, error: Exception, about: str, refused: type[SparringError], failure: type[SparringError]
    ) -> SparringError:
        sdk, status = self.sdk, 0
        words = words_of(str(error).removeprefix("Request failed: ").partition(" for self.")[0], self._key)
        if isinstance(error, sdk.APIStatusError):
            status = error.status_code
            words = read_error(status, error.body, error.response.headers, self._key).words
        if status in (401, 403):
            problem = f"was rejected by {self.host} ({status})"
            return InputError(self._key_name, problem, "Set it to a key that this service accepts")
        of_user = isinstance(error, sdk.RequestFailedError) and error.category == "user"
        if of_user or (400 <= status < 500 and status not in REFUSED_FOR_NOW):
            return refused(f"{about}: {words}")
        return failure(f"{about}: {words}")

    async def _connect(self) -> Connected:
        key = self._key if self._key.startswith(KEY_PREFIX) else f"{KEY_PREFIX}{self._key}"
        account = {"base_url": self.base_url, "api_key": key}

        def connect() -> Connected:
            rest, service = self.sdk.RestClient(**account), self.sdk.ServiceClient(**account)
            listed = rest.get_server_capabilities().result().supported_models
            service.holder  # noqa: B018 (opens the session, for which it blocks)
            contexts = {one.model_name: one.max_context_length for one in listed if one.model_name}
            return Connected(service, rest, contexts)

        return await self.ask(lambda: _in_thread(connect), "the connection", CONNECT_SECONDS)

    async def _once(self, key: Hashable, make: Callable[[], Coroutine[Any, Any, Made]]) -> Made:
        """Return what was made for a key, however many ask for it at the same time."""
        task = self._made.get(key)
        if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
            task = self._made[key] = asyncio.create_task(make())
        found: Made = await asyncio.shield(task)
        return found


def _in_thread(call: Callable[[], Made]) -> asyncio.Future[Made]:
    """Run a call that blocks in a thread of its own, which does not keep the process alive."""
    future: Future[Made] = Future()
    future.set_running_or_notify_cancel()  # so that it takes a result also if nobody waits any more

    def run() -> None:
        try:
            future.set_result(call())
        except Exception as error:  # noqa: BLE001 (it is raised where the future is awaited)
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return asyncio.wrap_future(future)
