"""OpenAI's replies about files and jobs, as it documents them or as users have shown them, are understood.

Each file of ``openai_replies`` has a reply's status and body, and the page that it was read from; ids are
made up.
"""

import json
from pathlib import Path

import pytest
from openai.types import FileObject
from openai.types.fine_tuning import FineTuningJob, FineTuningJobEvent

from replying_server import http, serving
from sparring.core import InputError, SparringError
from sparring.finetune.openai_jobs import OpenAIJobs
from sparring.finetune.providers import FineTuneJobError, Job, JobRequest

FOLDER = Path(__file__).parent / "openai_replies"
NAME = "run_iter_0_verifier"
SHA256 = "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"
"""The digest of ``{}``."""
REQUEST = JobRequest(NAME, "gpt-4o-mini-2024-07-18", "supervised", sha256=SHA256)
MODEL = "ft:gpt-4o-mini-2024-07-18:my-org:run_iter_0_verifier:7qTVM5AR"
TOO_FEW = "Training file has 5 example(s), but must have at least 10 examples"


def recorded(name):
    return json.loads((FOLDER / f"{name}.json").read_text())


async def asked(ask, *names, **options):
    """What ``ask`` returns of a provider whose server gives these replies in turn."""
    replies = [recorded(name) for name in names]
    async with serving(*(http(one["body"], one["status"]) for one in replies)) as server:
        url = f"http://127.0.0.1:{server.port}/v1"
        found = await ask(OpenAIJobs("key", url, wait=0, timeout=60, retries=1, quota_wait=0, **options))
    return found, server


@pytest.mark.parametrize(
    ("name", "job"),
    [
        ("job_created_in_2023", Job("ftjob-XXXXXXXXXXXXXXXXXXXX", "pending")),
        ("job_queued", Job("ftjob-abc123", "pending")),
        ("job_running", Job("ftjob-abc123", "running")),
        ("job_succeeded", Job("ftjob-abc123", "succeeded", MODEL)),
        ("job_succeeded_dpo", Job("ftjob-abc123", "succeeded", MODEL)),
        ("job_failed", Job("ftjob-abc123", "failed", None, TOO_FEW)),
        ("job_cancelled", Job("ftjob-abc123", "cancelled")),
    ],
)
async def test_a_job_of_openai_is_read(name, job):
    found, _ = await asked(lambda jobs: jobs.status(job.id), name)
    assert found == job


async def test_how_far_a_job_of_openai_is_is_its_newest_event():
    found, _ = await asked(lambda jobs: jobs.progress("ftjob-abc123"), "events")
    assert found == TOO_FEW


async def test_a_file_and_a_job_that_openai_has_already_are_found_in_its_lists():
    found, server = await asked(lambda jobs: jobs.upload(NAME, b"{}"), "files")
    assert (found, len(server.lines)) == ("file-abc123", 1)
    found, server = await asked(lambda jobs: jobs.create(REQUEST, "file-abc123"), "jobs")
    assert (found, len(server.lines)) == (Job("ftjob-abc123", "pending"), 1)


async def test_a_file_is_uploaded_and_a_job_is_made():
    found, _ = await asked(lambda jobs: jobs.upload(NAME, b"{}"), "no_files", "file")
    assert found == "file-abc123"
    found, server = await asked(lambda jobs: jobs.create(REQUEST, "file-abc123"), "no_files", "job_queued")
    assert found == Job("ftjob-abc123", "pending")
    assert server.bodies[1]["metadata"] == recorded("job_queued")["body"]["metadata"]


async def test_openais_limit_of_a_day_is_said_and_waited_for():
    said = []
    replies = ("no_files", "error_daily_limit", "no_files", "job_queued")
    found, _ = await asked(lambda jobs: jobs.create(REQUEST, "file-abc123"), *replies, say=said.append)
    assert found == Job("ftjob-abc123", "pending")
    (line,) = said
    assert "maximum of 8 fine-tuning requests per day" in line


@pytest.mark.parametrize(
    ("name", "kind", "reason"),
    [
        ("error_no_credit", SparringError, "You exceeded your current quota"),
        ("error_wrong_key", InputError, "is not accepted by 127.0.0.1"),
        ("error_daily_limit", FineTuneJobError, "maximum of 8 fine-tuning requests per day"),
    ],
)
async def test_an_error_of_openai_is_one_line_with_its_reason(name, kind, reason):
    with pytest.raises(kind) as raised:
        await asked(lambda jobs: jobs.create(REQUEST, "file-abc123"), "no_files", name, name, quota_waits=0)
    assert reason in str(raised.value)
    assert "\n" not in str(raised.value)


def test_the_recorded_objects_are_those_of_the_openai_package():
    kinds = {
        "fine_tuning.job": FineTuningJob,
        "fine_tuning.job.event": FineTuningJobEvent,
        "file": FileObject,
    }
    checked = set()
    for path in sorted(FOLDER.glob("*.json")):
        body = recorded(path.stem)["body"]
        for one in body.get("data", [body]):
            if "object" not in one or path.stem == "job_created_in_2023":
                continue
            filled = one | {"error": one["error"] or None} if "error" in one else one
            kinds[one["object"]].model_validate(filled)
            assert one.keys() <= kinds[one["object"]].model_fields.keys() | ALSO_SENT, path.stem
            checked.add(one["object"])
    assert checked == kinds.keys()


ALSO_SENT = {"user_provided_suffix", "usage_metrics", "shared_with_openai"}
"""Fields that replies have and the package does not."""
