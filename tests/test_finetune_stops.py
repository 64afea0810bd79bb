"""Runs that had to stop: the line says why and how to go on, and a resume goes on from there."""

import asyncio
import json
import shlex
import sys
from pathlib import Path

import pytest

from proof_server import scripted
from selfplay.cli.main import main

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))
from faulty_jobs import FaultyJobs

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


@pytest.fixture(autouse=True)
def runs(tmp_path, monkeypatch, loopback):
    monkeypatch.chdir(tmp_path)
    return tmp_path / "runs"


async def told(command, capsys):
    """Run a command; return its status, and its last line on stderr without the run's directory."""
    status = await asyncio.to_thread(main, shlex.split(command))
    lines = capsys.readouterr().err.replace(f"{Path.cwd()}/", "").splitlines()
    return status, lines[-1] if lines else ""


def stage_of(runs):
    return json.loads((runs / "run" / "state.json").read_text())["train_loop_stage"]


@pytest.mark.parametrize(
    ("end", "how"),
    [
        ("failed", "failed: line 3 is wrong"),
        ("cancelled", "was cancelled"),
        ("vanished", "is unknown to the provider"),
    ],
)
async def test_a_job_without_a_model_is_made_again_by_the_command_that_the_error_names(
    runs, capsys, end, how
):
    server = FaultyJobs(ends=("queued", end), answer=scripted)
    async with server.running() as url:
        status, line = await told(f"{BEGIN} --finetune.provider.base_url {url}", capsys)
        command = "selfplay finetune --resume runs/run --finetune.provider.recreate_failed_jobs 1"
        assert status == 1
        assert line == (
            f"error: the fine-tuning job ftjob-0 of verifier {how}. What was sampled and trained is kept; "
            f"make again what failed with: {command}"
        )
        status, line = await told(line.partition(": selfplay ")[2], capsys)
        assert status == 1
        assert "ftjob-1 of verifier" in line
        assert line.endswith("--finetune.provider.recreate_failed_jobs 2")
        server.ends = ["succeeded"]
        assert await told(line.partition(": selfplay ")[2], capsys) == (0, "")
    assert [job["suffix"] for job in server.jobs] == [
        f"run_iter_0_verifier{again}" for again in ("", "_try_2", "_try_3")
    ]
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
