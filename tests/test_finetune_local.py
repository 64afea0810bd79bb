"""Fine-tuning on one machine without a server: the same jobs, handed to the queue directly."""

import asyncio
import hashlib
import json
import shutil
from pathlib import Path

import pytest

from finetune_commands import words_of
from job_server import base_policy, forks, preference, serving, talk, told
from job_workers import NEWS
from live_server import TOKEN
from sparring.cli.main import main
from sparring.core import SparringError
from sparring.core.adapters import BASE
from sparring.engine.engine import EmbeddedEngine
from sparring.engine.published_adapters import PublishedAdapters
from sparring.finetune import FineTuneJobError
from sparring.finetune.jobs.records import ServedBase
from sparring.finetune.jobs.service import JobService
from sparring.finetune.local_jobs import LocalJobs
from sparring.finetune.model_groups import JobRecords
from sparring.finetune.openai_jobs import OpenAIJobs
from sparring.finetune.providers import ENDED, Job, JobProvider, JobRequest
from tiny_models import roomy_model, tiny_model

TALKS = [talk(f"what is {n}", f"it is {n}") for n in range(4)]
PAIRS = [preference(f"what is {n}", f"it is {n}", "no") for n in range(4)]
SFT = JobRequest("one", "tiny", "supervised", {"n_epochs": 2, "batch_size": 2}, seed=5)
CONFIG = """
seed = 3
[program]
type = "proofs"
protocol = "solo_verifier"
num_invalid_generation_retries = 0
max_tokens_per_message = 8
[program.claims]
type = "arithmetic_claims"
count = 10
[model]
name = "{model}"
dtype = "float32"
threads = 1
[finetune.provider]
type = "local"
least_examples = 1
poll_seconds = 0.02
[finetune.rl]
rollouts_per_iteration = 2
num_iterations = 2
[finetune.text_rl]
verifier_guess_replacement_proportion = 1.0
"""


def local_jobs(directory: Path) -> LocalJobs:
    engine = EmbeddedEngine(base_policy(), max_tokens=8)
    engine.publish("tiny", BASE, 0)

    def open_service() -> JobService:
        return told(
            JobService(
                directory,
                PublishedAdapters(engine),
                ServedBase.of("tiny", engine.model.model_name, engine.facts()),
                adapters={},
                aliases={"base": "tiny"},
                say=lambda line: None,
                launch=forks().start,
                save_seconds=0.0,
            )
        )

    return LocalJobs(open_service, 1)


async def ended(jobs: JobProvider, job: Job) -> Job:
    while True:
        count = NEWS.count
        job = await jobs.status(job.id)
        if job.status in ENDED:
            return job
        await asyncio.to_thread(NEWS.after, count)


def adapters_of(directory: Path) -> set[str]:
    files = directory.glob("jobs/*/training/step-*/adapter_model.safetensors")
    return {hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


@pytest.mark.parametrize(
    ("method", "examples"),
    [("supervised", TALKS), pytest.param("dpo", PAIRS, marks=pytest.mark.slow)],
)
async def test_a_job_gives_the_same_adapters_whether_it_goes_to_the_queue_directly_or_over_http(
    tmp_path, method, examples
):
    request = JobRequest("one", "base", method, {"n_epochs": 2, "batch_size": 2}, seed=5)
    with serving(tmp_path / "http") as live:
        jobs = OpenAIJobs(TOKEN, f"{live.url}/v1")
        over_http = await ended(jobs, await JobRecords(tmp_path / "a").submit(jobs, request, examples))
    jobs = local_jobs(tmp_path / "local")
    async with jobs.running():
        directly = await ended(jobs, await JobRecords(tmp_path / "b").submit(jobs, request, examples))
    assert (over_http.error, directly.error) == ("", "")
    assert len(adapters_of(tmp_path / "local")) == 2
    assert adapters_of(tmp_path / "local") == adapters_of(tmp_path / "http")


async def test_a_job_is_made_once_found_again_and_says_how_far_it_is(tmp_path):
    jobs, content = local_jobs(tmp_path), b"".join(json.dumps(one).encode() + b"\n" for one in TALKS)
    async with jobs.running():
        file = await jobs.upload("one", content)
        assert await jobs.upload("one", content) == file
        job = await jobs.create(SFT, file)
        assert (await jobs.create(SFT, file)).id == job.id
        with pytest.raises(FineTuneJobError, match="another job with the name one, which differs in"):
            await jobs.create(JobRequest("one", "tiny", "dpo"), file)
        await ended(jobs, job)
        assert await jobs.progress(job.id) == "The job has successfully completed"
    again = local_jobs(tmp_path)
    async with again.running():
        assert (await again.create(SFT, file)).status == "succeeded"
        assert (await again.status("ftjob-unknown")).status == "not_found"


@pytest.mark.parametrize(
    ("request_", "problem"),
    [
        (JobRequest("x", "nobody", "supervised"), "The model `nobody` does not exist"),
        (JobRequest("x", "tiny", "supervised", {"n_epochs": "many"}), "n_epochs"),
        (JobRequest("x", "tiny", "supervised", {"batch_size": 0}), "batch_size: give a number from 1"),
    ],
)
async def test_a_job_that_is_not_possible_is_refused_in_one_line(tmp_path, request_, problem):
    jobs = local_jobs(tmp_path)
    async with jobs.running():
        file = await jobs.upload("x", b"{}\n")
        with pytest.raises(FineTuneJobError, match="job x cannot be created: ") as raised:
            await jobs.create(request_, file)
        with pytest.raises(SparringError, match="the file cannot be stored: file: it is empty"):
            await jobs.upload("empty", b"")
    assert problem in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.fixture
def config(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sparring.finetune.jobs.launch.train_in_process", forks().start)
    (tmp_path / "local.toml").write_text(CONFIG.format(model=roomy_model()))
    return "local.toml"


def models_of(path: str) -> set[str]:
    """The models that answered in a file of rollouts, of which none failed."""
    played = [json.loads(line)["rollout"] for line in Path(path).read_text().splitlines()]
    assert not any(one.get("meta", {}).get("error") for one in played)
    return {one["agents"]["verifier"]["model"] for one in played}


def state_of(name: str) -> dict[str, object]:
    (group,) = json.loads(Path(f"runs/{name}/state.json").read_text())["shared_model_groups"].values()
    return group


def test_a_run_without_a_server_plays_with_what_its_jobs_made_and_goes_on_after_its_end(config, capsys):
    assert main(["finetune", config, "--name", "run"]) == 0, capsys.readouterr().err
    first = state_of("run")["fine_tuned_model_name"]
    assert first.startswith("ft:")
    more = ["finetune", "--resume", "run", "--finetune.rl.num_iterations", "3"]
    assert main(more) == 0, capsys.readouterr().err
    asked = [models_of(f"runs/run/rollouts/step-{iteration:06d}.jsonl") for iteration in range(3)]
    assert asked == [{"default"}, {first}, {state_of("run")["fine_tuned_model_name"]}]
    assert first != state_of("run")["fine_tuned_model_name"]


@pytest.mark.slow  # test_finetune_command plays tests again
def test_tests_are_played_again_without_a_server_with_the_models_of_the_base_run(config, capsys, tmp_path):
    assert main(["finetune", config, "--name", "run"]) == 0, capsys.readouterr().err
    (tmp_path / "other.toml").write_text(CONFIG.format(model=tiny_model("llama")))
    again = {"base_run.base_run_type": "rerun_tests", "base_run.run_id": "run", "text_rl.test_scheme": "all"}
    words = words_of({f"finetune.{name}": value for name, value in again.items()})
    assert main(["finetune", "other.toml", "--name", "again", *words]) == 0, capsys.readouterr().err
    asked = [models_of(f"runs/again/rollouts/test-{iteration:06d}.jsonl") for iteration in range(2)]
    assert asked == [{"default"}, {state_of("run")["fine_tuned_model_name"]}]
    shutil.rmtree("runs/run/server")
    for command in (["other.toml", "--name", "third", *words], ["--resume", "again"]):
        assert main(["finetune", *command]) == 2
        problem = "run has no directory server: its jobs were made elsewhere. Use the provider"
        assert problem in capsys.readouterr().err
    assert not Path("runs/run/server").exists()


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        (
            {"finetune.agents.verifier.model_name": "smollm3"},
            "finetune.agents.verifier.model_name: is 'smollm3', which is not the model of [model]. Use ",
        ),
        (
            {"finetune.provider.base_url": "http://127.0.0.1:8000/v1"},
            "finetune.provider.base_url: is http://127.0.0.1:8000/v1, but a local provider asks no API. ",
        ),
    ],
)
def test_a_dry_run_refuses_what_a_local_provider_does_not_have(config, capsys, fields, line):
    assert main(["finetune", config, "--dry-run", *words_of(fields)]) == 2
    assert capsys.readouterr().err.startswith(f"error: {line}")


def test_the_model_of_a_run_without_a_server_may_not_change(config, capsys, tmp_path):
    one = ["--finetune.rl.num_iterations", "1"]
    assert main(["finetune", config, "--name", "run", *one]) == 0, capsys.readouterr().err
    assert main(["finetune", "--resume", "run", "--model.dtype", "bfloat16"]) == 2
    assert "model.dtype: 'float32' -> 'bfloat16'" in capsys.readouterr().err
