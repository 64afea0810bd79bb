"""A run whose host is gone is resumed on another host, which shares nothing with it, from its store alone."""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from hosts.faults import RUN
from hosts.network import Network, why_not
from hosts.nodes import adapters_of, same

FIRST, SECOND, SERVER = 1, 2, 3
PORT = "5000"
STORE = "s3://bucket/runs"
ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "AKIAOFTHESETESTS",
    "AWS_SECRET_ACCESS_KEY": "the-secret-of-these-tests",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_ENDPOINT_URL": f"http://10.77.0.{SERVER}:{PORT}",
}
MAKE_BUCKET = "import fsspec; fsspec.filesystem('s3').mkdir('bucket')"
WAIT = """
import sys, time
from sparring.run.store import RunStore
while not (states := RunStore(sys.argv[1]).states()) or int(states[-1].split("-")[1]) < 4:
    time.sleep(0.2)
"""

pytestmark = pytest.mark.skipif(why_not() is not None, reason=str(why_not()))


@pytest.fixture(scope="module")
def network(playing: Path) -> Iterator[Network]:
    """Three hosts: two with the model, and one with a server of the S3 API."""
    with Network(3) as network:
        for number in (FIRST, SECOND):
            shutil.copytree(playing, network[number].disk / "root" / "model")
        nobody = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        network[SERVER].start("moto_server", "--host", f"10.77.0.{SERVER}", "--port", PORT, **nobody)
        loop = f'until python -c "{MAKE_BUCKET}"; do sleep 0.5; done'
        network[SERVER].run("bash", "-c", loop, env=ENVIRONMENT)
        yield network


@pytest.mark.parametrize("runtime", ["local", "ray"])
def test_a_run_is_resumed_on_another_host_when_its_own_is_gone(network, runtime):
    train = ["sparring", "train", *RUN, "--run.save_every=1", f"--runtime={runtime}"]
    network[SECOND].run(*train, "--name=alone-" + runtime)
    out = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    network[FIRST].start(*train, f"--name={runtime}", f"--run.store={STORE}", env=ENVIRONMENT, **out)
    network[SECOND].run("python", "-c", WAIT, f"{STORE}/{runtime}", env=ENVIRONMENT)
    network.kill(FIRST)
    said = network[SECOND].run("sparring", "train", "--resume", f"{STORE}/{runtime}", env=ENVIRONMENT)
    assert "continuing from update" in said
    runs = network[SECOND].disk / "root" / "runs"
    assert same(adapters_of(runs / runtime), adapters_of(runs / f"alone-{runtime}"))
    network.start(FIRST)
