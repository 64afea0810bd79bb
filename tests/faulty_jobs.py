"""A server of files and fine-tuning jobs on loopback whose replies go wrong as a test says."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import parse_qs, urlsplit

from replying_server import error, http

FAULTS = ("none", "429", "500", "cut before", "cut after", "garbage", "half")
"""``cut before``: nothing is done; ``cut after``: the request is done, but the reply is lost."""


class FaultyJobs:
    """Files and jobs in memory. Request number n meets ``faults[n]``; later ones meet none.

    ``ends`` are the statuses that a job has, one for each question; the last stays. ``names`` are the
    server's names of a job's fields, by OpenAI's. A list has at most ``page`` entries. ``refusals`` are
    replies that come first, a list of status and body by method and path: ``POST /files``.
    """

    def __init__(self, faults=(), ends=("queued", "running", "succeeded"), names=None, page=100):
        self.names = names or {}
        self.page = page
        self.refusals = {}
        self.faults = list(faults)
        self.ends = list(ends)
        self.succeeded = "succeeded"
        self.files = []
        self.jobs = []
        self.asked = 0

    @asynccontextmanager
    async def running(self) -> AsyncIterator[str]:
        """Serve; yields the address."""
        server = await asyncio.start_server(self._connection, "127.0.0.1", 0)
        async with server:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"

    async def _connection(self, reader, writer):
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        lengths = [
            line.partition(":")[2] for line in head.splitlines() if line.lower().startswith("content-length")
        ]
        body = await reader.readexactly(int(lengths[0])) if lengths else b""
        method, path, _ = head.split(" ", 2)
        address = urlsplit(path)
        after = parse_qs(address.query).get("after", [""])[0]
        writer.write(self._reply(method, address.path.removeprefix("/v1"), body, after))
        await writer.drain()
        writer.close()

    def _reply(self, method: str, path: str, body: bytes, after: str) -> bytes:
        fault = self.faults[self.asked] if self.asked < len(self.faults) else "none"
        self.asked += 1
        if fault == "cut before":
            return b""
        if fault in ("429", "500"):
            return http(error("try later"), int(fault))
        status, reply = self._do(method, path, body, after)
        good = http(reply, status)
        return {"cut after": b"", "garbage": http("<html>not JSON</html>"), "half": good[:-7]}.get(
            fault, good
        )

    def _do(self, method: str, path: str, body: bytes, after: str) -> tuple[int, dict]:
        if self.refusals.get(f"{method} {path}"):
            return self.refusals[f"{method} {path}"].pop(0)
        if path == "/files":
            if method == "POST":
                name = body.partition(b'filename="')[2].partition(b'"')[0].decode()
                self.files.append({"id": f"file-{len(self.files)}", "filename": name, "object": "file"})
                return 200, self.files[-1]
            return 200, self._page(self.files, after)
        if path == "/fine_tuning/jobs":
            if method == "POST":
                job = json.loads(body) | {"id": f"ftjob-{len(self.jobs)}", "status": "queued", "questions": 0}
                self.jobs.append(job)
                return 200, self._named(job)
            page = self._page(self.jobs, after)
            return 200, page | {"data": [self._named(job) for job in page["data"]]}
        found = [job for job in self.jobs if path.endswith(job["id"])]
        if not found or self.ends[-1] == "vanished":
            return 404, error("no such job")
        (job,) = found
        job["status"] = self.ends[min(job["questions"], len(self.ends) - 1)]
        job["questions"] += 1
        if job["status"] == self.succeeded:
            job["fine_tuned_model"] = f"ft:{job['id']}"
        if job["status"] == "failed":
            job["error"] = {"code": "bad_data", "message": "line 3 is wrong"}
        return 200, self._named(job)

    def _named(self, job: dict) -> dict:
        return {self.names.get(name, name): value for name, value in job.items()}

    def _page(self, entries: list[dict], after: str) -> dict:
        """The entries after one, newest first."""
        newest = entries[::-1]
        begin = [one["id"] for one in newest].index(after) + 1 if after else 0
        found = newest[begin : begin + self.page]
        return {"object": "list", "data": found, "has_more": begin + len(found) < len(newest)}
