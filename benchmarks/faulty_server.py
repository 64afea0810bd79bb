"""Outcomes of OpenAIClient's requests to a faulty server: 1,000 requests, 64 in flight.

A server on loopback draws a fault (seeded) for each request, and its duration: one or two tries, or forever
(one request in ten). Every request must end with its own answer or with a one-line error that names the
fault. A request that takes longer than the client's own limits counts as hung.

Command:  python benchmarks/faulty_server.py [--requests 1000] [--in-flight 64] [--seed 0]
Needs:    this package.
"""

import argparse
import asyncio
import json
import random
from collections import Counter
from time import perf_counter

from sparring.core import SparringError
from sparring.engine.openai_client import OpenAIClient

TIMEOUT, RETRIES, BACKOFF, MAX_WAIT = 1.0, 3, 0.02, 0.2
HUNG_AFTER = (RETRIES + 1) * TIMEOUT + RETRIES * MAX_WAIT + 5.0
OUTCOMES = ("first try", "retried success", "one clear error", "hung")
TEXT_ONLY = ("missing ids", "more ids than log-probabilities")
LASTING = ("none", "400, context too long", *TEXT_ONLY)


def http(status: int, body: str, *headers: str) -> bytes:
    """Return a complete HTTP response."""
    lines = [f"HTTP/1.1 {status} Said", "content-type: application/json", f"content-length: {len(body)}"]
    return "\r\n".join([*lines, *headers, "connection: close", "", body]).encode()


def answer(text: str, ids: list[int] | None) -> str:
    """Return a completion with two log-probabilities."""
    logprobs = {"content": [{"logprob": -0.5}, {"logprob": -0.25}]}
    choice = {"message": {"content": text}, "token_ids": ids, "logprobs": logprobs}
    return json.dumps({"choices": [choice], "prompt_token_ids": [3, 4, 5]})


def refusal(message: str) -> str:
    return json.dumps({"error": {"message": message}})


def replies(text: str) -> dict[str, bytes | None]:
    """Return the server's bytes for a fault; ``None`` if it sends nothing."""
    good = http(200, answer(text, [1, 2]))
    return {
        "none": good,
        "429": http(429, refusal("slow down")),
        "429 with Retry-After": http(429, refusal("slow down"), "retry-after: 0.1"),
        "500": http(500, refusal("out of memory")),
        "cut connection": b"",
        "malformed JSON": http(200, '{"choices": [{'),
        "empty choices": http(200, '{"choices": []}'),
        "slow first byte": None,
        "body cut off": good[:-20],
        "missing ids": http(200, answer(text, None)),
        "more ids than log-probabilities": http(200, answer(text, [1, 2, 3])),
        "400, context too long": http(400, refusal("the maximum context length is 8 tokens")),
    }


class FaultyServer:
    """Draws each request's fault by its text, and counts its tries."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.tries: Counter[str] = Counter()

    def draw(self, text: str) -> tuple[str, float]:
        """Return the fault of a request, and how many tries it lasts."""
        generator = random.Random(f"{self.seed} {text}")
        name = generator.choice(list(replies(text)))
        for_ever = name in LASTING or generator.random() < 0.1
        return name, float("inf") if for_ever else generator.choice((1, 2))

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection, which is one try."""
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            body = await reader.readexactly(int(head.split("content-length: ")[1].split("\r\n")[0]))
        except asyncio.IncompleteReadError:
            return  # the client timed out and hung up before this server read anything
        text = json.loads(body)["messages"][0]["content"]
        self.tries[text] += 1
        name, lasts = self.draw(text)
        reply = replies(text)[name if self.tries[text] <= lasts else "none"]
        if reply is None:
            await reader.read()  # until the client hangs up
        else:
            writer.write(reply)
        writer.close()


async def ask(client: OpenAIClient, server: FaultyServer, text: str) -> str:
    """Send one request and return its outcome."""
    try:
        response = await asyncio.wait_for(client.complete([{"role": "user", "content": text}]), HUNG_AFTER)
    except SparringError as error:
        if not str(error).startswith("127.0.0.1:") or "\n" in str(error):
            raise SystemExit(f"not one clear line: {error!r}") from error
        return "one clear error"
    except TimeoutError:
        return "hung"
    has_ids = response.completion_token_ids is not None
    if response.text != text or has_ids == (server.draw(text)[0] in TEXT_ONLY):
        raise SystemExit(f"a wrong answer was accepted: {response}")
    return "first try" if server.tries[text] == 1 else "retried success"


async def measure(requests: int, in_flight: int, seed: int) -> dict[str, Counter[str]]:
    """Outcomes by fault."""
    server = FaultyServer(seed)
    listener = await asyncio.start_server(server.handle, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}/v1"
    client = OpenAIClient(None, "small", url, TIMEOUT, retries=RETRIES, backoff=BACKOFF, max_wait=MAX_WAIT)
    slots = asyncio.Semaphore(in_flight)
    counts: dict[str, Counter[str]] = {name: Counter() for name in replies("")}

    async def count(text: str) -> None:
        async with slots:
            counts[server.draw(text)[0]][await ask(client, server, text)] += 1

    await asyncio.gather(*(count(f"request {number}") for number in range(requests)))
    await client.close()
    listener.close()
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--in-flight", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    started = perf_counter()
    counts = asyncio.run(measure(arguments.requests, arguments.in_flight, arguments.seed))
    counts["all"] = sum(counts.values(), Counter())
    print(f"| fault | requests | {' | '.join(OUTCOMES)} |\n" + "|---" * (2 + len(OUTCOMES)) + "|")
    for name, row in counts.items():
        print(f"| {name} | {row.total()} | {' | '.join(str(row[outcome]) for outcome in OUTCOMES)} |")
    print(f"{perf_counter() - started:.1f} s")
    if counts["all"]["hung"] or counts["all"].total() != arguments.requests:
        raise SystemExit("a request hung or was lost")


if __name__ == "__main__":
    main()
