"""Fine-tuning jobs at a server that misbehaves: none is made twice, nothing hangs, every end is clear.

Each round has a server on loopback with OpenAI's routes for files and jobs. It draws a fault (seeded) for
each of the first requests, and how its jobs end. A client makes jobs and waits for them as a run does: what
ends with an error is begun again from the records on disk, as by a resume. Every job must be made once and
be seen to end as the server says, or be given up after a limited number of questions if it stays queued, and
every error must be one line.

Command:  python benchmarks/faulty_jobs.py [--rounds 40] [--seed 0]
Needs:    this package.
"""

import argparse
import asyncio
import json
import random
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from time import perf_counter
from typing import Any
from urllib.parse import parse_qs, urlsplit

from faulty_server import http, refusal
from sparring.core import SparringError
from sparring.finetune.model_groups import JobRecords
from sparring.finetune.openai_jobs import OpenAIJobs
from sparring.finetune.providers import ENDED, JobRequest

FAULTS = ("none", "429", "500", "cut before", "cut after", "garbage", "half")
"""``cut before``: nothing is done; ``cut after``: the request is done, but the reply is lost."""
ENDS = {"succeeds": "succeeded", "fails": "failed", "is cancelled": "cancelled", "vanishes": "not_found"}
"""How a job may end, and what a client must see."""
STAYS = "stays queued"
JOBS = 3
QUESTIONS = 8
RESUMES = 40
HUNG_AFTER = 60.0
COLUMNS = (
    *("jobs", "seen as they end", "made twice", "files twice"),
    *("requests", "errors in one line", "other errors", "hung"),
)

Body = dict[str, Any]
Reply = tuple[int, Body]


class FaultyJobs:
    """A server with files and jobs in memory, and models that answer.

    Args:
        faults: what request number n for files or jobs meets; later ones meet nothing.
        ends: the statuses that a new job has, one for each question about it; the last stays. After
            ``vanished`` the server does not know it.
        names: the server's names of a job's fields, by OpenAI's.
        page: the greatest number of entries in a part of a list.
        answer: answers a conversation with a seed.
    """

    def __init__(
        self,
        faults: Iterable[str] = (),
        ends: Iterable[str] = ("queued", "running", "succeeded"),
        names: Mapping[str, str] | None = None,
        page: int = 100,
        answer: Callable[[list[dict[str, str]], int], str] = lambda messages, seed: "Decision: accept",
    ) -> None:
        self.faults = list(faults)
        self.ends = list(ends)
        self.names = names or {}
        self.page = page
        self.answer = answer
        self.files: list[Body] = []
        self.jobs: list[Body] = []
        self.asked: list[str] = []
        """Method and path of each request for files or jobs."""
        self.refusals: dict[str, list[Reply]] = {}
        """Replies that come first, by method and path."""

    @asynccontextmanager
    async def running(self, port: int = 0) -> AsyncIterator[str]:
        """Serve; yields the address."""
        self.listener = await asyncio.start_server(self._connection, "127.0.0.1", port)
        async with self.listener:
            yield f"http://127.0.0.1:{self.listener.sockets[0].getsockname()[1]}/v1"

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
        except asyncio.IncompleteReadError:
            return  # the client left before it asked
        fields = dict(line.lower().split(": ", 1) for line in head.strip().split("\r\n")[1:])
        body = await reader.readexactly(int(fields.get("content-length", 0)))
        method, target, _ = head.split(" ", 2)
        address = urlsplit(target)
        after = parse_qs(address.query).get("after", [""])[0]
        writer.write(self._reply(method, address.path.removeprefix("/v1"), body, after))
        await writer.drain()
        writer.close()

    def _reply(self, method: str, path: str, body: bytes, after: str) -> bytes:
        if path == "/chat/completions":
            return http(200, json.dumps(self._completion(json.loads(body))))
        fault = self.faults[len(self.asked)] if len(self.asked) < len(self.faults) else "none"
        self.asked.append(f"{method} {path}")
        if fault == "cut before":
            return b""
        if fault in ("429", "500"):
            return http(int(fault), refusal("try later"))
        first = self.refusals.get(f"{method} {path}")
        status, reply = first.pop(0) if first else self._do(method, path, body, after)
        good = http(status, json.dumps(reply))
        bad = {"cut after": b"", "garbage": http(200, "<html>not JSON</html>"), "half": good[:-7]}
        return bad.get(fault, good)

    def _completion(self, body: Body) -> Body:
        text = self.answer(body["messages"], body.get("seed", 0))
        choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        return {"id": "1", "object": "chat.completion", "choices": [choice]}

    def _do(self, method: str, path: str, body: bytes, after: str) -> Reply:
        if path == "/files":
            if method == "GET":
                return 200, self._page(self.files, after)
            name = body.partition(b'filename="')[2].partition(b'"')[0].decode()
            self.files.append({"id": f"file-{len(self.files)}", "filename": name, "object": "file"})
            return 200, self.files[-1]
        if path == "/fine_tuning/jobs":
            if method == "GET":
                page = self._page(self.jobs, after)
                return 200, page | {"data": [self._named(job) for job in page["data"]]}
            job = json.loads(body) | {"id": f"ftjob-{len(self.jobs)}", "status": "queued"}
            self.jobs.append(job | {"questions": 0, "ends": list(self.ends)})
            return 200, self._named(job)
        return self._job(path)

    def _job(self, path: str) -> Reply:
        found = [job for job in self.jobs if path.endswith(f"/{job['id']}")]
        if not found:
            return 404, json.loads(refusal("no such job"))
        (job,) = found
        job["status"] = job["ends"][min(job["questions"], len(job["ends"]) - 1)]
        job["questions"] += 1
        if job["status"] == "vanished":
            return 404, json.loads(refusal("no such job"))
        job["fine_tuned_model"] = f"ft:{job['id']}" if job["ends"][-1] == job["status"] else None
        if job["status"] == "failed":
            job["error"] = {"code": "bad_data", "message": "line 3 is wrong"}
        return 200, self._named(job)

    def _named(self, job: Body) -> Body:
        return {self.names.get(name, name): value for name, value in job.items()}

    def _page(self, entries: list[Body], after: str) -> Body:
        """Return the entries after one, newest first."""
        newest = entries[::-1]
        begin = [one["id"] for one in newest].index(after) + 1 if after else 0
        found = newest[begin : begin + self.page]
        return {"object": "list", "data": found, "has_more": begin + len(found) < len(newest)}


async def end_of(jobs: OpenAIJobs, records: JobRecords, name: str, errors: Counter[str]) -> str:
    """Make a job, begin again after each error, and return how it is seen to end."""
    request = JobRequest(name, "base", "supervised")
    questions = 0
    for _ in range(RESUMES):
        try:
            job = await records.submit(jobs, request, [{"messages": []}])
            while job.status not in ENDED:
                if questions == QUESTIONS:
                    return STAYS
                questions += 1
                job = await jobs.status(job.id)
        except SparringError as error:
            errors["in one line" if "\n" not in str(error) else "not in one line"] += 1
        else:
            return job.status
    raise SystemExit(f"{name} met faults for longer than they last")


async def play_round(end: str, rng: random.Random, directory: Path, counts: dict[str, Counter[str]]) -> None:
    """Make the jobs of a round and count what became of them."""
    last = {STAYS: "queued", "vanishes": "vanished"}.get(end, ENDS.get(end, ""))
    server = FaultyJobs(rng.choices(FAULTS, k=rng.randrange(60)), ("queued", "running", last), page=2)
    errors: Counter[str] = Counter()
    async with server.running() as url:
        jobs = OpenAIJobs("key", url, wait=0.0, timeout=5.0, retries=2)
        names = [f"job-{number}" for number in range(JOBS)]
        seen = [end_of(jobs, JobRecords(directory), name, errors) for name in names]
        try:
            found = await asyncio.wait_for(asyncio.gather(*seen), HUNG_AFTER)
        except TimeoutError:
            counts[end]["hung"] += JOBS
            return
    counts[end]["jobs"] += JOBS
    counts[end]["seen as they end"] += found.count(ENDS.get(end, STAYS))
    counts[end]["made twice"] += max(0, len(server.jobs) - JOBS)
    counts[end]["files twice"] += max(0, len(server.files) - JOBS)
    counts[end]["requests"] += len(server.asked)
    counts[end]["errors in one line"] += errors["in one line"]
    counts[end]["other errors"] += errors["not in one line"]


async def measure(rounds: int, seed: int) -> dict[str, Counter[str]]:
    """Counts by how the jobs of a round end."""
    counts = {end: Counter[str]() for end in (*ENDS, STAYS)}
    with tempfile.TemporaryDirectory() as scratch:
        for number in range(rounds):
            rng = random.Random(f"{seed} {number}")
            await play_round(rng.choice(list(counts)), rng, Path(scratch) / str(number), counts)
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    started = perf_counter()
    counts = asyncio.run(measure(arguments.rounds, arguments.seed))
    counts["all"] = sum(counts.values(), Counter())
    print(f"| a job | {' | '.join(COLUMNS)} |\n" + "|---" * (1 + len(COLUMNS)) + "|")
    for name, row in counts.items():
        print(f"| {name} | {' | '.join(str(row[column]) for column in COLUMNS)} |")
    print(f"{perf_counter() - started:.1f} s")
    every = counts["all"]
    wrong = every["made twice"] + every["files twice"] + every["other errors"] + every["hung"]
    if wrong or every["seen as they end"] != every["jobs"] or every["jobs"] != arguments.rounds * JOBS:
        raise SystemExit("a job was made twice, was lost or was misread, or something hung")


if __name__ == "__main__":
    main()
