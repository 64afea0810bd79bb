"""``selfplay serve --jobs`` as a real process that is killed (``kill -9``) at several moments of a job."""

import contextlib
import hashlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest

from tiny_models import tiny_model

pytestmark = pytest.mark.slow

TOKEN = "the-token"
SERVE = (
    "import selfplay.learning.fine_tuning.job as job; job.SAVE_SECONDS = 0.0; "
    "from selfplay.cli.main import run; run()"
)
"""The command, with a saved state after every step: the jobs of these tests take seconds."""
METHODS = {
    "supervised": {"n_epochs": 30, "batch_size": 2, "learning_rate_multiplier": 20},
    "dpo": {"n_epochs": 30, "batch_size": 2, "learning_rate_multiplier": 100},
}


class Server:
    """A server over a directory of jobs, started again after each kill."""

    def __init__(self, directory: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.port = probe.getsockname()[1]
        self.directory = directory
        self.client = openai.OpenAI(
            base_url=f"http://127.0.0.1:{self.port}/v1",
            api_key=TOKEN,
            max_retries=0,
            http_client=httpx2.Client(verify=False),
        )
        self.start()

    def start(self) -> None:
        """Start the process; return once it answers."""
        options = ["serve", str(tiny_model("llama")), "--port", str(self.port), "--threads", "1"]
        self.process = subprocess.Popen(
            [sys.executable, "-c", SERVE, *options, "--jobs", str(self.directory)],
            env=os.environ | {"SELFPLAY_API_KEY": TOKEN},
            stdout=subprocess.DEVNULL,
        )
        while True:
            with contextlib.suppress(openai.APIConnectionError):
                self.client.models.list()
                return
            assert self.process.poll() is None
            time.sleep(0.1)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def start(tmp_path) -> Iterator[Callable[[str], Server]]:
    servers: list[Server] = []

    def make(name: str) -> Server:
        servers.append(Server(tmp_path / name))
        return servers[-1]

    yield make
    for server in servers:
        server.kill()


def lines(method: str) -> bytes:
    def line(number: int) -> dict[str, Any]:
        asked = [{"role": "user", "content": f"what is {number % 3}"}]
        good, bad = ({"role": "assistant", "content": text} for text in (f"it is {number}", "no idea"))
        if method == "supervised":
            return {"messages": [*asked, good]}
        return {"input": {"messages": asked}, "preferred_output": [good], "non_preferred_output": [bad]}

    return "".join(json.dumps(line(number)) + "\n" for number in range(10)).encode()


def create(server: Server, method: str) -> str:
    file = server.client.files.create(file=("data.jsonl", lines(method)), purpose="fine-tune")
    job = server.client.fine_tuning.jobs.create(
        model="base",
        training_file=file.id,
        seed=7,
        metadata={"mine": "yes"},
        method={"type": method, method: {"hyperparameters": METHODS[method]}},
    )
    return job.id


def ended(server: Server, job: str) -> Any:
    while (found := server.client.fine_tuning.jobs.retrieve(job)).status not in ("succeeded", "failed"):
        time.sleep(0.1)
    return found


def rows(directory: Path) -> int:
    files = list(directory.glob("jobs/*/training/metrics.jsonl"))
    return files[0].read_bytes().count(b"\n") if files else 0


def wait_until(condition: Callable[[], bool]) -> None:
    while not condition():
        time.sleep(0.01)


def bytes_of(directory: Path) -> dict[str, str]:
    (training,) = directory.glob("jobs/*/training")
    files = [*training.glob("step-*/*"), training / "results.csv"]
    return {str(file.relative_to(training)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


@pytest.mark.parametrize("method", METHODS)
def test_a_server_that_is_killed_at_any_moment_ends_the_job_with_the_same_bytes(start, method):
    alone = start("alone")
    assert ended(alone, create(alone, method)).status == "succeeded"
    server = start("killed")
    job = create(server, method)
    directory = server.directory
    moments: list[Callable[[], bool]] = [
        lambda: True,  # while files are checked, or just after
        lambda: bool(list(directory.glob("jobs/*/worker.log"))),  # while the process starts
        lambda: rows(directory) >= 1,
        lambda: rows(directory) >= 60,
        lambda: bool(list(directory.glob("jobs/*/training/step-*"))),
        lambda: bool(list(directory.glob("jobs/*/outcome.json"))),
    ]
    for moment in moments:
        wait_until(moment)
        server.kill()
        server.start()
        assert [one.id for one in server.client.fine_tuning.jobs.list(metadata={"mine": "yes"})] == [job]
    done = ended(server, job)
    assert (done.status, done.error) == ("succeeded", None)
    assert bytes_of(directory) == bytes_of(alone.directory)
    assert len(server.client.files.list(purpose="fine-tune-results").data) == 1
    model = done.fine_tuned_model
    assert server.client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": "what is 1"}], max_tokens=4
    ).choices


def test_the_process_that_trains_ends_with_a_killed_server(start):
    server = start("orphan")
    create(server, "supervised")
    wait_until(lambda: rows(server.directory) >= 1)
    children = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children")
    (worker,) = map(int, children.read_text().split())
    server.kill()

    def is_gone() -> bool:
        try:
            return Path(f"/proc/{worker}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
        except FileNotFoundError:
            return True

    wait_until(is_gone)
