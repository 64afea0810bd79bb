"""Fine-tuning jobs at an API that misbehaves: nothing hangs, no job is made twice, every end is clear."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from faulty_jobs import FAULTS, FaultyJobs
from finetune_runs import plain
from replying_server import error, http, serving
from sparring.core import InputError, SparringError
from sparring.finetune.model_groups import JobRecords
from sparring.finetune.openai_jobs import OpenAIJobs
from sparring.finetune.providers import ENDED, FineTuneJobError, JobRequest

REQUEST = JobRequest("run_iter_0_verifier", "base", "dpo", {"beta": 0.3}, seed=5)
EXAMPLES = [{"messages": [{"role": "assistant", "content": "yes"}]}]


def provider(url, **options):
    return OpenAIJobs("key", url, **{"wait": 0.0, "timeout": 60.0, "retries": 3, **options})


async def ended(jobs, job):
    while job.status not in ENDED:
        job = await jobs.status(job.id)
    return job


async def test_a_job_is_asked_for_in_openais_words(tmp_path):
    server = FaultyJobs()
    async with server.running() as url:
        jobs = provider(url)
        job = await ended(jobs, await JobRecords(tmp_path).submit(jobs, REQUEST, EXAMPLES))
    assert job.model == "ft:ftjob-0"
    (made,) = server.jobs
    assert made["model"] == "base"
    assert made["training_file"] == "file-0"
    assert made["method"] == {"type": "dpo", "dpo": {"hyperparameters": {"beta": 0.3}}}
    assert (made["seed"], plain(made["suffix"])) == (5, "run_iter_0_verifier")


NAMES = {
    "id": "job",
    "status": "state",
    "fine_tuned_model": "output_model",
    "training_file": "data",
    "metadata": "labels",
}


async def test_names_of_an_api_that_differs_are_translated(tmp_path):
    server = FaultyJobs(ends=("working", "complete"), names=NAMES)
    async with server.running() as url:
        jobs = provider(url, fields=NAMES, states={"working": "running", "complete": "succeeded"})
        job = await ended(jobs, await JobRecords(tmp_path).submit(jobs, REQUEST, EXAMPLES))
    assert server.jobs[0]["data"] == "file-0"
    assert job.model == "ft:ftjob-0"


@pytest.mark.parametrize("names", [{}, NAMES])
async def test_a_job_whose_reply_was_lost_is_found_among_many_by_its_name(tmp_path, names):
    server = FaultyJobs(["none", "none", "none", "cut after"], names=names, page=2)
    async with server.running() as url:
        jobs = provider(url, fields=names)
        job = await JobRecords(tmp_path / "one").submit(jobs, REQUEST, EXAMPLES)
        assert len(server.jobs) == 1
        for number in range(4):
            await JobRecords(tmp_path / "others").submit(jobs, replace(REQUEST, name=f"{number}"), EXAMPLES)
        path = tmp_path / "one" / f"{REQUEST.name}.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"file": None, "job": None}))
        again = await JobRecords(tmp_path / "one").submit(jobs, REQUEST, EXAMPLES)
    assert again.id == job.id
    assert len(server.jobs) == len(server.files) == 5


@given(st.lists(st.sampled_from(FAULTS), max_size=12))
@settings(max_examples=5)
def test_whatever_goes_wrong_a_job_is_made_once_or_the_end_is_one_clear_error(tmp_path_factory, faults):
    directory = tmp_path_factory.mktemp("records")
    server, said = FaultyJobs(faults), []

    async def submit():
        async with server.running() as url:
            jobs = provider(url)
            for _ in range(5):
                try:
                    return await ended(jobs, await JobRecords(directory).submit(jobs, REQUEST, EXAMPLES))
                except SparringError as error:
                    said.append(str(error))
            raise AssertionError("faults end before the tries do")

    assert asyncio.run(submit()).model == "ft:ftjob-0"
    assert len(server.jobs) == 1
    assert len(server.files) == 1
    assert all("\n" not in line for line in said)


@pytest.mark.parametrize(
    ("end", "status", "reason"),
    [("failed", "failed", "line 3 is wrong"), ("cancelled", "cancelled", ""), ("vanished", "not_found", "")],
)
async def test_a_job_that_ends_without_a_model_says_how(tmp_path, end, status, reason):
    async with FaultyJobs(ends=("queued", end)).running() as url:
        jobs = provider(url)
        job = await ended(jobs, await JobRecords(tmp_path).submit(jobs, REQUEST, EXAMPLES))
    assert (job.status, job.model, job.error) == (status, None, reason)


async def test_a_server_on_this_machine_is_not_reached_through_a_proxy(tmp_path, monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    async with FaultyJobs().running() as url:
        job = await JobRecords(tmp_path).submit(provider(url, retries=0), REQUEST, EXAMPLES)
    assert job.id == "ftjob-0"


async def test_a_server_that_is_gone_is_one_error_in_limited_time(tmp_path):
    async with FaultyJobs().running() as url:
        pass
    with pytest.raises(SparringError, match=r"the file cannot be uploaded: .*tries: 4"):
        await JobRecords(tmp_path).submit(provider(url), REQUEST, EXAMPLES)


async def test_another_job_of_the_same_name_is_refused(tmp_path):
    async with FaultyJobs().running() as url:
        await JobRecords(tmp_path).submit(provider(url), REQUEST, EXAMPLES)
        with pytest.raises(SparringError, match="another job"):
            await JobRecords(tmp_path).submit(provider(url), REQUEST, [*EXAMPLES, *EXAMPLES])


async def test_a_refused_job_is_an_error_of_its_own(tmp_path):
    server = FaultyJobs()
    server.refusals["POST /fine_tuning/jobs"] = [(400, error("the model is unknown"))]
    async with server.running() as url:
        with pytest.raises(FineTuneJobError, match="the model is unknown"):
            await JobRecords(tmp_path).submit(provider(url), REQUEST, EXAMPLES)


def used_up(code="daily_rate_limit_exceeded"):
    return 429, error("the limit of 4 jobs a day is reached", code=code)


@pytest.mark.parametrize("code", ["daily_rate_limit_exceeded", "exceeded_quota_for_jobs"])
async def test_a_job_that_does_not_fit_into_the_day_is_asked_for_again_and_the_user_is_told(tmp_path, code):
    server, said = FaultyJobs(), []
    server.refusals["POST /fine_tuning/jobs"] = [used_up(code), used_up(code)]
    async with server.running() as url:
        jobs = provider(url, quota_wait=0.0, say=said.append)
        job = await JobRecords(tmp_path).submit(jobs, REQUEST, EXAMPLES)
    assert job.id == "ftjob-0"
    assert len(server.jobs) == 1
    assert len(said) == 2
    assert "the limit of 4 jobs a day is reached" in said[0]
    assert said[0].endswith("; the job is asked for again in 0 minutes")


async def test_a_job_that_never_fits_is_one_error(tmp_path):
    server = FaultyJobs()
    server.refusals["POST /fine_tuning/jobs"] = [used_up()] * 3
    async with server.running() as url:
        with pytest.raises(FineTuneJobError, match="the limit of 4 jobs a day is reached"):
            await JobRecords(tmp_path).submit(provider(url, quota_wait=0.0, quota_waits=2), REQUEST, EXAMPLES)
    assert not server.jobs


async def test_a_limit_of_the_day_anywhere_else_is_one_error(tmp_path):
    server = FaultyJobs()
    async with server.running() as url:
        jobs = provider(url)
        server.refusals["POST /files"] = [used_up()]
        with pytest.raises(SparringError, match=r"the file cannot be uploaded: .* 4 jobs a day"):
            await JobRecords(tmp_path).submit(jobs, REQUEST, EXAMPLES)
        job = await JobRecords(tmp_path).submit(jobs, REQUEST, EXAMPLES)
        server.refusals[f"GET /fine_tuning/jobs/{job.id}"] = [used_up()]
        with pytest.raises(SparringError, match=r"the state of a job cannot be read: .* 4 jobs a day"):
            await jobs.status(job.id)


def test_a_state_that_openai_does_not_have_is_refused():
    with pytest.raises(InputError, match=r"finetune\.provider\.states"):
        OpenAIJobs("key", "http://127.0.0.1:1/v1", states={"working": "busy"})


def test_a_damaged_record_names_its_file(tmp_path):
    (tmp_path / "a.json").write_text(json.dumps({"name": 3}))
    with pytest.raises(InputError, match=r"a\.json: is damaged"):
        JobRecords(Path(tmp_path)).read("a")


@pytest.mark.parametrize("status", [400, 401, 403, 429, 500])
async def test_a_server_that_repeats_the_key_does_not_get_it_printed(status):
    async with serving(http(error("no job for Bearer sk-secret-123"), status)) as server:
        jobs = OpenAIJobs("sk-secret-123", f"http://127.0.0.1:{server.port}/v1", wait=0.0, retries=1)
        with pytest.raises(SparringError) as raised:
            await jobs.create(REQUEST, "file-0")
    assert "secret" not in str(raised.value)


async def test_an_upload_that_is_answered_with_a_page_is_tried_again(tmp_path):
    listed = http({"object": "list", "data": []})
    page, file = http("<html>"), http({"id": "file-7", "object": "file"})
    async with serving(listed, page, listed, file) as server:
        jobs = provider(f"http://127.0.0.1:{server.port}/v1")
        assert await jobs.upload("job", b"{}\n") == "file-7"
