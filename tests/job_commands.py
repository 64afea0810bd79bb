"""``sparring serve --jobs`` as a process that tests kill, and the jobs that they give it."""

import contextlib
import hashlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openai

from openai_http import httpx2
from tiny_models import tiny_model

TOKEN = "the-token"
LIMIT_SECONDS = 300.0
SERVE = (
    "import sparring.learn.fine_tuning.settings as settings; settings.SAVE_SECONDS = 0.0; "
    "from sparring.cli.main import run; run()"
)
"""The command, with a saved state after every step: the jobs of these tests take seconds."""
METHODS = {
    "supervised": {"n_epochs": 30, "batch_size": 2, "learning_rate_multiplier": 20},
    "dpo": {"n_epochs": 30, "batch_size": 2, "learning_rate_multiplier": 100},
}


class Server:
    """A server over a directory of jobs, started again after each kill; ``more`` are its further options."""

    def __init__(self, directory: Path, *more: str, model: Path | None = None) -> None:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.port = probe.getsockname()[1]
        self.directory = directory
        self.model = model or tiny_model("llama")
        self.more = more
        self.client = openai.OpenAI(
            base_url=f"http://127.0.0.1:{self.port}/v1",
            api_key=TOKEN,
            max_retries=0,
            http_client=httpx2.Client(verify=False),
        )
        self.start()

    def start(self) -> None:
        """Start the process; return once it answers."""
        options = ["serve", str(self.model), "--port", str(self.port), "--threads", "1", *self.more]
        self.process = subprocess.Popen(
            [sys.executable, "-c", SERVE, *options, "--jobs", str(self.directory)],
            env=os.environ | {"SPARRING_API_KEY": TOKEN},
            stdout=subprocess.DEVNULL,
        )
        wait_until(self.answers)

    def answers(self) -> bool:
        """Whether the process, which must not have ended, answers."""
        assert self.process.poll() is None
        with contextlib.suppress(openai.APIConnectionError):
            self.client.models.list()
            return True
        return False

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


def lines(method: str) -> bytes:
    def line(number: int) -> dict[str, Any]:
        asked = [{"role": "user", "content": f"what is {number % 3}"}]
        good, bad = ({"role": "assistant", "content": text} for text in (f"it is {number}", "no idea"))
        if method == "supervised":
            return {"messages": [*asked, good]}
        return {"input": {"messages": asked}, "preferred_output": [good], "non_preferred_output": [bad]}

    return "".join(json.dumps(line(number)) + "\n" for number in range(10)).encode()


def create(client: openai.OpenAI, method: str, **hyperparameters: int) -> str:
    file = client.files.create(file=("data.jsonl", lines(method)), purpose="fine-tune")
    job = client.fine_tuning.jobs.create(
        model="base",
        training_file=file.id,
        seed=7,
        metadata={"mine": "yes"},
        method={"type": method, method: {"hyperparameters": METHODS[method] | hyperparameters}},
    )
    return job.id


def ended(client: openai.OpenAI, job: str) -> Any:
    found: list[Any] = []

    def has_ended() -> bool:
        found[:] = [client.fine_tuning.jobs.retrieve(job)]
        return found[0].status in ("succeeded", "failed")

    wait_until(has_ended)
    return found[0]


def rows(directory: Path) -> int:
    files = list(directory.glob("jobs/*/training/metrics.jsonl"))
    return files[0].read_bytes().count(b"\n") if files else 0


def wait_until(condition: Callable[[], bool]) -> None:
    """Look again and again until a condition holds, which must happen within ``LIMIT_SECONDS``."""
    until = time.monotonic() + LIMIT_SECONDS
    while not condition():
        assert time.monotonic() < until, "the server has not done in time what the test waits for"
        time.sleep(0.05)


def bytes_of(directory: Path) -> dict[str, str]:
    (training,) = directory.glob("jobs/*/training")
    files = [*training.glob("step-*/*"), training / "results.csv"]
    return {str(file.relative_to(training)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}
