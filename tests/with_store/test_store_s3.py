"""A run's store behind the S3 API, with a host that is killed and a server that fails."""

import io
import os
import shutil
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.request import Request, urlopen

import fsspec
import pytest
from faulty_proxy import FaultyProxy
from moto.server import ThreadedMotoServer
from rich.console import Console

import program_runs
from game_runs import CONSTANT, FEWER_GAMES, SMALL, configure, run
from kill_resume import differences, fingerprint
from program_files import write_program
from sparring.cli.main import main
from sparring.core import InputError, SparringError
from sparring.core.files import Epoch
from sparring.run.run_layout import files_for_store
from sparring.run.start import fetch_run
from sparring.run.store import RunStore
from sparring.run.uploads import Uploads

SECRET = "the-secret-of-these-tests"
STORE = "s3://bucket/runs"
RUN = f"{STORE}/run"
QUIET = Console(quiet=True)
SPARRING = [sys.executable, "-c", "from sparring.cli.main import run; run()"]
FEW = {"run.save_every": "1", "run.keep_checkpoints": "2"}
IN_GAMES = {name.replace("__", "."): value for name, value in (CONSTANT | FEWER_GAMES).items()}


@pytest.fixture
def proxy(tmp_path, monkeypatch):
    """A proxy before an empty bucket; the environment names both."""
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    proxy = FaultyProxy(server.get_host_and_port()[1])
    for name, value in {
        "AWS_ACCESS_KEY_ID": "AKIAOFTHESETESTS",
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": proxy.address,
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    urlopen(Request(f"{proxy.address}/moto-api/reset", method="POST")).close()
    bucket().mkdir("bucket")
    yield proxy
    proxy.close()
    server.stop()


def bucket():
    return fsspec.filesystem("s3", use_listings_cache=False, skip_instance_cache=True)


def started(host: Path, *words: str) -> subprocess.Popen:
    host.mkdir()
    to = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen([*SPARRING, "train", *words], cwd=host, **to)


def ended(process: subprocess.Popen) -> str:
    text, _ = process.communicate(timeout=600)
    assert process.returncode == 0, text
    return text


def kill_at(process: subprocess.Popen, proxy: FaultyProxy, write: int, *, is_done: bool) -> None:
    """Kill a process at its n-th write to the store, before it reaches the server or when it is done."""

    def at(number: int) -> None:
        if number == write:
            process.kill()
            process.wait()

    setattr(proxy, "after" if is_done else "before", at)
    process.communicate(timeout=600)
    assert process.returncode == -signal.SIGKILL
    proxy.before = proxy.after = lambda number: None


def options(settings: dict[str, str], model: Path, updates: str = "4") -> list[str]:
    given = settings | FEW | {"model.name": str(model), "learning.steps": updates}
    return ["--name=run", *(f"--{name}={value}" for name, value in given.items())]


def of_games(model: Path, place: Path) -> list[str]:
    return ["quickstart", *options(SMALL | IN_GAMES, model)]


def of_a_program(model: Path, place: Path) -> list[str]:
    file = place / "program.toml"
    file.write_text(f'[program]\ntype = "python"\npath = "{write_program(place)}:HideAndSeek"\n')
    return [str(file), *options(program_runs.SMALL, model, "30")]  # its updates are quicker than an upload


@pytest.mark.parametrize(("kind", "kills"), [(of_games, 6), (of_a_program, 2)])
def test_a_host_killed_at_any_write_and_gone_is_continued_from_the_store_alone(
    proxy, model, tmp_path, kind, kills
):
    words = kind(model, tmp_path)
    ended(started(tmp_path / "whole", *words))
    whole = fingerprint(tmp_path / "whole/runs/run")
    before = proxy.writes
    ended(started(tmp_path / "stored", *words, f"--run.store={STORE}"))
    assert differences(whole, fingerprint(tmp_path / "stored/runs/run")) == []
    writes, continued = proxy.writes - before, 0
    for number in range(kills):
        bucket().rm("bucket/runs", recursive=True)
        proxy.writes, host, other = 0, tmp_path / f"first-{number}", tmp_path / f"second-{number}"
        process = started(host, *words, f"--run.store={STORE}")
        # An upload leaves out what came while another one ran, so a run may write less than the first.
        kill_at(process, proxy, 2 + number * writes * 6 // 10 // (kills - 1), is_done=number % 2 == 0)
        shutil.rmtree(host)
        if RunStore(RUN).states():
            continued += "continuing from update" in ended(started(other, "--resume", RUN))
        else:
            ended(started(other, *words, f"--run.store={STORE}"))
        assert differences(whole, fingerprint(other / "runs/run")) == [], number
    assert continued


def fetched(host: Path) -> dict[str, bytes]:
    host.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(host)
        path = host / fetch_run(RUN, QUIET)
    return {name: (path / name).read_bytes() for name in files_for_store(path) if name != "sessions.json"}


def test_a_server_that_fails_for_a_time_ends_no_run_and_no_secret_is_written(proxy, model, tmp_path, capfd):
    def fails(write: int) -> None:
        proxy.fault = "error" if 20 <= write < 40 else ""

    proxy.before = fails
    path = tmp_path / "runs/run"
    run(configure(model, **FEWER_GAMES | CONSTANT, run__store=STORE, run__save_every="1"), path)
    assert fetched(tmp_path / "elsewhere").keys() >= {"report.html", "checkpoints/step-000004/manifest.json"}
    proxy.before = lambda write: setattr(proxy, "fault", "error")
    assert main(["train", "--resume", RUN]) == 2
    shown = "".join(capfd.readouterr())
    assert "runs/run exists already" in shown
    written = (file.read_bytes() for file in tmp_path.rglob("*") if file.is_file())
    assert SECRET not in shown
    assert not any(SECRET.encode() in content for content in written)


def test_a_run_that_is_resumed_elsewhere_stops_after_its_update(proxy, model, tmp_path):
    def resumed_elsewhere(write: int) -> None:
        if write == 25:
            RunStore(RUN).claim(2, "another host")

    proxy.writes, proxy.after = 0, resumed_elsewhere
    path = tmp_path / "runs/run"
    with pytest.raises(SparringError) as stopped:
        run(configure(model, **FEWER_GAMES | CONSTANT, run__store=STORE, learning__steps="100"), path)
    assert str(stopped.value) == f"{RUN} was resumed on another host, so this one stops"
    assert RunStore(RUN).holder() == (2, "another host")
    assert main(["train", "--resume", "run"]) == 2


def new_run(path: Path) -> Path:
    path.mkdir(parents=True)
    (path / "config.toml").write_text("[run]\n")
    return path


def test_a_server_that_hangs_is_not_waited_for_longer_than_the_limit(proxy, tmp_path):
    path, shown = new_run(tmp_path / "run"), io.StringIO()
    uploads = Uploads.begin(path, Epoch.begin(path), RUN, patience=0.5)
    proxy.fault = "hang"
    uploads.note(1)
    uploads.finish(Console(file=shown, width=300))
    uploads.close()
    assert (
        f"{RUN} has nothing of this run, and is too slow; upload it with: sparring train" in shown.getvalue()
    )


def test_of_hosts_that_claim_at_once_one_gets_the_claim(proxy):
    def claim(holder: str) -> bool:
        try:
            RunStore(RUN).claim(1, holder)
        except InputError:
            return False
        return True

    with ThreadPoolExecutor(8) as hosts:
        won = [*hosts.map(claim, map(str, range(8)))]
    assert sum(won) == 1
    assert RunStore(RUN).holder() == (1, str(won.index(True)))


def test_a_file_of_several_uploads_comes_back(proxy, tmp_path):
    """Beyond 100 MB, a file is uploaded in pieces that the server puts together."""
    path = new_run(tmp_path / "run")
    content = os.urandom(1 << 20) * 120
    place = path / "checkpoints/step-000001/learner.safetensors"
    place.parent.mkdir(parents=True)
    place.write_bytes(content)
    uploads = Uploads.begin(path, Epoch.begin(path), RUN)
    uploads.note(1)
    uploads.finish(QUIET)
    uploads.close()
    assert fetched(tmp_path / "elsewhere")["checkpoints/step-000001/learner.safetensors"] == content
