"""The live view of a cluster: a real cluster with a tracker, and the view after the cluster is gone."""

import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap

import pytest
import ray

from sparring.cli.main import main
from sparring.cluster import view as live_view
from sparring.cluster.view import ClusterSource
from sparring.core import InputError
from sparring.view.run_view import RunView
from terminal_sessions import in_terminal, pretend_a_terminal

CLUSTER = """
    import sys
    import ray
    from sparring.cluster.services.tracker import TrackerService

    quiet = {"include_dashboard": False, "log_to_driver": False, "logging_level": 40}
    context = ray.init(address="local", num_cpus=2, **quiet)
    trackers = []
    for line in sys.stdin:
        words = line.split()
        if words[0] == "address":
            print(context.address_info["gcs_address"], flush=True)
        elif words[0] == "start":
            actor = ray.remote(num_cpus=0)(TrackerService)
            actor = actor.options(name="Tracker", namespace=words[1])
            trackers.append(actor.remote("demo", directory=words[2]))
            ray.get(trackers[-1].heartbeat.remote("Engine-0", {"tok_s": 12.0}))
            print("started", flush=True)
        elif words[0] == "flush":
            ray.get(trackers[-1].log.remote({"learner/loss": 0.5}))
            print(ray.get(trackers[-1].flush.remote(int(words[1])))["step"], flush=True)
        elif words[0] == "kill":
            ray.kill(trackers.pop())
            print("killed", flush=True)
"""


class Cluster:
    """A cluster in a separate process, which executes commands.

    Ray protects clusters with a token. This cluster's token is made here and passed on in the environment.
    """

    def __init__(self) -> None:
        self.environment = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": os.urandom(16).hex()}
        self.process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(CLUSTER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | self.environment,
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
def running():
    cluster = Cluster()
    yield cluster
    cluster.close()


@pytest.fixture
def cluster(running, monkeypatch):
    for name, value in running.environment.items():
        monkeypatch.setenv(name, value)
    return running


def error_of(*arguments, capsys):
    assert main(["watch", *arguments]) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith("error: ")
    assert printed.err.count("\n") == 1
    return printed.err


def troubled(source):
    """Read until the view reports trouble, because Ray takes some time to kill an actor."""
    return next(view for _ in range(100_000) if (view := source.read()).trouble)


def test_the_view_finds_and_follows_a_run_of_a_cluster_and_reports_its_loss(cluster, tmp_path):
    assert cluster.tell("start", "sparring-demo", tmp_path / "demo") == "started"
    source = ClusterSource(cluster.address, None)
    view = source.read()
    assert (view.name, view.step, view.actors) == ("demo", 0, {"Engine-0": {"tok_s": 12.0}})
    assert cluster.tell("flush", 3) == "3"
    view = source.read()
    assert (view.step, view.latest["learner/loss"], view.trouble) == (3, 0.5, "")

    assert cluster.tell("kill") == "killed"
    view = troubled(source)
    assert view.step == 3
    assert "the tracker is gone" in view.trouble
    (follower,) = multiprocessing.active_children()
    os.kill(follower.pid, signal.SIGKILL)  # as Ray does when the cluster is gone
    assert [(view.step, view.trouble) for view in (source.read(), source.read())] == [
        (3, "the cluster is gone")
    ] * 2


def test_the_error_for_a_cluster_that_requires_a_token_says_so(cluster, capsys, monkeypatch):
    monkeypatch.setenv("RAY_AUTH_TOKEN", os.urandom(16).hex())
    monkeypatch.setenv("RAY_gcs_server_port_wait_time_s", "1")
    pretend_a_terminal(monkeypatch)
    assert "if it requires a token, set RAY_AUTH_MODE=token" in error_of(
        "--address", cluster.address, capsys=capsys
    )


SHOWN = RunView("demo", actors={"Learner": {"state": "waiting"}})


def waiting_tracker():
    """Return an actor class that shows one learner, defined here because actors cannot import this file."""

    class Waiting:
        def view(self):
            return SHOWN

    return ray.remote(num_cpus=0)(Waiting)


@pytest.fixture(scope="module")
def joined():
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level=40)
    yield
    ray.shutdown()


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
    tracker = waiting_tracker().remote()
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


def test_the_terminal_interface_asks_for_the_background_and_shows_the_run_of_a_handle(cluster, tmp_path):
    assert cluster.tell("start", "sparring-shown", tmp_path / "demo") == "started"
    assert cluster.tell("flush", 7) == "7"
    command = [sys.executable, "-c", SHOW, cluster.address]
    in_terminal(command, (b"demo", b""), (b"update 7", b"q"))


@pytest.mark.parametrize("address", ["host:port", "ray://", "127.0.0.1"])
def test_an_invalid_address_fails_immediately(address, capsys, monkeypatch):
    pretend_a_terminal(monkeypatch)
    expected = f"{address!r} is not an address. Give HOST:PORT or auto"
    assert expected in error_of("--address", address, capsys=capsys)
