"""How many programs the sandbox runs a second, and what a start costs.

    python benchmarks/sandbox.py [PROGRAMS]

First checks that every program gives its value. Rounds alternate between one process and one for each core.
"""

import asyncio
import os
import resource
import statistics
import sys
import time

from sparring.programs.code.sandbox import Ending, Sandbox

PROGRAMS = {
    "a product": ("def f(x):\n    return x * 7", "6", "42"),
    "a sorted list": (
        "def f(n):\n    return sorted(range(n), key=lambda x: -x)[:3]",
        "1000",
        "[999, 998, 997]",
    ),
    "a class": (
        "class Account:\n    def __init__(self):\n        self.sum = 0\n"
        "    def add(self, n):\n        self.sum += n\n        return self\n"
        "def f(n):\n    a = Account()\n    for i in range(n):\n        a.add(i)\n    return a.sum",
        "100",
        "4950",
    ),
    "modules": (
        "import re, heapq\nfrom collections import Counter\n"
        "def f(t):\n    return heapq.nlargest(1, Counter(re.findall('[a-z]', t)).items())",
        "'hello'",
        "[('o', 1)]",
    ),
}
ROUNDS = 3


async def round_of(sandbox: Sandbox, count: int) -> float:
    """Return programs a second."""
    chosen = [list(PROGRAMS.values())[number % len(PROGRAMS)] for number in range(count)]
    begin = time.perf_counter()
    endings: list[Ending] = await asyncio.gather(*(sandbox.run(one, "f", given) for one, given, _ in chosen))
    seconds = time.perf_counter() - begin
    assert [one.text for one in endings] == [value for _, _, value in chosen]
    return count / seconds


async def main(count: int) -> None:
    """Print the figures."""
    begin = time.perf_counter()
    sandboxes = [Sandbox(1), Sandbox(os.cpu_count() or 1)]
    first = await sandboxes[0].run("", "1")
    print(f"first program, with the start of a process: {time.perf_counter() - begin:.2f} s")
    print(f"instructions of an empty program: {first.instructions:,}")
    for name, (source, given, _) in PROGRAMS.items():
        print(f"instructions of {name}: {(await sandboxes[0].run(source, 'f', given)).instructions:,}")
    await round_of(sandboxes[1], 50)
    rates: list[list[float]] = [[], []]
    for _ in range(ROUNDS):
        for place, sandbox in enumerate(sandboxes):
            rates[place].append(await round_of(sandbox, count))
    for name, found in zip(("1 process", f"{os.cpu_count()} processes"), rates, strict=True):
        print(
            f"{name}: {statistics.median(found):.0f} programs a second, {min(found):.0f} to {max(found):.0f}"
        )
    for sandbox in sandboxes:
        sandbox.close()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds, programs = used.ru_utime + used.ru_stime, 50 + 2 * ROUNDS * count
    print(f"CPU time of the processes: {1000 * seconds / programs:.1f} ms a program")


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 400))
