"""A model behind an API, in a thread: it draws one of the legal moves that it reads, by the call's seed."""

import json
import random
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class PaidServer(ThreadingHTTPServer):
    """``asked`` are the bodies of all requests, in order; ``text`` is said instead of a move."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.asked: list[dict] = []
        self.text = ""

    @property
    def name(self) -> str:
        """The model's name on the command line."""
        return f"mover@http://127.0.0.1:{self.server_port}/v1"


class _Handler(BaseHTTPRequestHandler):
    server: PaidServer

    def do_POST(self) -> None:
        content = self.rfile.read(int(self.headers["content-length"]))
        if not content:
            return  # who asked was killed
        body = json.loads(content)
        self.server.asked.append(body)
        legal = re.findall(r"Legal moves: ([^.]*)\.", body["messages"][-1]["content"])
        text = self.server.text or random.Random(body["seed"]).choice(legal[-1].split(", "))
        message = {"message": {"content": text}, "finish_reason": "stop"}
        answer = json.dumps({"choices": [message]}).encode()
        try:
            self.send_response(200)
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)
        except OSError:
            pass

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@contextmanager
def paid_server() -> Iterator[PaidServer]:
    server = PaidServer()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
