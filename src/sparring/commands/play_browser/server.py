"""The page's server: it listens on this machine alone, and whoever asks needs the token in the address."""

import asyncio
from base64 import b64encode
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, suppress
from hashlib import sha256
from importlib.resources import files
from string import Template
from typing import Any

from fastapi import FastAPI
from fastapi.responses import HTMLResponse, JSONResponse
from pydantic import BaseModel, ConfigDict, Field

from sparring.commands.listening import listen, new_token, serve_until_ended, server_of
from sparring.commands.play_browser.table import PersonsTable
from sparring.core import InputError, SparringError
from sparring.core.text import one_line
from sparring.engine.server_errors import ApiError
from sparring.engine.server_http import OPEN_PATHS, EveryRequest, error_response

HOST = "127.0.0.1"
MAX_TEXT = 20_000
"""The characters of an answer."""
BEGINS = "a game begins"
"""What the page shows until a game has a title: an environment may take a while to start."""
Play = Callable[[PersonsTable], Awaitable[None]]
"""Plays one game at a table to its end."""


class PersonsAnswer(BaseModel):
    """Body of ``/answer``: what the person says to the question of this number."""

    model_config = ConfigDict(str_strip_whitespace=True)

    turn: int
    text: str = Field(min_length=1, max_length=MAX_TEXT)


class PageSession:
    """The one game that a server has at a time. A new one ends the game before it."""

    def __init__(self, play: Play) -> None:
        self._play = play
        self._task: asyncio.Task[None] | None = None
        self._beginning = asyncio.Lock()
        self.table = PersonsTable()

    async def begin(self) -> None:
        """Begin a new game."""
        async with self._beginning:
            await self.leave()
            self.table = PersonsTable(BEGINS, self.table.turn)
            self._task = asyncio.create_task(self._played(self.table))
            await asyncio.sleep(0)

    async def leave(self) -> None:
        """End the game in progress, if there is one."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def _played(self, table: PersonsTable) -> None:
        try:
            await self._play(table)
        except Exception as error:  # noqa: BLE001 (whatever it is ends the game, and the person is told)
            said = str(error) if isinstance(error, SparringError) else f"{type(error).__name__}: {error}"
            table.problem = one_line(said)
            table.end("the game was broken off", [])


def serve_page(play: Play, running: AbstractAsyncContextManager[Any], say: Callable[[str], None]) -> None:
    """Serve until interrupted; ``running`` is entered while the server runs.

    Raises:
        InputError: the port cannot be opened.
        SparringError: the server could not start.
    """
    token = new_token(HOST)

    async def serve() -> None:
        session = PageSession(play)
        async with running:
            try:
                await serve_until_ended(server_of(build_page_app(session, token)), listener)
            finally:
                await session.leave()

    with listen(HOST, 0) as listener:
        port = listener.getsockname()[1]
        say(f"play at http://{HOST}:{port}/#{token} (Ctrl-C ends)")
        with suppress(KeyboardInterrupt):
            asyncio.run(serve())
    say("stopped")


def build_page_app(session: PageSession, token: str) -> FastAPI:
    """Return the application. The page itself holds nothing; all else needs the token."""
    app = FastAPI(title="sparring play", openapi_url=None)
    app.add_middleware(EveryRequest, token=token, larger={}, open_paths=(*OPEN_PATHS, "/"))
    page, headers = _page()

    @app.exception_handler(ApiError)
    async def refuse(request: object, error: ApiError) -> JSONResponse:
        return error_response(error)

    @app.get("/")
    async def show() -> HTMLResponse:
        return HTMLResponse(page, headers=headers)

    @app.get("/state")
    async def state() -> JSONResponse:
        return _state(session)

    @app.post("/new")
    async def new() -> JSONResponse:
        await session.begin()
        return _state(session)

    @app.post("/answer")
    async def answer(body: PersonsAnswer) -> JSONResponse:
        try:
            session.table.answer(body.turn, body.text)
        except InputError as error:
            raise ApiError(409, str(error)) from error
        await asyncio.sleep(0)
        return _state(session)

    return app


def _state(session: PageSession) -> JSONResponse:
    return JSONResponse(session.table.to_dict(), headers={"Cache-Control": "no-store"})


def _page() -> tuple[str, dict[str, str]]:
    """Return the page, and headers by which it runs its own script and asks this server alone."""
    folder = files("sparring.commands.play_browser")
    script = folder.joinpath("page.js").read_text(encoding="utf-8")
    text = Template(folder.joinpath("page.html").read_text(encoding="utf-8")).substitute(
        script=script, most=MAX_TEXT
    )
    own = b64encode(sha256(script.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; script-src 'sha256-{own}'; style-src 'unsafe-inline'; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return text, {
        "Content-Security-Policy": policy,
        "Cache-Control": "no-store",
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
    }
