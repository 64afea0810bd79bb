"""An OpenAI-compatible server over an engine, on the event loop of the engine. A header of every answer gives
the policy version that made it."""

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, aclosing, nullcontext
from typing import Any, TypeVar

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope, Send

from sparring.core import CallSettings, InputError, ModelResponse, SparringError
from sparring.core.types import UNSET
from sparring.engine.adapters import ClientAdapters
from sparring.engine.answering import VERSION_HEADER, Answering, EngineCall
from sparring.engine.server_answers import ChatCompletion, Generation, TextCompletion
from sparring.engine.server_errors import ApiError, model_not_found
from sparring.engine.server_http import (
    EveryRequest,
    LoadAdapterRequest,
    UnloadAdapterRequest,
    error_response,
)
from sparring.engine.server_questions import Questions
from sparring.engine.server_requests import ChatRequest, CompletionRequest, GenerateRequest

CLIENT_CLOSED_REQUEST = 499
Part = tuple[int, ModelResponse]
Parts = AsyncGenerator[Part]
T = TypeVar("T")
AnyCompletion = ChatCompletion | TextCompletion


def create_app(
    engine: Answering,
    *,
    token: str | None,
    aliases: Mapping[str, str] | None = None,
    own: CallSettings = UNSET,
    adapters: ClientAdapters | None = None,
    larger_bodies: Mapping[str, int] | None = None,
    made: Callable[[str], int | None] = lambda name: None,
    running: Callable[[], AbstractAsyncContextManager[None]] = nullcontext,
) -> FastAPI:
    """Build the server's application, which must run on the engine's event loop.

    Args:
        engine: answers; its names are the models.
        token: the bearer token that clients must send; ``None`` accepts all clients.
        aliases: additional names of models.
        own: the temperature and the sampling where a request that is not for token ids leaves them open.
        adapters: what clients publish; without it, they can publish nothing.
        larger_bodies: maximum sizes of bodies by path, where the usual one is too small.
        made: when a model was made, in seconds since 1970; ``None``: when the server started.
        running: what is entered while the server runs.
    """
    app = FastAPI(title="sparring", openapi_url=None, lifespan=lambda app: running(), redirect_slashes=False)
    app.add_middleware(EveryRequest, token=token, larger=larger_bodies or {})
    _add_error_answers(app)
    questions = Questions(engine, aliases or {}, own)
    _add_answers(app, questions)
    _add_models(app, questions, made)
    _add_state(app, engine)
    if adapters is not None:
        _add_adapters(app, engine, adapters)
    return app


def _add_answers(app: FastAPI, questions: Questions) -> None:
    @app.post("/v1/chat/completions")
    async def chat_completions(body: ChatRequest, request: Request) -> Response:
        calls = await questions.of_chat(body)
        return await _answered(request, questions, calls, ChatCompletion(body, questions.texts))

    @app.post("/v1/completions")
    async def completions(body: CompletionRequest, request: Request) -> Response:
        calls = await questions.of_completion(body)
        return await _answered(request, questions, calls, TextCompletion(body, questions.texts))

    @app.post("/inference/v1/generate")
    async def generate(body: GenerateRequest, request: Request) -> Response:
        calls = await questions.of_generation(body)
        return await _whole(request, questions, calls, Generation(body))


async def _answered(
    request: Request, questions: Questions, calls: list[EngineCall], completion: AnyCompletion
) -> Response:
    if completion.request.stream:
        return await _streamed(request, completion, questions.stream(calls))
    return await _whole(request, questions, calls, completion)


async def _whole(
    request: Request, questions: Questions, calls: list[EngineCall], completion: AnyCompletion | Generation
) -> Response:
    answers = await _while_connected(request, questions.answers(calls))
    if answers is None:
        return Response(status_code=CLIENT_CLOSED_REQUEST)
    headers = {VERSION_HEADER: str(answers[0].policy_version)}
    return JSONResponse(completion.whole(answers), headers=headers)


async def _streamed(request: Request, completion: AnyCompletion, parts: Parts) -> Response:
    """Begin the response with the first token, so that an earlier failure has a status of its own."""
    first = await _while_connected(request, anext(parts))
    if first is None:
        return Response(status_code=CLIENT_CLOSED_REQUEST)
    headers = {VERSION_HEADER: str(first[1].policy_version), "Cache-Control": "no-cache"}
    events = _events(completion, first, parts)
    return EventStream(events, headers=headers, media_type="text/event-stream")


async def _events(completion: AnyCompletion, first: Part, parts: Parts) -> AsyncGenerator[str]:
    async with aclosing(parts):
        try:
            for chunk in completion.chunks(*first):
                yield _event(chunk)
            async for part in parts:
                for chunk in completion.chunks(*part):
                    yield _event(chunk)
            for chunk in completion.usage_chunk():
                yield _event(chunk)
        except ApiError as error:
            yield _event(error.body())
    yield "data: [DONE]\n\n"


def _event(content: dict[str, Any]) -> str:
    return f"data: {json.dumps(content)}\n\n"


class EventStream(StreamingResponse):
    """A stream that closes its generator when the client disconnects, so that no more tokens are drawn."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the stream."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self.body_iterator.aclose()  # type: ignore[attr-defined]


async def _while_connected(request: Request, work: Awaitable[T]) -> T | None:
    """Return the result of ``work``; if the client disconnects first, cancel it and return ``None``."""
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


def _add_models(app: FastAPI, questions: Questions, made: Callable[[str], int | None]) -> None:
    started = int(time.time())
    engine = questions.engine

    def card(name: str) -> dict[str, Any]:
        found = made(name)
        created = started if found is None else found
        limits = {"max_model_len": engine.max_context}
        return {"id": name, "object": "model", "created": created, "owned_by": "sparring", **limits}

    @app.get("/v1/models")
    async def list_models() -> Response:
        names = dict.fromkeys([*engine.names(), *questions.aliases])
        return JSONResponse({"object": "list", "data": [card(name) for name in names]})

    @app.get("/v1/models/{name:path}")
    async def retrieve_model(name: str) -> Response:
        questions.served_name(name)
        return JSONResponse(card(name))


def _add_state(app: FastAPI, engine: Answering) -> None:
    @app.get("/adapters/version")
    @app.get("/v1/adapters/version")
    async def version() -> Response:
        return JSONResponse({"version": await engine.get_policy_version()})

    @app.get("/health")
    @app.get("/ping")
    async def health() -> Response:
        return JSONResponse({"status": "ok"})


def _add_adapters(app: FastAPI, engine: Answering, adapters: ClientAdapters) -> None:
    @app.post("/v1/load_lora_adapter")
    async def load(body: LoadAdapterRequest) -> Response:
        version = await adapters.publish(body.lora_name, body.lora_path, replace=body.load_inplace)
        message = f"Success: LoRA adapter '{body.lora_name}' added successfully."
        return PlainTextResponse(message, headers={VERSION_HEADER: str(version)})

    @app.post("/v1/unload_lora_adapter")
    async def unload(body: UnloadAdapterRequest) -> Response:
        name = body.lora_name
        if name not in engine.names():
            raise model_not_found(name, engine.names())
        adapters.withdraw(name)
        return PlainTextResponse(f"Success: LoRA adapter '{name}' removed successfully.")


def _add_error_answers(app: FastAPI) -> None:
    @app.exception_handler(ApiError)
    async def refused(request: Request, error: ApiError) -> Response:
        return error_response(error)

    @app.exception_handler(InputError)
    async def wrong(request: Request, error: InputError) -> Response:
        return error_response(ApiError(400, str(error), param=error.field))

    @app.exception_handler(SparringError)
    async def unavailable(request: Request, error: SparringError) -> Response:
        return error_response(ApiError(503, str(error)))

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        if len(first["loc"]) == 1 and not request.headers.get("content-type", "").startswith(
            "application/json"
        ):
            return error_response(ApiError(400, "Content-Type: send the body as application/json"))
        # The location of broken JSON is a number, not a parameter.
        place = [] if first["type"] == "json_invalid" else first["loc"][1:]
        param = ".".join(str(part) for part in place) or None
        problem = first["msg"].removeprefix("Value error, ")
        return error_response(ApiError(400, f"{param or 'body'}: {problem}", param=param))

    @app.exception_handler(HTTPException)
    async def http_error(request: Request, error: HTTPException) -> Response:
        path = request.url.path
        hint = "" if "/v1/" in path or error.status_code != 404 else ". The API is below /v1"
        message = f"{request.method} {path}: {error.detail}{hint}"
        return error_response(ApiError(error.status_code, message, headers=error.headers))
