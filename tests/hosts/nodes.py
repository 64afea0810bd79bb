"""A Ray cluster on hosts that share nothing, and runs of ``sparring train`` on it."""

import shutil
import subprocess
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from safetensors.torch import load_file

from hosts.host import Host, Popen
from hosts.network import Network
from ray_faults import holds_before_end
from run_files import Weights, same_weights

REQUESTS = {"learner": (1, 1), "collector": (2, 0), "engine": (0, 2)}
"""Cores and GPUs that the actors of :meth:`Nodes.train` request.

None fits where another has been, so on hosts that offer no more each has one place: Ray gives a node that
comes back to whichever actor it looks at first.
"""
HEAD = 1
PORT = 6379
TOKEN = ".ray/auth_token"
LOG = "node.log"
"""Files in the home directory of a host."""
SIZE = ("--object-store-memory=100000000", "--disable-usage-stats")
SERVICE = 'while true; do ray start --block "$@"; sleep 0.5; done'
"""Starts a host's node again when it ends, as a service of the system does."""
SETTINGS = {
    "RAY_AUTH_MODE": "token",
    "RAY_worker_niceness": "0",
    "RAY_raylet_start_wait_time_s": "600",
    "RAY_worker_register_timeout_seconds": "600",
}
"""Clusters require a token. On a busy machine, Ray would give up too early, and starve its workers."""
WAIT = """
import sys, time, ray
while not ray.is_initialized():
    try:
        ray.init(address=sys.argv[1], log_to_driver=False, logging_level=50)
    except ConnectionError:  # the head is not there yet
        time.sleep(0.5)
while {node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]} != set(sys.argv[2:]):
    time.sleep(0.2)
"""
LIMIT_SECONDS = 1800.0
JOIN_SECONDS = 600


Sizes = Mapping[int, tuple[int, int]]
"""The cores and GPUs of each host that Ray is told of. The GPUs need not exist: nothing computes on them."""


def sizes_for(places: Iterable[tuple[str, int]]) -> Sizes:
    """Return the sizes of hosts that give each ``learner``, ``collector`` and ``engine`` its place."""
    sizes: dict[int, tuple[int, int]] = {}
    for actor, host in places:
        (cores, gpus), (more_cores, more_gpus) = sizes.get(host, (0, 0)), REQUESTS[actor]
        sizes[host] = cores + more_cores, gpus + more_gpus
    return sizes


class Nodes:
    """A node of Ray on every host, the first with the head.

    Args:
        sizes: the cores and GPUs of each host; by default none.
        settings: more variables of the nodes' environment.
    """

    address = f"10.77.0.{HEAD}:{PORT}"

    def __init__(self, network: Network, sizes: Sizes, settings: Mapping[str, str] | None = None) -> None:
        self.network = network
        self._sizes = sizes
        self.environment = SETTINGS | dict(settings or {})
        network[HEAD].run("ray", "get-auth-token", "--generate", env=self.environment, seconds=JOIN_SECONDS)
        for number in network.hosts:
            self._give_token(network[number])
            self.start(number)
        self.wait()

    @property
    def runs(self) -> Path:
        """Directory of the runs, on the first host's disk."""
        return self.network[HEAD].home / "runs"

    def start(self, number: int) -> None:
        """Start the node of a host, and again whenever it ends."""
        host = self.network[number]
        cores, gpus = self._sizes.get(number, (0, 0))
        own = [f"--node-ip-address={host.address}", f"--num-cpus={cores}", f"--num-gpus={gpus}"]
        join = (
            ["--head", f"--port={PORT}", "--include-dashboard=false"]
            if number == HEAD
            else [f"--address={self.address}"]
        )
        with (host.home / LOG).open("a") as log:
            host.start(
                "bash", "-c", SERVICE, "ray", *join, *own, *SIZE, env=self.environment, stdout=log, stderr=log
            )

    def wait(self) -> None:
        """Wait until the nodes of all hosts have joined, and no other is left."""
        addresses = [host.address for host in self.network.hosts.values()]
        script = ["python", "-c", WAIT, self.address, *addresses]
        try:
            self.network[HEAD].run(*script, env=self.environment, seconds=JOIN_SECONDS)
        except subprocess.SubprocessError as error:
            logs = [(host.home / LOG).read_text()[-1000:] for host in self.network.hosts.values()]
            raise RuntimeError("\n".join(["a node did not join", *logs])) from error

    def sparring(self, *arguments: str) -> "Command":
        """Start the command on the first host."""
        process = self.network[HEAD].start(
            "sparring",
            *arguments,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        return Command(process)

    def train(self, name: str, *arguments: str) -> "Command":
        """Start a run on the cluster."""
        requests = [f"--ray.cpus_per_{actor}={cores}" for actor, (cores, _) in REQUESTS.items()]
        requests += [f"--ray.gpus_per_{actor}={gpus}" for actor, (_, gpus) in REQUESTS.items() if gpus]
        ray = ["--runtime=ray", f"--address={self.address}", "--model.device=cpu", *requests]
        return self.sparring("train", *arguments, f"--name={name}", *ray)

    def _give_token(self, host: Host) -> None:
        if host.number != HEAD:
            (host.home / TOKEN).parent.mkdir(parents=True)
            shutil.copy(self.network[HEAD].home / TOKEN, host.home / TOKEN)


class Command:
    """A command that runs on the first host."""

    def __init__(self, process: Popen) -> None:
        self.process = process

    def end(self) -> tuple[int, str]:
        """Wait until the command ends; return its exit status and what it printed."""
        try:
            said, _ = self.process.communicate(timeout=LIMIT_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            said, _ = self.process.communicate()
            return -1, f"{said}\nkilled after {LIMIT_SECONDS:g} s"
        return self.process.returncode, said

    def wait_until(self, condition: Callable[[], bool]) -> bool:
        """Wait until ``condition`` holds; return whether it did before the command ended."""
        return holds_before_end(self.process, condition, LIMIT_SECONDS)


def saved(run: Path) -> int:
    """Return the number of saved updates of a run."""
    names = [path.name for path in (run / "learner").glob("*")]
    return max((int(name) for name in names if name.isdigit()), default=0)


def adapters_of(run: Path) -> Weights:
    """Return the adapters of a run's newest checkpoint, by file."""
    newest = max((run / "checkpoints").iterdir())
    files = newest.rglob("adapter_model.safetensors")
    return {str(one.relative_to(newest)): load_file(one) for one in files}


def same(one: Weights, other: Weights) -> bool:
    """Whether adapters are the same but for rounding, which depends on engines' batches."""
    return same_weights(one, other, 1e-5)
