"""Runs that had to stop: the line says why and how to go on, and a resume goes on from there."""

import asyncio
import json
import shlex
from contextlib import ExitStack
from pathlib import Path

import pytest

from error_page import Example, parts
from faulty_jobs import FaultyJobs
from file_limits import files_no_longer_than
from proof_server import scripted
from sparring.cli.main import main

SMALL = {
    "finetune.rl.rollouts_per_iteration": "4",
    "finetune.rl.num_iterations": "2",
    "finetune.text_rl.test_scheme": "none",
    "finetune.text_rl.verifier_guess_replacement_proportion": "1",
    "finetune.provider.least_examples": "1",
    "finetune.provider.poll_seconds": "0.001",
    "finetune.agents.prover.freeze_agent": "true",
    "program.claims.count": "20",
}
BEGIN = "finetune nip --name run " + " ".join(f"--{name} {value}" for name, value in SMALL.items())


STOPS = {one.what: one.line for one in parts() if isinstance(one, Example) and not one.command}
"""What a run says when it has to stop, by what has happened."""


@pytest.fixture(autouse=True)
def runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path / "runs"


async def told(command, capsys):
    """Run a command; return its status, and its last line on stderr without the run's directory."""
    status = await asyncio.to_thread(main, shlex.split(command))
    lines = capsys.readouterr().err.replace(f"{Path.cwd()}/", "").splitlines()
    return status, lines[-1] if lines else ""


def command_in(line):
    """The command that a line ends with, without the program's name."""
    return line.partition(": sparring ")[2]


def stage_of(runs):
    return json.loads((runs / "run" / "state.json").read_text())["train_loop_stage"]


@pytest.fixture
def without_waits(monkeypatch):
    """Seconds between tries take no time."""
    sleep = asyncio.sleep
    monkeypatch.setattr(asyncio, "sleep", lambda seconds: sleep(0 if seconds >= 0.1 else seconds))


class Leaving(FaultyJobs):
    """Closes when it is asked about a job for the second time."""

    def _job(self, path):
        (job,) = self.jobs
        if job["questions"] == 1:
            self.listener.close()
        return super()._job(path)


class Filling(FaultyJobs):
    """The disk is full once the first job is made."""

    def __init__(self, full, **options):
        super().__init__(**options)
        self.full = full

    def _do(self, method, path, *rest):
        reply = super()._do(method, path, *rest)
        if (method, path) == ("POST", "/fine_tuning/jobs") and len(self.jobs) == 1:
            self.full.enter_context(files_no_longer_than(10))
        return reply


ENDS = {
    "a job fails": "failed",
    "a job is cancelled": "cancelled",
    "the API no longer knows a job": "vanished",
}


@pytest.mark.parametrize("what", ENDS)
async def test_a_job_without_a_model_is_made_again_by_the_command_that_the_line_names(runs, capsys, what):
    server = FaultyJobs(ends=("queued", ENDS[what]), answer=scripted)
    async with server.running() as url:
        assert await told(f"{BEGIN} --finetune.provider.base_url {url}", capsys) == (1, STOPS[what])
        status, line = await told(command_in(STOPS[what]), capsys)
        assert status == 1
        assert "ftjob-1 of verifier" in line
        assert line.endswith("--finetune.provider.recreate_failed_jobs 2")
        server.ends = ["succeeded"]
        assert await told(command_in(line), capsys) == (0, "")
    assert len({job["metadata"]["sparring_job"] for job in server.jobs}) == len(server.jobs) == 3
    assert stage_of(runs) == "done"


async def test_a_job_that_stays_queued_is_given_up_and_waited_for_again(runs, capsys):
    server = FaultyJobs(ends=["queued"], answer=scripted)
    async with server.running() as url:
        begin = f"{BEGIN} --finetune.provider.job_timeout 0.2 --finetune.provider.base_url {url}"
        line = STOPS["a job stays queued"]
        assert await told(begin, capsys) == (1, line)
        assert await told(command_in(line), capsys) == (1, line)
        server.jobs[0]["ends"] = ["succeeded"]
        patient = f"{command_in(line)} --finetune.provider.job_timeout 600"
        assert await told(patient, capsys) == (0, "")
    assert len(server.jobs) == 1
    assert stage_of(runs) == "done"


async def test_a_server_that_is_gone_while_a_run_waits_ends_it_and_the_job_is_found_again(
    runs, capsys, without_waits
):
    server = Leaving(ends=["queued"], answer=scripted)
    line = STOPS["the server is gone while a run waits"]
    async with server.running() as url:
        assert await told(f"{BEGIN} --finetune.provider.base_url {url}", capsys) == (1, line)
    server.jobs[0]["ends"] = ["succeeded"]
    async with server.running(port=int(url.split(":")[2].partition("/")[0])):
        assert await told(command_in(line), capsys) == (0, "")
    assert len(server.jobs) == 1
    assert stage_of(runs) == "done"


async def test_a_disk_that_is_full_between_two_stages_loses_nothing(runs, capsys):
    """The limit on a file's size stands for the end of the disk; only the system's words differ."""
    line = STOPS["the disk is full"]
    with ExitStack() as full:
        server = Filling(full, answer=scripted)
        async with server.running() as url:
            status, said = await told(f"{BEGIN} --finetune.provider.base_url {url}", capsys)
            full.close()
            said = said.replace("[Errno 27] File too large", "[Errno 28] No space left on device")
            assert (status, said) == (1, line)
            assert stage_of(runs) == "create_fine_tune_jobs"
            assert await told(command_in(line), capsys) == (0, "")
    assert len(server.jobs) == 1
    assert stage_of(runs) == "done"


async def test_a_dry_run_that_was_killed_while_it_waited_for_jobs_goes_on(runs, capsys):
    async with FaultyJobs(answer=scripted).running() as url:
        begin = f"{BEGIN} --finetune.provider.type dry_run --finetune.provider.base_url {url}"
        assert await told(begin, capsys) == (0, "")
        state = json.loads((runs / "run" / "state.json").read_text())
        assert state["shared_model_groups"]["verifier"]["fine_tuned_model_name"] == "base"
        state |= {"iteration": 0, "train_loop_stage": "await_fine_tune_jobs"}
        (runs / "run" / "state.json").write_text(json.dumps(state))
        assert await told("finetune --resume runs/run", capsys) == (0, "")
    assert stage_of(runs) == "done"
