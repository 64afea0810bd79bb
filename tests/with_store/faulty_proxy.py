"""A proxy before an S3 server on this machine: it counts what is written, and fails as it is told."""

import http.client
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

HOP = {"connection", "transfer-encoding", "keep-alive", "content-length", "date", "server"}


class FaultyProxy:
    """``before`` and ``after`` are called with the number of each write, from 1 on, when it comes and when it
    is done; for a read it is 0. With the fault ``error`` it answers 503, with ``hang`` never."""

    def __init__(self, port: int) -> None:
        self.behind = port
        self.writes = 0
        self.fault = ""
        self.before: Callable[[int], None] = lambda write: None
        self.after: Callable[[int], None] = lambda write: None
        self.over = threading.Event()
        self._count = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        self.over.set()
        self._server.shutdown()
        self._server.server_close()

    def _written(self, method: str) -> int:
        with self._count:
            self.writes += method in ("PUT", "POST", "DELETE")
            return self.writes if method in ("PUT", "POST", "DELETE") else 0

    def _handler(proxy) -> type[BaseHTTPRequestHandler]:
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                write = proxy._written(self.command)
                proxy.before(write)
                if proxy.fault == "hang":
                    proxy.over.wait()
                    return
                if proxy.fault == "error":
                    self._answer(503, {}, b"")
                    return
                back = http.client.HTTPConnection("127.0.0.1", proxy.behind, timeout=60)
                back.request(self.command, self.path, body, dict(self.headers))
                answer = back.getresponse()
                content = answer.read()
                back.close()
                proxy.after(write)
                self._answer(answer.status, dict(answer.getheaders()), content)

            do_PUT = do_POST = do_DELETE = do_HEAD = do_GET

            def _answer(self, status: int, headers: dict[str, str], content: bytes) -> None:
                length = headers.get("Content-Length", "0") if self.command == "HEAD" else str(len(content))
                self.send_response(status)
                for name, value in headers.items():
                    if name.lower() not in HOP:
                        self.send_header(name, value)
                self.send_header("Content-Length", length)
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(content)

            def log_message(self, *arguments: object) -> None:
                pass

        return Handler
