"""Hosts share nothing, and the wire between them does what it is told."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hosts.host import ROOT
from hosts.network import Network

RECEIVE = """
import socket
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as end:
    end.bind(("", 5000))
    end.settimeout(20)
    print("ready", flush=True)
    count = 0
    while (packet := end.recv(2000)) != b"end":
        count += len(packet) == 100
        end.settimeout(1)  # the end may be lost
    print(count)
"""
SEND = """
import socket, sys, time
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as end:
    for number in range(int(sys.argv[2])):
        end.sendto(bytes(100), (sys.argv[1], 5000))
        time.sleep(0.0002)
    time.sleep(0.3)
    end.sendto(b"end", (sys.argv[1], 5000))
"""
ANSWER = """
import socket, sys
with socket.create_server(("", 5001)) as server:
    print("ready", flush=True)
    connection, _ = server.accept()
    while data := connection.recv(int(sys.argv[1]), socket.MSG_WAITALL):
        connection.sendall(data[:1])
"""
ASK = """
import socket, sys, time
with socket.create_connection((sys.argv[1], 5001), timeout=20) as connection:
    began = time.monotonic()
    for _ in range(5):
        connection.sendall(bytes(int(sys.argv[2])))
        connection.recv(1)
    print(time.monotonic() - began)
"""
PROCESSES = """
import signal, time
from hosts.network import Network
signal.signal(signal.SIGINT, signal.default_int_handler)  # which is ignored in the background of a shell
network = Network(1)
print(network.wire, network[1].first, flush=True)
time.sleep(60)
"""


@pytest.fixture
def network() -> Iterator[Network]:
    with Network(2) as network:
        yield network


def received(network: Network, packets: int, sender: int = 1, receiver: int = 2) -> int:
    """The number of packets that arrive of those that one host sends to another."""
    process = network[receiver].start("python", "-c", RECEIVE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout.readline() == "ready\n"
    network[sender].run("python", "-c", SEND, network[receiver].address, str(packets))
    said, _ = process.communicate(timeout=60)
    return int(said or 0)


def seconds_of_answers(network: Network, size: int) -> float:
    """How long five answers take, to questions of this size."""
    process = network[2].start("python", "-c", ANSWER, str(size), stdout=subprocess.PIPE)
    assert process.stdout.readline() == "ready\n"
    took = network[1].run("python", "-c", ASK, network[2].address, str(size))
    process.communicate(timeout=60)
    return float(took)


def test_hosts_share_no_files_processes_or_names(network, tmp_path):
    (tmp_path / "of-the-machine").touch()
    for place in ("/tmp/mine", "mine", "/dev/shm/mine", "/var/tmp/mine"):
        network[1].run("touch", place)
        network[2].run("test", "!", "-e", place)
    network[1].run("test", "!", "-e", tmp_path)
    with pytest.raises(subprocess.CalledProcessError, match="exit status"):
        network[1].run("touch", ROOT / "mine")
    assert network[1].run("hostname") == "host1\n"
    sleeping = network[1].start("bash", "-c", "echo begun; sleep 60", stdout=subprocess.PIPE)
    assert sleeping.stdout.readline() == "begun\n"
    assert "sleep" in network[1].run("ps", "ax")
    assert "sleep" not in network[2].run("ps", "ax")
    assert (network[1].home / "mine").exists()
    sleeping.kill()


def test_the_wire_counts_what_arrives_and_loses_what_it_is_told_to(network):
    assert received(network, 500) == 500
    arrived = [row for row in network.counts()["arrived"] if row[3] == 5000]
    assert [(row[0], row[2], row[4], row[5]) for row in arrived] == [(1, 2, 501, 500 * 128 + 31)]
    network.change(2, ("in",), loss=0.1)
    assert 30 < 500 - received(network, 500) < 70


def test_a_way_that_is_cut_carries_nothing_and_the_other_way_everything(network):
    network.change(2, ("in",), cut=True)
    assert received(network, 20) == 0
    assert received(network, 20, sender=2, receiver=1) == 20
    network.change(2, ("in",), cut=False)
    assert received(network, 20) == 20


def test_delays_and_rates_make_answers_as_late_as_they_say(network):
    network.change(2, delay=0.02)
    assert seconds_of_answers(network, 1) >= 5 * 0.04
    network.change(2, delay=0.0)
    network.change(2, ("in",), rate=1e6)
    assert seconds_of_answers(network, 10_000) >= 5 * 0.08 * 0.9


def test_a_killed_host_starts_again_with_its_disk_and_without_its_processes(network):
    network[1].run("bash", "-c", "echo kept > note")
    network[1].run("touch", "/dev/shm/lost")
    sleeping = network[1].start("bash", "-c", "echo begun; sleep 60", stdout=subprocess.PIPE)
    assert sleeping.stdout.readline() == "begun\n"
    network.kill(1)
    assert sleeping.wait(timeout=20) != 0
    network.start(1)
    assert network[1].run("cat", "note") == "kept\n"
    network[1].run("test", "!", "-e", "/dev/shm/lost")
    assert received(network, 20) == 20


def test_the_script_runs_a_command_in_the_first_of_new_hosts():
    command = [ROOT / "scripts" / "test-hosts", "--run"]
    done = subprocess.run([*command, "2", "hostname"], stdout=subprocess.PIPE, text=True, timeout=600)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "host1")
    refused = subprocess.run([*command, "none"], stderr=subprocess.PIPE, text=True, timeout=600)
    assert refused.stderr.splitlines()[-1] == "error: give the number of hosts, 1 to 20, and a command"


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left_when_the_process_that_made_the_hosts_is_killed(end):
    mounts = Path("/proc/mounts").read_text()
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests")])
    process = subprocess.Popen(
        [sys.executable, "-c", PROCESSES], env=os.environ | {"PYTHONPATH": path}, stdout=subprocess.PIPE
    )
    ids = process.stdout.readline().split()
    assert len(ids) == 2
    process.send_signal(end)
    process.communicate(timeout=60)
    deadline = time.monotonic() + 60
    while any(Path("/proc", one.decode()).exists() for one in ids) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not [one for one in ids if Path("/proc", one.decode()).exists()]
    assert Path("/proc/mounts").read_text() == mounts
