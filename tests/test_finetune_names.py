"""Names of jobs: no run takes another's job or file, and whatever a run is called, its jobs can be made."""

import asyncio
from dataclasses import replace

import pytest

from faulty_jobs import FaultyJobs
from finetune_runs import guesses, run
from job_server import serving
from live_server import TOKEN
from sparring.config.finetune import RlParameters
from sparring.core import InputError
from sparring.finetune import FineTuneJobError, PureTextEiTrainer, PureTextSharedModelGroup
from sparring.finetune.model_groups import JobRecords
from sparring.finetune.openai_jobs import OpenAIJobs
from sparring.finetune.providers import DryRunJobs, JobRequest

TWO = RlParameters(num_iterations=2)
EXAMPLES = [{"messages": [{"role": "user", "content": "2?"}, {"role": "assistant", "content": "yes"}]}] * 10


def provider(url, key="key"):
    return OpenAIJobs(key, url, least_examples=1, wait=0.0, timeout=60.0, retries=3)


async def test_runs_of_the_same_name_share_neither_jobs_nor_files(tmp_path):
    server = FaultyJobs()
    async with server.running() as url:
        for place, seed in (("a", 1), ("b", 1), ("c", 2)):
            given = {"rl": TWO, "seed": seed, "client": guesses()}
            await asyncio.to_thread(run, PureTextEiTrainer, tmp_path / place / "run", provider(url), **given)
    assert len(server.jobs) == len(server.files) == 6
    assert len({job["training_file"] for job in server.jobs}) == 6


@pytest.mark.parametrize("other", [{"model": "small"}, {"method": "dpo"}, {"sha256": "c0ffee"}])
async def test_a_job_that_only_has_the_same_name_is_refused_in_one_line(other):
    server = FaultyJobs()
    async with server.running() as url:
        jobs = provider(url)
        request = JobRequest("one", "base", "supervised", sha256="beef")
        job = await jobs.create(request, "file-0")
        assert await jobs.create(request, "file-0") == job
        with pytest.raises(
            FineTuneJobError, match=f"^the API has another job .* in sparring_job_{min(other)}$"
        ):
            await jobs.create(replace(request, **other), "file-0")
    assert len(server.jobs) == 1


@pytest.mark.parametrize("name", ["two provers_iter_0_both", "Übung_iter_0_prüfer", "x" * 200])
async def test_our_server_takes_jobs_of_a_run_with_any_name(tmp_path, name):
    with serving(tmp_path / "jobs") as live:
        jobs, request = provider(f"{live.url}/v1", TOKEN), JobRequest(name, "tiny", "supervised")
        records = JobRecords(tmp_path / "records")
        job = await records.submit(jobs, request, EXAMPLES)
        kept = records.read(name)
        again = replace(request, name=kept.unique_name, sha256=kept.sha256)
        assert (await jobs.create(again, kept.file)).id == job.id
        assert len(live.client().fine_tuning.jobs.list().data) == len(live.client().files.list().data) == 1


def test_a_run_with_a_long_name_has_jobs(tmp_path):
    run(PureTextEiTrainer, tmp_path / ("ü" * 120), DryRunJobs(), rl=TWO)
    assert len(list(tmp_path.glob("*/jobs/*.json"))) == 2


@pytest.mark.parametrize("name", ["../prover", "a/b", "both provers", "", ".", "x" * 65, "prüfer"])
def test_a_group_is_refused_whose_name_cannot_name_files_and_jobs(tmp_path, name):
    with pytest.raises(InputError, match="cannot name the jobs of its agents"):
        PureTextSharedModelGroup(name, ("prover",), "base", DryRunJobs(), JobRecords(tmp_path))
