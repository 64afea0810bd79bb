"""Requests that do not arrive, and faults: no connection waits forever, and nothing is a stack trace."""

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Iterator

import pytest
from fastapi import FastAPI, Request

from live_server import ASK, TOKEN, Live, engine_over, running
from sparring.commands import listening
from sparring.commands.listening import server_of
from sparring.engine.server import create_app
from tiny_models import tiny_policy

SOON = 20.0
"""Seconds within which a connection must have been closed; nothing waits for that long."""


@contextlib.contextmanager
def served(app: FastAPI) -> Iterator[Live]:
    """The application behind the command's own server."""
    live = Live(app, None)
    live.server = server_of(app)
    thread = threading.Thread(target=live.run)
    thread.start()
    try:
        yield live
    finally:
        live.server.should_exit = True
        thread.join()


@pytest.fixture(scope="module")
def impatient() -> Iterator[Live]:
    """A server that closes connections after a fifth of a second."""
    app = FastAPI()

    @app.post("/slow")
    async def slow(request: Request) -> dict[str, int]:
        body = await request.body()
        await asyncio.sleep(0.7)
        return {"bytes": len(body)}

    patch = pytest.MonkeyPatch()
    patch.setattr(listening, "SECONDS", 0.2)
    with served(app) as live:
        yield live
    patch.undo()


def connected(live: Live) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", live.port))
    connection.settimeout(SOON)
    return connection


def rest(connection: socket.socket) -> bytes:
    """Everything that the server still sends until it closes the connection."""
    received = b""
    with contextlib.suppress(ConnectionResetError):
        while some := connection.recv(65536):
            received += some
    return received


HEAD = b"POST /slow HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n"


@pytest.mark.parametrize(
    "sent",
    [b"", b"P", b"POST /slow HTTP/1.1\r\nHost:", HEAD[:-2], HEAD, HEAD + b"1234"],
    ids=["nothing", "a letter", "half a head", "a head without an end", "no body", "half a body"],
)
def test_a_connection_whose_request_does_not_arrive_is_closed(impatient, sent):
    with connected(impatient) as connection:
        connection.sendall(sent)
        assert b" 200 " not in rest(connection)


def test_a_body_that_arrives_byte_by_byte_is_not_waited_for(impatient):
    with connected(impatient) as connection:
        connection.sendall(HEAD.replace(b" 5", b" 100000"))
        began, sent = time.monotonic(), 0
        with contextlib.suppress(OSError):
            while time.monotonic() < began + SOON:
                connection.sendall(b"x")
                sent += 1
                connection.settimeout(0.02)
                with contextlib.suppress(TimeoutError):
                    if not connection.recv(1):
                        break
        assert 0 < sent < 10_000


def test_an_answer_may_take_longer_than_a_request_and_the_connection_is_used_again(impatient):
    with connected(impatient) as connection:
        for _ in range(2):
            connection.sendall(HEAD + b"12345")
            received = b""
            while not received.endswith(b'{"bytes":5}'):
                received += connection.recv(65536)
            assert received.startswith(b"HTTP/1.1 200")
        connection.sendall(HEAD[:-2])  # then it waits for the rest of a third one
        assert rest(connection) == b""


# Faults and refusals


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    policy = tiny_policy()
    engine = engine_over(policy)
    with running(create_app(engine, token=TOKEN, aliases={"default": "tiny"}), engine) as live:
        yield live


ROUTES = ("/v1/chat/completions", "/v1/completions", "/inference/v1/generate")
BODIES = [
    *(b"", b"{", b"[]", b"5", b"null", b'"x"', b"\xff\xfe", b"{" * 5000, b"[" * 100_000, b'{"a":NaN}'),
    *(b'{"model": "tiny", "prompt": %s}' % one for one in (b"1e999", b"[1e999]", b"[[[[]]]]", b'"\\ud800"')),
    *(b'{"model": "tiny", "messages": %s}' % one for one in (b"{}", b"[[]]", b"[null]", b'[{"role": {}}]')),
    b'{"model": "tiny", "prompt": [1], "seed": %s}' % (b"9" * 5000),
    b'{"model": "tiny", "prompt": "x", "stop": ["\\ud800"]}',
    b'{"model": "tiny", "prompt": "x", "logit_bias": {"5": 1e308}}',
    b'{"model": "tiny", "prompt": "x", "logit_bias": {"five": 1}}',
    b'{"model": "tiny", "prompt": "x", "max_tokens": 99999999999999999999}',
    b'{"model": "tiny", "prompt": "x", "\\u0000\\ud800\\n\\u001b[31m": 1}',
]


@pytest.mark.parametrize("route", ROUTES)
def test_no_body_makes_a_stack_trace_and_every_refusal_is_one_line_with_an_id(live, capfd, route):
    for body in BODIES:
        for kind in ("application/json", "text/plain", None):
            headers = {"Authorization": f"Bearer {TOKEN}"} | ({"Content-Type": kind} if kind else {})
            response = live.post(route, content=body, headers=headers)
            assert response.status_code in (400, 404), (body[:50], response.text)
            assert "\n" not in response.json()["error"]["message"]
            assert response.headers["x-request-id"].startswith("req_")
    assert "Traceback" not in capfd.readouterr().err


def test_without_a_content_type_the_error_says_so(live):
    headers = {"Authorization": f"Bearer {TOKEN}"}
    response = live.post("/v1/completions", content=b'{"model": "tiny", "prompt": "x"}', headers=headers)
    assert response.status_code == 400
    assert response.json()["error"]["message"] == "Content-Type: send the body as application/json"


@pytest.mark.parametrize("stream", [False, True])
def test_a_fault_of_the_server_is_one_line_in_the_log(capfd, stream):
    policy = tiny_policy()
    engine = engine_over(policy)
    with running(create_app(engine, token=TOKEN), engine) as live:
        policy.render = None
        body = {"model": "tiny", "messages": ASK, "stream": stream}
        response = live.post("/v1/chat/completions", json=body)
    assert response.status_code == 500
    log = capfd.readouterr().err
    assert "Traceback" not in log
    (line,) = [line for line in log.splitlines() if response.headers["x-request-id"] in line]
    assert "POST /v1/chat/completions: TypeError: 'NoneType' object is not callable" in line


def test_every_response_has_an_id_of_its_own(live):
    authorized = {"headers": {"Authorization": f"Bearer {TOKEN}"}}
    asked = {"model": "tiny", "messages": ASK, "max_tokens": 1}
    responses = [
        live.get("/health"),
        live.get("/v1/models"),  # without a token
        live.get("/v1/models", **authorized),
        live.get("/nothing", **authorized),
        live.post("/v1/chat/completions", json=asked),
        live.post("/v1/chat/completions", json={**asked, "stream": True}),
        live.post("/v1/chat/completions", json={**asked, "n": 0}),
        live.post("/v1/chat/completions", content=b" " * (5 * 2**20)),
    ]
    assert [one.status_code for one in responses] == [200, 401, 200, 404, 200, 200, 400, 413]
    assert len({one.headers["x-request-id"] for one in responses}) == len(responses)


def test_a_hundred_thousand_messages_are_refused_without_being_looked_at(live):
    """The count comes first: no message is checked, so that one of them that is wrong is not named."""
    messages = [{"role": "user", "content": "x"}] * 99_999 + [{"role": "nobody"}]
    response = live.post("/v1/chat/completions", json={"model": "tiny", "messages": messages})
    assert response.status_code == 400
    assert "your prompt has 100000 messages, which is more than fits" in response.json()["error"]["message"]
