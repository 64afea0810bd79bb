"""The cluster that a run starts for itself: who can reach it, and the live view of a run on it."""

import ipaddress
import multiprocessing
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import ray

from sparring.cli.main import main
from sparring.cluster import view as live_view
from sparring.cluster.tracker import TrackerService
from sparring.cluster.view import ClusterSource
from sparring.core import InputError
from sparring.view.run_view import RunView
from terminal_sessions import in_terminal, pretend_a_terminal

CLUSTER = """
import sys
import psutil
from sparring.cluster.connect import import_ray

import_ray(silent=True)
import ray
from sparring.cluster.connect import connected
from sparring.cluster.tracker import TrackerService
from sparring.config.run import RaySettings

with connected(RaySettings(), "alone"):
    ray.get(ray.remote(lambda: None).remote())
    trackers = []
    for line in sys.stdin:
        match line.split():
            case ["address"]:
                print(ray.get_runtime_context().gcs_address, flush=True)
            case ["listening"]:
                everyone = [psutil.Process(), *psutil.Process().children(recursive=True)]
                sockets = [(one.name(), at) for one in everyone for at in one.net_connections("tcp")]
                print(*(f"{name}={at.laddr.ip}" for name, at in sockets if at.status == "LISTEN"), flush=True)
            case ["start", namespace, directory]:
                actor = ray.remote(num_cpus=0)(TrackerService).options(name="Tracker", namespace=namespace)
                trackers.append(actor.remote("demo", directory=directory))
                ray.get(trackers[-1].heartbeat.remote("Engine-0", {"tok_s": 12.0}))
                print("started", flush=True)
            case ["flush", step]:
                ray.get(trackers[-1].log.remote({"learner/loss": 0.5}))
                print(ray.get(trackers[-1].flush.remote(int(step)))["step"], flush=True)
            case ["kill"]:
                ray.kill(trackers.pop())
                print("killed", flush=True)
"""
STRANGER = """
import sys
from sparring.cluster.connect import import_ray

import_ray(silent=False)
import ray

try:
    ray.init(address=sys.argv[1], logging_level=40)
    print("let in")
except ConnectionError:
    print("refused")
"""
OURS = {name: value for name, value in os.environ.items() if not name.startswith("RAY_AUTH")}


class OwnCluster:
    """A cluster as a run without an address starts it, in a process that executes commands.

    The token that protects it is in its user's home.
    """

    def __init__(self, home: Path) -> None:
        self.home = home
        self.process = subprocess.Popen(
            [sys.executable, "-c", CLUSTER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=OURS | {"HOME": str(home)},
            text=True,
        )
        self.address = self.tell("address")

    def tell(self, *words: object) -> str:
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait(60)


@pytest.fixture(scope="module")
def own_cluster(tmp_path_factory):
    cluster = OwnCluster(tmp_path_factory.mktemp("home"))
    yield cluster
    cluster.close()


@pytest.fixture
def trusted(own_cluster, monkeypatch):
    """The cluster, for a process of its user."""
    monkeypatch.setenv("HOME", str(own_cluster.home))
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    return own_cluster


def is_loopback(text: str) -> bool:
    address = ipaddress.ip_address(text)
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback


def test_a_cluster_listens_only_to_this_machine_and_only_its_user_can_read_the_token(own_cluster):
    listening = [text.split("=") for text in own_cluster.tell("listening").split()]
    assert {"gcs_server", "raylet"} <= {name for name, _ in listening}
    assert [one for one in listening if not is_loopback(one[1])] == []
    token = own_cluster.home / ".ray" / "auth_token"
    assert token.stat().st_mode & 0o777 == 0o600
    assert len(token.read_text()) == 64


@pytest.mark.slow
@pytest.mark.parametrize("token", [{}, {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "ab" * 32}])
def test_no_process_joins_the_cluster_without_the_token(own_cluster, token, tmp_path):
    said = subprocess.run(
        [sys.executable, "-c", STRANGER, own_cluster.address],
        env=OURS | {"HOME": str(tmp_path)} | token,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert said.stdout == "refused\n"
    assert "InvalidAuthToken" in said.stderr


def error_of(*arguments, capsys):
    assert main(["watch", *arguments]) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith("error: ")
    assert printed.err.count("\n") == 1
    return printed.err


def troubled(source):
    """Read until the view reports trouble, because Ray takes some time to kill an actor."""
    return next(view for _ in range(100_000) if (view := source.read()).trouble)


def test_the_view_finds_and_follows_a_run_of_a_cluster_and_reports_its_loss(trusted, tmp_path):
    assert trusted.tell("start", "sparring-demo", tmp_path / "demo") == "started"
    source = ClusterSource(trusted.address, None)
    view = source.read()
    assert (view.name, view.step, view.actors) == ("demo", 0, {"Engine-0": {"tok_s": 12.0}})
    assert trusted.tell("flush", 3) == "3"
    view = source.read()
    assert (view.step, view.latest["learner/loss"], view.trouble) == (3, 0.5, "")

    assert trusted.tell("kill") == "killed"
    view = troubled(source)
    assert view.step == 3
    assert "the tracker is gone" in view.trouble
    (follower,) = multiprocessing.active_children()
    os.kill(follower.pid, signal.SIGKILL)  # as Ray does when the cluster is gone
    assert [(view.step, view.trouble) for view in (source.read(), source.read())] == [
        (3, "the cluster is gone")
    ] * 2


def test_the_error_for_a_cluster_that_requires_a_token_says_so(trusted, capsys, monkeypatch):
    monkeypatch.setenv("RAY_AUTH_TOKEN", os.urandom(16).hex())
    monkeypatch.setenv("RAY_gcs_server_port_wait_time_s", "1")
    pretend_a_terminal(monkeypatch)
    assert "if it requires a token, set RAY_AUTH_MODE=token" in error_of(
        "--address", trusted.address, capsys=capsys
    )


SHOWN = RunView("demo", actors={"Learner": {"state": "waiting"}})


def waiting_tracker(shown=None):
    """Return an actor class with a view, defined here because actors cannot import this file.

    One that shows nothing imports nothing of the package.
    """

    class Waiting:
        def view(self):
            return shown

    return ray.remote(num_cpus=0)(Waiting)


def test_a_tracker_is_found_by_the_name_of_its_run(joined):
    with pytest.raises(InputError, match="no run is active in this cluster"):
        live_view.find_tracker(None)
    actor = waiting_tracker()
    names = ("sparring-demo", "unstable")
    trackers = {name: actor.options(name="Tracker", namespace=name).remote() for name in names}
    bystander = actor.options(name="Buffer", namespace="sparring-other").remote()
    ray.get([one.view.remote() for one in (*trackers.values(), bystander)])
    for run, namespace in (
        ("demo", "sparring-demo"),
        ("sparring-demo", "sparring-demo"),
        ("unstable", "unstable"),
    ):
        assert live_view.find_tracker(run) == trackers[namespace]
    with pytest.raises(
        InputError, match=r"several runs are active in this cluster\. Name one of: demo, unstable"
    ):
        live_view.find_tracker(None)
    with pytest.raises(
        InputError, match=r"no run 'other' is active in this cluster\. There are: demo, unstable"
    ):
        live_view.find_tracker("other")


def test_a_handle_shows_the_last_view_of_a_tracker_that_is_gone(joined):
    tracker = waiting_tracker(SHOWN).remote()
    ray.get(tracker.view.remote())  # a busy machine starts an actor more slowly than a view waits
    source = live_view.HandleSource(tracker)
    assert source.read() == SHOWN
    ray.kill(tracker)
    view = troubled(source)
    assert view.actors == SHOWN.actors
    assert "the tracker is gone" in view.trouble


SHOW = """
import sys
import ray
from sparring.compat.unstable import TerminalInterface

ray.init(address=sys.argv[1], log_to_driver=False, logging_level=40)
TerminalInterface(ray.get_actor("Tracker", namespace="sparring-shown")).run()
"""


def test_the_terminal_interface_asks_for_the_background_and_shows_the_run_of_a_handle(joined, tmp_path):
    actor = ray.remote(num_cpus=0)(TrackerService).options(name="Tracker", namespace="sparring-shown")
    tracker = actor.remote("demo", directory=str(tmp_path / "demo"))
    ray.get(tracker.flush.remote(7))
    command = [sys.executable, "-c", SHOW, joined]
    in_terminal(command, (b"demo", b""), (b"update 7", b"q"))
    ray.kill(tracker)


@pytest.mark.parametrize("address", ["host:port", "ray://", "127.0.0.1"])
def test_an_invalid_address_fails_immediately(address, capsys, monkeypatch):
    pretend_a_terminal(monkeypatch)
    expected = f"{address!r} is not an address. Give HOST:PORT or auto"
    assert expected in error_of("--address", address, capsys=capsys)
