"""Server throughput: generated tokens per second over HTTP, one request at a time and 64 at once.

``sparring serve`` runs in a separate process; requests go through the ``openai`` package. All prompts are
different, so that no answer reuses what was computed for an earlier request: only the chat template's first
words are shared. Answers are sampled at temperature 1 and end by themselves or after 64 tokens. All their
tokens are counted; prompt tokens are not. Both levels are measured in turn, ``--alone`` requests one after
another and 64 together; the ratio is the median over rounds of the ratio within a round.

tests/test_engine_server.py checks that answers do not depend on other requests.

Command:  python benchmarks/serve_throughput.py [--rounds 5] [--threads 1]
Needs:    this package with its extra ``serve``. Linux, to measure memory. A minute per round on one core.
"""

import argparse
import asyncio
import os
import re
import secrets
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import openai

from measuring import interleave, print_table

MAX_TOKENS = 64
TOGETHER = 64
TARGET = 5.0
ANIMALS = ("a cat", "an owl", "two foxes", "a crab", "an old horse", "a bee", "three frogs", "a whale")
PLACES = ("on a ship", "in a library", "at the market", "under a bridge", "on the moon", "in a lighthouse")
SERVE = "from sparring.cli.main import run; run()"


@dataclass
class Server:
    """A running ``sparring serve``."""

    process: "subprocess.Popen[str]"
    url: str
    token: str

    def reset_peak_memory(self) -> None:
        Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")

    def peak_memory_mb(self) -> float:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.split("VmHWM:")[1].split()[0]) / 1024


@contextmanager
def serving(model: str, threads: int) -> Iterator[Server]:
    """Run the command until the body is left."""
    token = secrets.token_hex(8)
    process = subprocess.Popen(
        [sys.executable, "-c", SERVE, "serve", model, "--port", "0", "--threads", str(threads)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "SPARRING_API_KEY": token, "OMP_NUM_THREADS": str(threads)},
    )
    assert process.stdout is not None
    try:
        address = next(filter(None, (re.search(r"http://\S+/v1", line) for line in process.stdout)))
        yield Server(process, address[0], token)
    finally:
        process.terminate()
        process.wait()


@dataclass
class Asking:
    """Sends ``requests`` new prompts at every call, ``concurrency`` at once."""

    server: Server
    requests: int
    concurrency: int
    asked: int = 0
    tokens: list[int] = field(default_factory=list)
    peaks_mb: list[float] = field(default_factory=list)

    def __call__(self) -> None:
        self.server.reset_peak_memory()
        self.tokens.append(asyncio.run(self._ask_all()))
        self.peaks_mb.append(self.server.peak_memory_mb())

    async def _ask_all(self) -> int:
        gate = asyncio.Semaphore(self.concurrency)
        numbers = range(self.asked, self.asked + self.requests)
        self.asked += self.requests
        address = {"base_url": self.server.url, "api_key": self.server.token}
        async with openai.AsyncOpenAI(**address, timeout=600, max_retries=0) as client:
            return sum(await asyncio.gather(*(self._ask(client, gate, number) for number in numbers)))

    async def _ask(self, client: openai.AsyncOpenAI, gate: asyncio.Semaphore, number: int) -> int:
        async with gate:
            answer = await client.chat.completions.create(
                model="default",
                messages=[{"role": "user", "content": prompt(self.concurrency, number)}],
                max_tokens=MAX_TOKENS,
                seed=number,
            )
        assert answer.usage is not None
        return answer.usage.completion_tokens


def prompt(level: int, number: int) -> str:
    """Return a question that is asked once; the leading number makes prompts differ from the first word."""
    animal, place = ANIMALS[number % len(ANIMALS)], PLACES[number % len(PLACES)]
    return f"{number * 1000 + level} words at most: tell me how {animal} spent a rainy Sunday {place}."


def measure(server: Server, alone: int, rounds: int) -> None:
    contenders = {"1": Asking(server, alone, 1), str(TOGETHER): Asking(server, TOGETHER, TOGETHER)}
    for one in contenders.values():
        one()
        one.tokens.clear()
    seconds = interleave(dict(contenders), rounds)
    rates = {
        name: [tokens / time for tokens, time in zip(one.tokens, seconds[name], strict=True)]
        for name, one in contenders.items()
    }
    rows = [
        [
            name,
            str(one.requests),
            str(int(median(one.tokens))),
            f"{median(rates[name]):.1f}",
            f"{max(one.peaks_mb):,.0f}",
        ]
        for name, one in contenders.items()
    ]
    print_table(["at once", "requests per round", "tokens per round", "tokens/s", "server's peak MB"], rows)
    ratios = [many / one for one, many in zip(rates["1"], rates[str(TOGETHER)], strict=True)]
    print(f"\nratio: {median(ratios):.1f} ({min(ratios):.1f} to {max(ratios):.1f}); target {TARGET:g}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--alone", type=int, default=4, help="requests per round, one after another")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    with serving(arguments.model, arguments.threads) as server:
        print(f"{arguments.model}, {arguments.rounds} rounds, {arguments.threads} thread(s)")
        measure(server, arguments.alone, arguments.rounds)


if __name__ == "__main__":
    main()
