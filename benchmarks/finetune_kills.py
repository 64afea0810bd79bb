"""Kill ``sparring finetune`` and ``sparring serve --jobs`` with SIGKILL at random moments; compare the ends.

One run is left alone. Then runs of the same configuration are killed, trainer or server, at random moments
over all of their stages; the server is started again and the run is resumed until it ends. Each must end by
itself with the same state, rollouts and job files, and the server with as many jobs, whose adapters have the
same bytes. Only what is drawn or measured anew in each run may differ: ids, times, how often an
episode was tried, and the random ends of the names of jobs and models.

Command:  python benchmarks/finetune_kills.py [--kills 50] [--each 5] [--trainer pure_text_ei] [--seed 0]
Needs:    this package. Linux.
"""

import argparse
import hashlib
import json
import os
import random
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from measuring import print_table

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from tiny_models import tiny_model

SPARRING = [sys.executable, "-c", "from sparring.cli.main import run; run()"]
TOKEN = "the-token"
LIMIT_SECONDS = 600.0
REPEATING = ("--threads", "1", "--dtype", "float32")
"""Options with which a server's answers repeat."""
CONFIG = """
seed = 3
[program]
type = "proofs"
protocol = "nip"
max_message_rounds = 3
max_response_words = 8
max_tokens_per_message = 8
num_invalid_generation_retries = 1
evaluation_claims = 6
[program.claims]
type = "arithmetic_claims"
[finetune]
trainer = "{trainer}"
[finetune.provider]
base_url = "http://127.0.0.1:PORT/v1"
poll_seconds = 0.2
least_examples = 2
[finetune.agents._default]
model_name = "base"
hyperparameters = {{n_epochs = {epochs}, batch_size = 2, learning_rate_multiplier = 20.0}}
[finetune.rl]
rollouts_per_iteration = 16
num_iterations = {iterations}
[finetune.text_rl]
test_scheme = "all"
verifier_guess_replacement_proportion = 0.5
[finetune.pure_text_malt]
pair_selection_method = "positive_negative"
num_initial_ei_iterations = 1
"""


def config_of(trainer: str, *, iterations: int = 3, epochs: int = 6) -> str:
    """Return the configuration of a run that a tiny model can make; PORT stands for the server's."""
    return CONFIG.format(trainer=trainer, iterations=iterations, epochs=epochs)


class System:
    """A server, and a run that it trains, in one directory.

    Args:
        directory: is created.
        model: what is served.
        config: the run's configuration, in which PORT stands for the server's.
        options: further options of the server.
    """

    def __init__(self, directory: Path, model: str, config: str, options: tuple[str, ...]) -> None:
        directory.mkdir(parents=True)
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.port: int = probe.getsockname()[1]
        self.directory, self.model, self.options = directory, model, options
        (directory / "run.toml").write_text(config.replace("PORT", str(self.port)))
        self.run = directory / "runs" / "run"
        self.log = (directory / "log").open("ab")
        self.server = self.serve()
        self.trainer = self.train()

    def serve(self) -> subprocess.Popen[bytes]:
        """Start the server; return once it answers."""
        jobs = ("--jobs", str(self.directory / "jobs"))
        process = self._start(["serve", self.model, "--port", str(self.port), *jobs, *self.options])
        address = f"http://127.0.0.1:{self.port}/v1/models"
        request = urllib.request.Request(address, headers={"Authorization": f"Bearer {TOKEN}"})
        until = time.monotonic() + LIMIT_SECONDS
        while time.monotonic() < until and process.poll() is None:
            with suppress(OSError):
                urllib.request.urlopen(request, timeout=5).close()
                return process
            time.sleep(0.1)
        process.kill()
        raise RuntimeError(f"the server does not answer; see {self.log.name}")

    def train(self) -> subprocess.Popen[bytes]:
        """Start the run, or continue it."""
        if (self.run / "config.toml").exists():
            return self._start(["finetune", "--resume", str(self.run)])
        where = f"--run.directory={self.run.parent}"
        return self._start(["finetune", str(self.directory / "run.toml"), where, "--name", self.run.name])

    def kill(self, victim: str) -> None:
        """Kill one of the two and start it again."""
        process = self.server if victim == "server" else self.trainer
        process.kill()
        process.wait()
        if victim == "server":
            self.server = self.serve()
        else:
            self.trainer = self.train()

    def end(self, limit: float = LIMIT_SECONDS) -> int:
        """Wait for the end of the run, resuming it when it stopped; return how often that was.

        Raises:
            RuntimeError: it is refused, or has not ended within ``limit`` seconds.
        """
        resumed, until = 0, time.monotonic() + limit
        while time.monotonic() < until:
            if self.trainer.poll() is None:
                time.sleep(0.1)
            elif self.trainer.returncode == 0:
                return resumed
            elif self.trainer.returncode == 2:
                raise RuntimeError(f"the configuration is refused; see {self.log.name}")
            else:
                resumed += 1
                self.trainer = self.train()
        raise RuntimeError(f"the run does not end; see {self.log.name}")

    def stage(self) -> str:
        """Return the stage that the run is in."""
        try:
            state = json.loads((self.run / "state.json").read_text())
        except FileNotFoundError:
            return "start"
        return str(state["train_loop_stage"])

    def close(self) -> None:
        """End both processes."""
        for process in (self.trainer, self.server):
            process.kill()
            process.wait()
        self.log.close()

    def _start(self, arguments: list[str]) -> subprocess.Popen[bytes]:
        environment = os.environ | {"SPARRING_API_KEY": TOKEN, "OMP_NUM_THREADS": "1"}
        command = [*SPARRING, *arguments]
        return subprocess.Popen(command, stdout=self.log, stderr=self.log, env=environment)


@contextmanager
def running(directory: Path, model: str, config: str, options: tuple[str, ...]) -> Iterator[System]:
    """Start a system, and end its processes."""
    system = System(directory, model, config, options)
    try:
        yield system
    finally:
        system.close()


def results(system: System) -> dict[str, Any]:
    """Return what must be equal: state, rollouts, what was asked of the provider, jobs and their adapters."""
    jobs = [json.loads(path.read_text()) for path in (system.directory / "jobs").rglob("job.json")]
    adapters = {
        path.relative_to(system.directory / "jobs").as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in (system.directory / "jobs").rglob("adapter_model.safetensors")
    }
    by_id = {job["id"]: _without_key(job["suffix"]) for job in jobs}
    rollouts = {
        path.name: [_timeless(line) for line in path.read_text().splitlines()]
        for path in sorted((system.run / "rollouts").glob("*.jsonl"))
    }
    asked = {path.name: path.read_bytes() for path in sorted((system.run / "jobs").glob("*.jsonl"))}
    return {
        "state": _named((system.run / "state.json").read_text(), by_id),
        "rollouts": [(name, [_named(line, by_id) for line in lines]) for name, lines in rollouts.items()],
        "examples": asked,
        "jobs": sorted(by_id.values()),
        "adapters": sorted((_named(path, by_id), digest) for path, digest in adapters.items()),
    }


def first_difference(expected: dict[str, Any], found: dict[str, Any]) -> str:
    """Return the first rollout that differs, in both versions."""
    for (name, lines), (_, others) in zip(expected["rollouts"], found["rollouts"], strict=True):
        for number, (line, other) in enumerate(zip(lines, others, strict=False)):
            if line != other:
                place = next(
                    at for at, pair in enumerate(zip(line, other, strict=False)) if len(set(pair)) > 1
                )
                around = slice(max(0, place - 60), place + 60)
                return f"; {name}, line {number}: {line[around]} / {other[around]}"
    return ""


def _timeless(line: str) -> str:
    content = json.loads(line)
    rollout = content.get("rollout", content)
    for name in ("started_at", "ended_at"):
        rollout.pop(name, None)
    rollout["meta"].pop("retried", None)
    return json.dumps(content)


def _named(text: str, jobs: dict[str, str]) -> str:
    """Replace the ids of jobs by their names, and the random ends of names by nothing."""
    for job, name in jobs.items():
        text = text.replace(job, name)
    return re.sub(r"(ft:[^\"]*:[^\":]*):[0-9a-f]{8}\b", r"\1", _without_key(text))


def _without_key(text: str) -> str:
    """Take away what the names of jobs at the server have so that no other run has them."""
    return re.sub(r"(_iter_[\w.-]+)_[0-9a-f]{8}\b", r"\1", text)


def main() -> None:
    """Kill, compare, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=50, help="in all")
    parser.add_argument("--each", type=int, default=5, help="kills of a run")
    parser.add_argument("--trainer", choices=("pure_text_ei", "pure_text_malt"), default="pure_text_ei")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    kills: Counter[tuple[str, str]] = Counter()
    same: Counter[tuple[str, str]] = Counter()
    differing: list[str] = []
    with tempfile.TemporaryDirectory() as scratch:
        given = (str(roomy(Path(scratch) / "model")), config_of(options.trainer), REPEATING)
        started = time.monotonic()
        with running(Path(scratch) / "alone", *given) as system:
            began = time.monotonic()
            system.end()
            seconds, expected = time.monotonic() - began, results(system)
        print(f"left alone: {seconds:.0f} s, {len(expected['jobs'])} jobs", file=sys.stderr, flush=True)
        number = 0
        while kills.total() < options.kills:
            name, number = f"run-{number}", number + 1
            with running(Path(scratch) / name, *given) as system:
                hit, resumed = disturb(system, min(options.each, options.kills - kills.total()), seconds, rng)
                resumed += system.end()
                found = results(system)
            wrong = [key for key in expected if found[key] != expected[key]]
            if wrong:
                differing.append(f"{name}: {', '.join(wrong)}{first_difference(expected, found)}")
            kills.update(hit)
            same.update([] if wrong else hit)
            found_wrong = f"differs in {differing[-1]}" if wrong else "the same"
            print(f"{name}: {hit}, resumed {resumed} times, {found_wrong}", file=sys.stderr, flush=True)
        print(f"{time.monotonic() - started:.0f} s", file=sys.stderr)
    rows = [[*key, str(kills[key]), str(same[key])] for key in sorted(kills)]
    print_table(["stage", "killed", "kills", "of them in runs that ended the same"], rows)
    if differing:
        sys.exit("\n".join(differing))


def roomy(directory: Path) -> Path:
    """Save a tiny model whose context holds these prompts in bytes."""
    shutil.copytree(tiny_model("llama"), directory)
    config = json.loads((directory / "config.json").read_text())
    config["max_position_embeddings"] = 16384
    (directory / "config.json").write_text(json.dumps(config))
    return directory


def disturb(
    system: System, number: int, seconds: float, rng: random.Random
) -> tuple[list[tuple[str, str]], int]:
    """Kill ``number`` times at random moments.

    Returns:
        The stage and the victim of each kill, and how often the run had to be resumed by itself.
    """
    hit: list[tuple[str, str]] = []
    resumed = 0
    for _ in range(number):
        until = time.monotonic() + rng.uniform(0.0, 2.0 * seconds / number)
        while time.monotonic() < until:
            time.sleep(0.01)
            if system.trainer.poll() is not None and system.trainer.returncode != 0:
                resumed += 1
                system.trainer = system.train()
        if system.trainer.poll() == 0:
            break
        victim = rng.choice(("trainer", "server"))
        hit.append((system.stage(), victim))
        system.kill(victim)
    return hit, resumed


if __name__ == "__main__":
    main()
