"""An OpenAI-compatible server over the embedded engine.

The engine works on the event loop that serves HTTP. Requests that come in during a forward pass wait in their
sockets and join the next one. Every answer says in a header which policy version made it.
"""

import asyncio
import json
import secrets
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any, TypeVar

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send

from selfplay.core import InputError, Messages, ModelResponse, SelfplayError
from selfplay.inference.engine import EmbeddedEngine
from selfplay.inference.openai_client import TOKEN_VARIABLE, VERSION_HEADER
from selfplay.inference.server_answers import Completion
from selfplay.inference.server_schema import (
    ApiError,
    ChatRequest,
    LoadAdapterRequest,
    UnloadAdapterRequest,
    context_length_exceeded,
    model_not_found,
)

OPEN_PATHS = ("/health", "/ping")
CLIENT_CLOSED_REQUEST = 499
LoadAdapter = Callable[[str, Path], int]
UnloadAdapter = Callable[[str], None]
T = TypeVar("T")


def create_app(
    engine: EmbeddedEngine,
    *,
    token: str | None,
    aliases: Mapping[str, str] | None = None,
    load_adapter: LoadAdapter | None = None,
    unload_adapter: UnloadAdapter | None = None,
) -> FastAPI:
    """Build the server's application; run it on the event loop that the engine is used on.

    Args:
        engine: what answers. Its names are the models; its ``max_tokens`` is the limit of an answer where a
            request gives none, less where the context has no room for it.
        token: what clients must send as a bearer token; ``None`` lets everybody in.
        aliases: further names of models. They are not listed.
        load_adapter: reads a LoRA adapter from a directory, publishes it under a name and returns its policy
            version; raises InputError if it cannot. Without it adapters can be neither loaded nor unloaded.
        unload_adapter: withdraws an adapter; raises InputError if it cannot.
    """
    app = FastAPI(title="selfplay", docs_url=None, redoc_url=None, openapi_url=None)
    if token is not None:
        app.add_middleware(TokenCheck, token=token)
    _add_error_answers(app)
    _add_chat(app, Chat(engine, aliases or {}))
    _add_models(app, engine)
    _add_state(app, engine)
    if load_adapter is not None and unload_adapter is not None:
        _add_adapters(app, engine, load_adapter, unload_adapter)
    return app


class TokenCheck:
    """Middleware that refuses who has not the token, before anything else of the request is read."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self.app = app
        self._expected = token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the request through or answer 401."""
        if scope["type"] == "http" and scope["path"] not in OPEN_PATHS and not self._knows_token(scope):
            refusal = ApiError(
                401,
                f"The bearer token is missing or wrong. It is the server's {TOKEN_VARIABLE}",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )
            await refusal.response()(scope, receive, send)
            return
        await self.app(scope, receive, send)

    def _knows_token(self, scope: Scope) -> bool:
        given = dict(scope["headers"]).get(b"authorization", b"")
        scheme, _, token = given.partition(b" ")
        return scheme.lower() == b"bearer" and secrets.compare_digest(token, self._expected)


class Chat:
    """Asks the engine what a chat request asks for."""

    def __init__(self, engine: EmbeddedEngine, aliases: Mapping[str, str]) -> None:
        self.engine = engine
        self.aliases = aliases

    async def complete(self, request: ChatRequest) -> Completion:
        """Return all choices.

        Raises:
            ApiError: the request is not possible, the queue is full, or the engine failed.
            InputError: the model cannot render these messages.
        """
        request.check_supported()
        model = self._served_name(request.model)
        messages = [message.to_message() for message in request.messages]
        max_tokens = self._max_tokens(request, messages)
        try:
            responses = await self._ask(request, messages, model, max_tokens)
        except InputError:
            raise
        except SelfplayError as error:
            prompt_tokens = len(self.engine.model.render(messages))
            if prompt_tokens + max_tokens > self.engine.max_context:
                raise context_length_exceeded(self.engine.max_context, prompt_tokens, max_tokens) from error
            raise ApiError(503, str(error), headers={"Retry-After": "1"}) from error
        return Completion(request, responses, self.engine.model.tokenizer)

    def _served_name(self, name: str) -> str:
        served = self.engine.names()
        found = name if name in served else self.aliases.get(name)
        if found not in served:
            raise model_not_found(name, served)
        return found

    def _max_tokens(self, request: ChatRequest, messages: Messages) -> int:
        asked = request.max_completion_tokens or request.max_tokens
        if asked is not None:
            return asked
        room = self.engine.max_context - len(self.engine.model.render(messages))
        return max(1, min(self.engine.max_tokens, room))

    async def _ask(
        self, request: ChatRequest, messages: Messages, model: str, max_tokens: int
    ) -> list[ModelResponse]:
        temperature = 1.0 if request.temperature is None else request.temperature
        asking = [
            asyncio.ensure_future(
                self.engine.complete(messages, temperature, max_tokens, model=model, seed=seed)
            )
            for seed in request.seeds()
        ]
        try:
            return await asyncio.gather(*asking)
        finally:
            for one in asking:
                one.cancel()


def _add_chat(app: FastAPI, chat: Chat) -> None:
    @app.post("/v1/chat/completions")
    async def chat_completions(body: ChatRequest, request: Request) -> Response:
        completion = await _while_connected(request, chat.complete(body))
        if completion is None:
            return Response(status_code=CLIENT_CLOSED_REQUEST)
        headers = {VERSION_HEADER: str(completion.responses[0].policy_version)}
        if not body.stream:
            return JSONResponse(completion.whole(), headers=headers)
        headers["Cache-Control"] = "no-cache"
        return StreamingResponse(_events(completion), headers=headers, media_type="text/event-stream")


async def _events(completion: Completion) -> AsyncIterator[str]:
    """Server-sent events of an answer. The engine answers whole, so they all come at once, at its end."""
    for chunk in completion.chunks():
        yield f"data: {json.dumps(chunk)}\n\n"
    yield "data: [DONE]\n\n"


async def _while_connected(request: Request, work: Coroutine[Any, Any, T]) -> T | None:
    """Return what ``work`` returns, or stop it and return ``None`` as soon as the client has gone."""
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_disconnection(request))
    try:
        await asyncio.wait([working, leaving], return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        working.cancel()
        leaving.cancel()


async def _disconnection(request: Request) -> None:
    message = await request.receive()
    while message["type"] != "http.disconnect":
        message = await request.receive()


def _add_models(app: FastAPI, engine: EmbeddedEngine) -> None:
    created = int(time.time())

    def card(name: str) -> dict[str, Any]:
        limits = {"max_model_len": engine.max_context}
        return {"id": name, "object": "model", "created": created, "owned_by": "selfplay", **limits}

    @app.get("/v1/models")
    async def list_models() -> Response:
        return JSONResponse({"object": "list", "data": [card(name) for name in engine.names()]})

    @app.get("/v1/models/{name:path}")
    async def retrieve_model(name: str) -> Response:
        if name not in engine.names():
            raise model_not_found(name, engine.names())
        return JSONResponse(card(name))


def _add_state(app: FastAPI, engine: EmbeddedEngine) -> None:
    @app.get("/adapters/version")
    @app.get("/v1/adapters/version")
    async def version() -> Response:
        return JSONResponse({"version": await engine.get_policy_version()})

    @app.get("/health")
    @app.get("/ping")
    async def health() -> Response:
        return JSONResponse({"status": "ok"})


def _add_adapters(
    app: FastAPI, engine: EmbeddedEngine, load_adapter: LoadAdapter, unload_adapter: UnloadAdapter
) -> None:
    @app.post("/v1/load_lora_adapter")
    async def load(body: LoadAdapterRequest) -> Response:
        name = body.lora_name
        if name in engine.names() and not body.load_inplace:
            raise ApiError(
                400,
                f"{name} is served already. Unload it first, or set load_inplace to true",
                param="lora_name",
            )
        headers = {VERSION_HEADER: str(load_adapter(name, Path(body.lora_path)))}
        return PlainTextResponse(f"Success: LoRA adapter '{name}' added successfully.", headers=headers)

    @app.post("/v1/unload_lora_adapter")
    async def unload(body: UnloadAdapterRequest) -> Response:
        name = body.lora_name
        if name not in engine.names():
            raise model_not_found(name, engine.names())
        unload_adapter(name)
        return PlainTextResponse(f"Success: LoRA adapter '{name}' removed successfully.")


def _add_error_answers(app: FastAPI) -> None:
    """Whatever is wrong is answered in OpenAI's shape."""

    @app.exception_handler(ApiError)
    async def refused(request: Request, error: ApiError) -> Response:
        return error.response()

    @app.exception_handler(InputError)
    async def wrong(request: Request, error: InputError) -> Response:
        return ApiError(400, str(error), param=error.field).response()

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        # The place of broken JSON is a number, not a parameter.
        place = [] if first["type"] == "json_invalid" else first["loc"][1:]
        param = ".".join(str(part) for part in place) or None
        return ApiError(400, f"{param or 'body'}: {first['msg']}", param=param).response()

    @app.exception_handler(HTTPException)
    async def http_error(request: Request, error: HTTPException) -> Response:
        message = f"{request.method} {request.url.path}: {error.detail}"
        return ApiError(error.status_code, message, headers=error.headers).response()

    @app.exception_handler(Exception)
    async def failed(request: Request, error: Exception) -> Response:
        return ApiError(500, f"{type(error).__name__}: {error}").response()
