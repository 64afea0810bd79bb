"""The cluster that a run starts for itself: which processes can reach it."""

import ipaddress
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from sparring.cluster.view import ClusterSource
from sparring.core import InputError

CLUSTER = """
import json, os, sys, psutil
from sparring.cluster.ray_import import import_ray

import_ray(silent=True)
import ray
from sparring.config.run import RaySettings
from sparring.cluster.connect import connected

with connected(RaySettings(), "alone"):
    ray.get(ray.remote(lambda: None).remote())
    processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
    listening = [
        (process.name(), one.laddr.ip)
        for process in processes
        for one in process.net_connections("tcp")
        if one.status == psutil.CONN_LISTEN
    ]
    print(json.dumps([ray.get_runtime_context().gcs_address, listening]), flush=True)
    sys.stdin.read()
"""
STRANGER = """
import sys
from sparring.cluster.ray_import import import_ray

import_ray(silent=False)
import ray

try:
    ray.init(address=sys.argv[1], logging_level=40)
    print("let in")
except ConnectionError:
    print("refused")
"""
OURS = {name: value for name, value in os.environ.items() if not name.startswith("RAY_AUTH")}


@dataclass
class Cluster:
    """A cluster: its address, its processes with the addresses where they listen, and its user's home."""

    address: str
    listening: list[tuple[str, str]]
    home: Path


@pytest.fixture(scope="module")
def cluster(tmp_path_factory) -> Iterator[Cluster]:
    """A cluster as a run without an address starts it, with one worker."""
    home = tmp_path_factory.mktemp("home")
    process = subprocess.Popen(
        [sys.executable, "-c", CLUSTER],
        env=OURS | {"HOME": str(home)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        yield Cluster(*json.loads(process.stdout.readline()), home)


def test_the_cluster_listens_only_to_this_machine(cluster):
    assert {"gcs_server", "raylet"} <= {name for name, _ in cluster.listening}
    assert [one for one in cluster.listening if not is_loopback(one[1])] == []


def is_loopback(text: str) -> bool:
    address = ipaddress.ip_address(text)
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback


def test_the_token_is_readable_only_by_its_user(cluster):
    token = cluster.home / ".ray" / "auth_token"
    assert token.stat().st_mode & 0o777 == 0o600
    assert len(token.read_text()) == 64


def test_a_view_on_this_machine_joins_the_cluster_with_the_token(cluster, monkeypatch):
    monkeypatch.setenv("HOME", str(cluster.home))
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    with pytest.raises(InputError, match="no run is active in this cluster"):
        ClusterSource(cluster.address, None)


@pytest.mark.slow
@pytest.mark.parametrize("token", [{}, {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "ab" * 32}])
def test_no_process_joins_the_cluster_without_the_token(cluster, token, tmp_path):
    said = subprocess.run(
        [sys.executable, "-c", STRANGER, cluster.address],
        env=OURS | {"HOME": str(tmp_path)} | token,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert said.stdout == "refused\n"
    assert "InvalidAuthToken" in said.stderr
