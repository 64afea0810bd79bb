"""``sparring serve --runtime ray`` as a real process on a real cluster, where parts of it are killed."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
import ray

from job_commands import Server, bytes_of, create, ended, rows, wait_until
from job_server import ASK, serving

JOB = "supervised"


@pytest.fixture
def start(joined, tmp_path) -> Iterator[Callable[[], Server]]:
    """Starts a server with an engine on the cluster."""
    servers: list[Server] = []

    def make() -> Server:
        options = ("--dtype", "float32", "--runtime", "ray", "--address", joined)
        servers.append(Server(tmp_path / "spread", *options))
        return servers[-1]

    yield make
    for server in servers:
        server.kill()


def worker(server: Server, job: str) -> int | None:
    """Return the process that holds a job's lock, by the kernel's table of locks."""
    lock = server.directory / "jobs" / job / ".lock"
    inode = lock.stat().st_ino if lock.exists() else None
    for line in Path("/proc/locks").read_text().splitlines():
        fields = line.split()
        if fields[1] == "FLOCK" and fields[5].rpartition(":")[2] == str(inode):
            return int(fields[4])
    return None


def answer(client: openai.OpenAI, model: str) -> tuple[str, list[float]]:
    choice = client.chat.completions.create(
        model=model, messages=ASK, seed=1, max_tokens=8, logprobs=True
    ).choices[0]
    return choice.message.content, [token.logprob for token in choice.logprobs.content]


def engines() -> list[Any]:
    """Return the engines of the servers on the cluster."""
    named = ray.util.list_named_actors(all_namespaces=True)
    return [ray.get_actor(**one) for one in named if one["name"].startswith("Engine-")]


@pytest.mark.slow
def test_a_job_whose_worker_and_whose_server_are_killed_gives_the_local_servers_model(start, tmp_path):
    with serving(tmp_path / "local") as live:
        alone = create(live.client(), JOB)
        server = start()  # which takes as long as the job
        alone = ended(live.client(), alone)
        expected = answer(live.client(), alone.fine_tuned_model)
        base = answer(live.client(), "tiny")
    assert answer(server.client, "base") == (base[0], pytest.approx(base[1], abs=1e-5))
    job = create(server.client, JOB)
    wait_until(lambda: rows(server.directory) >= 1)
    first = worker(server, job)
    assert first is not None
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: worker(server, job) not in (None, first))
    before = rows(server.directory)
    wait_until(lambda: rows(server.directory) > before)
    server.kill()
    server.more = (*server.more, "--engines", "2")
    server.start()
    done = ended(server.client, job)
    assert (done.status, done.error) == ("succeeded", None)
    assert bytes_of(server.directory) == bytes_of(tmp_path / "local")
    assert [ray.get(engine.load.remote())["adapters"] for engine in engines()] == [3, 3]
    text, logprobs = answer(server.client, done.fine_tuned_model)
    assert (text, logprobs) == (expected[0], pytest.approx(expected[1], abs=1e-5))

    # An engine that was killed answers with the model again, a cancelled job ends at once, and a server
    # without engines ends with an error.
    other = create(server.client, JOB, n_epochs=1000)
    ray.kill(engines()[0], no_restart=False)
    assert answer(server.client, done.fine_tuned_model)[0] == expected[0]
    wait_until(lambda: worker(server, other) is not None)
    assert server.client.fine_tuning.jobs.cancel(other).status == "cancelled"
    wait_until(lambda: worker(server, other) is None)
    for engine in engines():
        ray.kill(engine)
    assert server.process.wait() == 1
