"""Kill parts of a run on Ray at random moments, and check that it still ends with balanced accounts.

    python benchmarks/ray_faults.py [--program] [--kills 10] [--victims engine ...] [--seed 0] [--keep DIR]

The runs are ``sparring train`` with a tiny model, of Kuhn poker or of a program with two policies and nested
episodes, half of the kills in lockstep and half with play and learning at the same time, on Ray's own test
cluster on this machine. A program in lockstep must also end with the adapters of an undisturbed run. ``node``
kills one of three
nodes; ``driver`` kills the command itself, which is then resumed. ``lost`` kills the only node with enough
resources: the command must end with a one-line error, and the run must be resumable.

Seconds are counted from the kill until the actor answers again (for a node: until all actors do; for the
driver: until all actors of the resumed command do; for a lost node: until the command has ended), and until
an update is saved.
"""

import argparse
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

import ray
from ray.cluster_utils import Cluster

from playing_model import save_playing_model
from program_files import write_program
from ray_accounts import problems_of, problems_of_program, read_books

ACTORS = {
    "engine": "Engine-0",
    "collector": "Collector-0",
    "buffer": "Buffer",
    "pool": "ModelPool",
    "tracker": "Tracker",
    "learner": "Learner",
}
OF_GAMES = ("buffer", "pool", "lost")
VICTIMS = [*ACTORS, "node", "driver", "lost"]
UPDATES = 20
KILLS_OF_A_RUN = 5
SPARRING = [sys.executable, "-c", "from sparring.cli.main import run; run()"]
CROWDED = "--ray.cpus_per_collector=0"
"""Lets collectors share the CPUs of the other actors, where a kill leaves too few for all."""
QUIET = {"log_to_driver": False, "logging_level": 40}
LIMIT_SECONDS = 900.0
KUHN = [
    "quickstart",
    "--collection.games_per_step=32",
    "--evaluation.games=8",
    "--evaluation.games_during=8",
    "--evaluation.opponents=['random']",
]


def holds_before_end(process: subprocess.Popen[Any], condition: Callable[[], bool], limit: float) -> bool:
    """Wait until ``condition`` holds, at most ``limit`` seconds; return whether it did before the end."""
    deadline = time.monotonic() + limit
    while process.poll() is None and time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.05)
    return condition()


@dataclass
class Command:
    """``sparring train`` in a process of its own, on a cluster."""

    directory: Path
    process: subprocess.Popen[str]

    @property
    def namespace(self) -> str:
        """The namespace of the run's actors."""
        return f"sparring-{self.directory.name}"

    def saved(self) -> int:
        """Return the number of saved updates."""
        names = [path.name for path in (self.directory / "learner").glob("*")]
        return max((int(name) for name in names if name.isdigit()), default=0)

    def wait_until(self, condition: Callable[[], bool]) -> bool:
        """Wait until ``condition`` holds; returns whether it did before the command ended."""
        return holds_before_end(self.process, condition, LIMIT_SECONDS)

    def end(self) -> str:
        """Wait until the command ends; returns what it printed."""
        try:
            said, _ = self.process.communicate(timeout=LIMIT_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            said, _ = self.process.communicate()
            return f"{said}\nkilled after {LIMIT_SECONDS:g} s"
        return said


@dataclass
class Tally:
    """The results of the kills of one victim."""

    kills: int = 0
    runs: int = 0
    right: int = 0
    replayed: int = 0
    answers: list[float] = field(default_factory=list)
    updates: list[float] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    undisturbed: Path | None = None

    def row(self, victim: str) -> str:
        """Return a line of the table."""
        figures = f"{self.kills} | {self.right} of {self.runs} | {_seconds(self.answers)}"
        return f"| {victim} | {figures} | {_seconds(self.updates)} | {self.replayed} |"

    def judge(self, run: Path, code: int, said: str) -> None:
        """Check a run that has ended."""
        self.runs += 1
        if code:
            problems = [f"it ended with {code}: {said[-1500:]}"]
        elif self.undisturbed is not None:
            problems = problems_of_program(run, self.undisturbed)
        else:
            problems = problems_of(run)
        self.right += not problems
        self.problems += [f"{run.name}: {problem}" for problem in problems]
        if (run / "state" / "ModelPool").exists() and not code:
            self.replayed += read_books(run).ledger.replayed


def _seconds(values: list[float]) -> str:
    return f"{statistics.median(values):.1f}, {max(values):.1f}" if values else "-"


class Faults:
    """Runs and kills, on one cluster at a time.

    Args:
        directory: directory of the runs.
        model: directory of the model.
        rng: chooses the moments.
        program: the file of a program to train in place of games.
        address: the address of a cluster that is there already.
    """

    def __init__(
        self,
        directory: Path,
        model: Path,
        rng: random.Random,
        program: Path | None = None,
        address: str = "",
    ) -> None:
        self.directory = directory
        self.model = model
        self.rng = rng
        self.program = program
        self.actors = {k: v for k, v in ACTORS.items() if program is None or k not in OF_GAMES}
        self.runs = 0
        self.tally = Tally()
        self.cluster: Any = None
        self.address = address
        self.commands: list[Command] = []

    def start_cluster(self, *cpus: int) -> None:
        """Start a cluster with a node for each number of CPUs, the first as its head, and connect to it."""
        self.cluster = Cluster(
            initialize_head=True, head_node_args={"num_cpus": cpus[0], "include_dashboard": False}
        )
        ray._common.utils.reset_ray_address()  # otherwise any ray.init() on this machine would join it
        for more in cpus[1:]:
            self.cluster.add_node(num_cpus=more)
        self.address = self.cluster.address
        ray.init(address=self.address, **QUIET)

    def end_commands(self) -> None:
        """Kill the commands that still run."""
        for command in self.commands:
            if command.process.poll() is None:
                command.process.kill()
                command.process.wait()

    def stop_cluster(self) -> None:
        """Stop the cluster and the commands that still run on it."""
        self.end_commands()
        ray.shutdown()
        self.cluster.shutdown()

    def train(self, staleness: int, *more: str, updates: int = UPDATES) -> Command:
        """Start a new run."""
        self.runs += 1
        name = f"run-{self.runs}"
        arguments = [
            *(KUHN if self.program is None else self._program()),
            "--runtime=ray",
            f"--address={self.address}",
            f"--name={name}",
            f"--run.directory={self.directory}",
            f"--model.name={self.model}",
            "--model.threads=1",
            "--model.dtype=float32",
            "--lora.rank=2",
            "--inference.max_tokens=6",
            "--learning.max_generation_len=6",
            f"--learning.steps={updates}",
            "--collection.concurrency=48",
            f"--collection.max_staleness={staleness}",
            "--evaluation.every=6",
            "--run.save_every=5",
        ]
        given = {option.partition("=")[0] for option in more}
        arguments = [*(one for one in arguments if one.partition("=")[0] not in given), *more]
        return self.start([*SPARRING, "train", *arguments], self.directory / name)

    def _program(self) -> list[str]:
        """Return the arguments of a program of 32 outer episodes an update."""
        file = self.directory / "program.toml"
        self.directory.mkdir(parents=True, exist_ok=True)
        lines = ["[program]", 'type = "python"', f'path = "{self.program}:HideAndSeek"']
        file.write_text("\n".join([*lines, "options = { batch_size = 32 }", ""]))
        return [str(file), "--learning.algorithm.regulariser=none"]

    def resume(self, run: Path) -> Command:
        """Resume a run."""
        return self.start([*SPARRING, "train", "--resume", str(run)], run)

    def start(self, command: list[str], run: Path) -> Command:
        """Start a command that trains."""
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
        )
        self.commands.append(Command(run, process))
        return self.commands[-1]

    def moments(self, kills: int) -> list[int]:
        """Return the numbers of updates after which to kill, in order."""
        return sorted(self.rng.randrange(UPDATES // 2) for _ in range(kills))

    def wait_for_moment(self, command: Command, saved: int) -> bool:
        """Wait until this many updates are saved, and a little longer; returns whether the run continues."""
        there = command.wait_until(
            lambda: command.saved() >= saved and answers(command, *self.actors.values())
        )
        time.sleep(self.rng.uniform(0.0, 1.5))
        return there and command.process.poll() is None and command.saved() < UPDATES

    def recover(self, command: Command, killed: float, before: int, *names: str) -> None:
        """Measure from the kill until the actors answer and until an update is saved."""
        if command.wait_until(lambda: answers(command, *names)):
            self.tally.answers.append(time.monotonic() - killed)
        if command.wait_until(lambda: command.saved() > before):
            self.tally.updates.append(time.monotonic() - killed)

    # Kinds of kills

    def kill_actor(self, victim: str, kills: int, staleness: int) -> None:
        """Kill an actor's process several times in one run."""
        command = self.train(staleness)
        for moment in self.moments(kills):
            if not self.wait_for_moment(command, moment):
                break
            before, pid = command.saved(), pid_of(command, ACTORS[victim])
            os.kill(pid, signal.SIGKILL)
            self.tally.kills += 1
            killed = time.monotonic()
            command.wait_until(lambda pid=pid: not alive(pid))
            self.recover(command, killed, before, ACTORS[victim])
        said = command.end()
        self.tally.judge(command.directory, command.process.returncode, said)

    def kill_node(self, kills: int, staleness: int) -> None:
        """Kill one of the nodes other than the head several times in one run, and add a new one each time."""
        command = self.train(staleness, "--ray.engines=2", "--ray.collectors=2", CROWDED)
        names = [*self.actors.values(), "Engine-1", "Collector-1"]
        for moment in self.moments(kills):
            if not self.wait_for_moment(command, moment):
                break
            before, killed = command.saved(), time.monotonic()
            node = self.rng.choice(sorted(self.cluster.worker_nodes, key=lambda one: one.node_id))
            self.cluster.remove_node(node, allow_graceful=False)
            self.tally.kills += 1
            self.recover(command, killed, before, *names)
            self.cluster.add_node(num_cpus=2)
        said = command.end()
        self.tally.judge(command.directory, command.process.returncode, said)

    def kill_driver(self, kills: int, staleness: int) -> None:
        """Kill the command and resume it several times in one run."""
        command = self.train(staleness)
        for moment in self.moments(kills):
            if not self.wait_for_moment(command, moment):
                break
            before, killed = command.saved(), time.monotonic()
            command.process.kill()
            command.process.wait()
            self.tally.kills += 1
            command = self.resume(command.directory)
            self.recover(command, killed, before, *self.actors.values())
        said = command.end()
        self.tally.judge(command.directory, command.process.returncode, said)

    def lose_node(self, staleness: int) -> None:
        """Kill the only node with CPUs; the command must report it and end, and the run must be resumable."""
        self.start_cluster(0, 2)
        try:
            command = self.train(staleness, "--ray.patience=60", CROWDED)
            self.wait_for_moment(command, self.moments(1)[0])
            killed = time.monotonic()
            self.cluster.remove_node(next(iter(self.cluster.worker_nodes)), allow_graceful=False)
            self.tally.kills += 1
            said, code = command.end(), command.process.returncode
            self.tally.answers.append(time.monotonic() - killed)
            lines = [line for line in said.splitlines() if "sparring train --resume" in line]
            print(f"  lost: ended with {code} and: {' '.join(said.split())[-400:]}", flush=True)
            if code != 1 or "Traceback" in said or not lines:
                self.tally.problems.append(f"ended with {code} and: {said[-1500:]}")
            self.cluster.add_node(num_cpus=2)
            command = self.resume(command.directory)
            said = command.end()
            self.tally.judge(command.directory, command.process.returncode, said)
        finally:
            self.stop_cluster()

    def strike(self, victim: str, kills: int) -> Tally:
        """Make all kills of one victim, half of them in lockstep."""
        self.tally = Tally()
        if victim == "lost":
            for number in range(kills):
                self.lose_node(number % 2)
            return self.tally
        self.start_cluster(*((1, 2, 2) if victim == "node" else (4,)))
        try:
            if self.program is not None:
                command = self.train(0)
                command.end()
                self.tally.undisturbed = command.directory
            for staleness, wanted in ((0, (kills + 1) // 2), (1, kills)):
                while self.tally.kills < wanted and not self.tally.problems:
                    self.strike_once(victim, wanted - self.tally.kills, staleness)
        finally:
            self.stop_cluster()
        return self.tally

    def strike_once(self, victim: str, kills: int, staleness: int) -> None:
        """Make one run with up to this many kills, or fewer if it ends earlier."""
        kills = min(kills, KILLS_OF_A_RUN)
        if victim == "node":
            self.kill_node(kills, staleness)
        elif victim == "driver":
            self.kill_driver(kills, staleness)
        else:
            self.kill_actor(victim, kills, staleness)


def pid_of(command: Command, name: str, timeout: float = 60.0) -> int:
    """Return the id of an actor's process.

    Raises:
        ValueError: there is no such actor.
        RayError: it does not answer.
    """
    handle = ray.get_actor(name, namespace=command.namespace)
    pid: int = ray.get(handle.__ray_call__.remote(lambda actor: os.getpid()), timeout=timeout)
    return pid


def answers(command: Command, *names: str) -> bool:
    """Return whether the actors exist and answer."""
    try:
        for name in names:
            pid_of(command, name, timeout=5.0)
    except (ValueError, ray.exceptions.RayError):
        return False
    return True


def alive(pid: int) -> bool:
    """Return whether the process exists and has not ended."""
    status = Path(f"/proc/{pid}/stat")
    try:
        return status.read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def main() -> None:
    """Run everything and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", action="store_true", help="train a program in place of games")
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--victims", nargs="+", choices=VICTIMS, default=VICTIMS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="leave the runs in this directory")
    options = parser.parse_args()
    rows, problems = [], []
    with tempfile.TemporaryDirectory() as scratch:
        directory = (options.keep or Path(scratch)).absolute()
        directory.mkdir(parents=True, exist_ok=True)
        model = save_playing_model(Path(scratch) / "model")
        program = write_program(Path(scratch)) if options.program else None
        for victim in options.victims:
            if options.program and victim in OF_GAMES:
                continue
            rng = random.Random(f"{options.seed} {victim}")
            tally = Faults(directory / victim, model, rng, program).strike(victim, options.kills)
            rows.append(tally.row(victim))
            print(rows[-1], *tally.problems, sep="\n  ", flush=True)
            problems += tally.problems
    print("\n| victim | kills | runs that ended right | s until it answers (median, max) | "
          "s until the next update (median, max) | games replayed |")  # fmt: skip
    print("|---|---|---|---|---|---|", *rows, sep="\n")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
