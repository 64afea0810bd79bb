"""Jobs and answers of the stage trainer at a service with Tinker's API: our server, asked by Tinker's SDK."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from one_job import TALKS, jobs_of, request_of, trained
from safetensors.torch import load_file

from job_commands import Server, wait_until
from live_server import ASK, TOKEN
from sparring.cli.main import main
from sparring.core import EpisodeError, InputError, SparringError, TransientError
from sparring.core.adapters import ADAPTER_FILE
from sparring.finetune.jobs.schema import read_conversations
from sparring.finetune.providers import FineTuneJobError, JobRequest
from sparring.finetune.tinker.store import ModelFiles, saved_by
from sparring.finetune.tinker.training_model import lora_of
from sparring.finetune.tinker_client import TinkerClient
from sparring.finetune.tinker_service import TinkerService
from sparring.learn.fine_tuning.examples import Renderer, families, opening
from sparring.learn.fine_tuning.job import Data, FineTuningJob
from sparring.learn.fine_tuning.settings import JobSettings
from sparring.learn.policy import TRAINED, LoraSettings, PolicyModel
from tiny_models import roomy_model
from training_client import serving

MODEL = str(roomy_model())
CONFIG = """
seed = 3
[program]
type = "proofs"
protocol = "solo_verifier"
num_invalid_generation_retries = 0
max_tokens_per_message = 8
examples = false
[program.claims]
type = "arithmetic_claims"
count = 10
[finetune.provider]
type = "tinker"
base_url = "{url}"
least_examples = 1
poll_seconds = 0.02
[finetune.agents._default]
model_name = "{model}"
fine_tune_from_scratch = false
hyperparameters = {{ n_epochs = 2, batch_size = 1, rank = 2 }}
[finetune.rl]
rollouts_per_iteration = 2
num_iterations = 3
[finetune.text_rl]
verifier_guess_replacement_proportion = 1.0
"""


@pytest.fixture(autouse=True)
def key(monkeypatch):
    monkeypatch.setenv("SPARRING_API_KEY", TOKEN)


@pytest.fixture
def training(tmp_path):
    return tmp_path / "training"


@pytest.fixture
def live(training):
    with serving(training, PolicyModel(MODEL, LoraSettings(1))) as client:
        yield client.live


def directory_of(training, path):
    model, *weights = path.removeprefix("tinker://").split("/")
    return training.joinpath("models", model.replace(":", "."), *weights)


def record_of(training, path):
    return ModelFiles(directory_of(training, path).parents[1]).record()


def assert_same_weights(training, path, other):
    own, other = load_file(directory_of(training, path) / ADAPTER_FILE), load_file(other / ADAPTER_FILE)
    assert own.keys() == other.keys()
    for name, weight in own.items():
        torch.testing.assert_close(weight, other[name], rtol=1e-4, atol=1e-5)


async def model_of(live, directory):
    """Train to the end; return the model's path, and what was said last."""
    jobs = jobs_of(live.url, directory)
    async with jobs.running():
        model, error, progress = await trained(jobs, directory, request_of(MODEL))
    assert error == ""
    return model, progress


async def test_a_job_gives_the_adapter_of_our_own_job_from_the_same_start(tmp_path, training, live):
    path, progress = await model_of(live, tmp_path)
    record = record_of(training, path)
    policy = PolicyModel(MODEL, lora_of(record))
    policy.add_policy("start", lora_of(record), record.seed)
    policy.load_adapter_state(policy.adapter_state("start"), TRAINED)
    renderer = Renderer(policy.tokens, policy.context_length)
    talks = read_conversations(b"\n".join(json.dumps(one).encode() for one in TALKS))
    data = [renderer.conversation(one) for one in talks]
    numbers = families([opening(one.messages) for one in talks])
    settings = JobSettings("supervised", 5, 4, 2, 20.0)
    (tmp_path / "own").mkdir()
    outcome = FineTuningJob(policy, "tiny", tmp_path / "own", settings, Data(data, numbers)).run()
    assert progress == f"Step 12/12: training loss={outcome.checkpoints[-1].metrics['train_loss']:.4f}"
    assert_same_weights(training, path, tmp_path / "own" / "step-000012")


def steps_saved(directory):
    """The steps of the only job whose state is saved."""
    files = (directory / "tinker").glob("*.json")
    return max((json.loads(one.read_bytes())["step"] for one in files), default=0)


async def test_a_job_of_a_killed_process_goes_on_from_its_newest_state(tmp_path, training, live):
    whole, _ = await model_of(live, tmp_path / "whole")
    script = Path(__file__).with_name("one_job.py")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    words = [sys.executable, script, live.url, tmp_path / "killed", MODEL]
    process = subprocess.Popen([*map(str, words)], env=environment)
    await asyncio.to_thread(wait_until, lambda: steps_saved(tmp_path / "killed") >= 3)
    process.kill()
    process.wait()
    saved = steps_saved(tmp_path / "killed")
    assert saved < 12
    path, _ = await model_of(live, tmp_path / "killed")
    assert_same_weights(training, path, directory_of(training, whole))
    steps_left = 12 - saved
    requests = saved_by(directory_of(training, path))
    assert requests <= 3 * steps_left + 1  # gradients, step and state of each; then the weights for sampling
    assert len([*(training / "models").glob("*/weights/*")]) <= 3  # at most one is left of what was replaced


async def test_a_job_goes_on_when_the_server_is_killed_and_started_again(tmp_path, training):
    more = ("--dtype", "float32", "--training", str(training))
    server = Server(tmp_path / "jobs", *more, model=roomy_model())
    jobs = jobs_of(f"http://127.0.0.1:{server.port}", tmp_path)
    try:
        async with jobs.running():
            training_job = asyncio.create_task(trained(jobs, tmp_path, request_of(MODEL)))
            await asyncio.to_thread(wait_until, lambda: steps_saved(tmp_path) >= 3)
            server.kill()
            await asyncio.to_thread(server.start)
            path, error, _ = await training_job
            assert error == ""
            (whole, _, _) = await trained(jobs, tmp_path / "whole", request_of(MODEL))
    finally:
        server.kill()
    assert_same_weights(training, path, directory_of(training, whole))


def models_of(directory, iteration):
    lines = (directory / "rollouts" / f"step-{iteration:06d}.jsonl").read_text().splitlines()
    played = [json.loads(line)["rollout"] for line in lines]
    assert not any(one.get("meta", {}).get("error") for one in played)
    return {one["agents"]["verifier"]["model"] for one in played}


def test_each_iteration_plays_with_the_weights_of_the_job_before(
    tmp_path, training, live, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "proofs.toml").write_text(CONFIG.format(url=live.url, model=MODEL))
    assert main(["finetune", "proofs.toml", "--name", "run"]) == 0, capsys.readouterr().err
    (first,), (second,), (third,) = (models_of(tmp_path / "runs" / "run", one) for one in range(3))
    assert first == MODEL
    assert record_of(training, second).rank == record_of(training, third).rank == 2
    assert record_of(training, third).first == 0  # it began with the weights of the second


async def test_answers_are_those_of_the_engine(tmp_path, live):
    service = TinkerService(live.url)
    client = TinkerClient(service, 60.0)
    own = live.client().chat.completions.create(model="tiny", messages=ASK, max_tokens=8, temperature=0)
    answer = await client.complete(ASK, 0.0, 8, model=MODEL)
    assert answer.text == own.choices[0].message.content
    assert answer.finish_reason == own.choices[0].finish_reason
    middle = answer.text[3:5]
    cut = await client.complete(ASK, 0.0, 8, model=MODEL, stop=(middle,))
    assert (cut.text, cut.finish_reason) == (answer.text.partition(middle)[0], "stop")
    with pytest.raises(EpisodeError, match="exceed the context"):
        await client.complete(ASK, max_tokens=10**6, model=MODEL)
    with pytest.raises(SparringError, match="there is no model"):
        await client.complete(ASK, model=f"tinker://{'0' * 32}:train:0/sampler_weights/one")
    await service.close()


@pytest.mark.parametrize("answers", [[], [[-1]], [[5], [6]]])
async def test_a_reply_that_is_not_one_answer_is_asked_for_again(answers, live, monkeypatch):
    async def reply():
        return SimpleNamespace(sequences=[SimpleNamespace(tokens=one) for one in answers])

    async def sampler(model):
        return SimpleNamespace(get_base_model=lambda: model, sample=lambda *asked: reply())

    service = TinkerService(live.url)
    monkeypatch.setattr(service, "sampler", sampler)
    with pytest.raises(TransientError, match="the reply is not one answer"):
        await TinkerClient(service, 60.0).complete(ASK, max_tokens=8, model=MODEL)
    await service.close()


async def test_a_job_whose_steps_are_refused_when_they_are_asked_for_is_one_line(tmp_path, live, monkeypatch):
    def refuse(*asked):
        raise ValueError("no data")

    jobs = jobs_of(live.url, tmp_path)
    monkeypatch.setattr(jobs.service.sdk.TrainingClient, "optim_step", refuse)
    async with jobs.running():
        with pytest.raises(SparringError, match="step 1: no data"):
            await trained(jobs, tmp_path, request_of(MODEL))


async def test_a_job_without_its_examples_fails_and_one_without_a_loss_goes_on(tmp_path, live, monkeypatch):
    jobs = jobs_of(live.url, tmp_path)
    output = jobs.service.sdk.types.ForwardBackwardOutput
    monkeypatch.setattr(output, "metrics", property(lambda self: {}, lambda self, value: None), raising=False)
    async with jobs.running():
        _, error, progress = await trained(jobs, tmp_path, request_of(MODEL))
        assert (error, progress) == ("", "Step 12/12: training loss=nan")
        job = await jobs.create(JobRequest("another", MODEL, "supervised"), "gone.jsonl")
        while job.status == "running":
            await asyncio.sleep(0.02)
            job = await jobs.status(job.id)
    assert job.status == "failed"
    assert job.error.startswith("its examples are missing, ")


@pytest.mark.parametrize(
    ("request_", "problem"),
    [
        (JobRequest("x", MODEL, "dpo"), "Tinker's API has no method dpo"),
        (request_of(MODEL, rnk=4), "hyperparameters.rnk: "),
        (request_of(MODEL, n_epochs=0), "hyperparameters.n_epochs: "),
    ],
)
async def test_a_job_that_is_not_possible_is_refused_in_one_line(tmp_path, live, request_, problem):
    jobs = jobs_of(live.url, tmp_path)
    async with jobs.running():
        with pytest.raises(FineTuneJobError, match="cannot be created: ") as raised:
            await trained(jobs, tmp_path, request_)
    assert problem in str(raised.value)
    assert "\n" not in str(raised.value)


async def test_a_model_that_the_service_has_not_and_a_wrong_key_are_one_line(tmp_path, live, monkeypatch):
    jobs = jobs_of(live.url, tmp_path)
    async with jobs.running():
        with pytest.raises(InputError, match=r"^model_name: .* has no model 'nobody'\. Use "):
            await trained(jobs, tmp_path, request_of("nobody"))
    monkeypatch.setenv("SPARRING_API_KEY", "wrong")
    with pytest.raises(InputError, match=r"^SPARRING_API_KEY: was rejected by .* \(401\)\. Set it to "):
        await TinkerService(live.url).connected()


async def test_an_example_that_is_too_long_fails_the_job(tmp_path, live):
    jobs = jobs_of(live.url, tmp_path)
    content = json.dumps({"messages": [ASK[0], {"role": "assistant", "content": "a b " * 5000}]}).encode()
    async with jobs.running():
        job = await jobs.create(request_of(MODEL), await jobs.upload("one", content))
        while job.status == "running":
            await asyncio.sleep(0.02)
            job = await jobs.status(job.id)
    assert (job.status, job.error[:7]) == ("failed", "line 1:")


def test_only_thinking_machines_gets_its_key(monkeypatch):
    monkeypatch.delenv("TINKER_API_KEY", raising=False)
    with pytest.raises(InputError, match=r"^TINKER_API_KEY: is not set, but tinker\.thinkingmachines\.dev "):
        TinkerService("https://tinker.thinkingmachines.dev/services/tinker-prod")
    monkeypatch.setenv("TINKER_API_KEY", "tml-secret")
    monkeypatch.delenv("SPARRING_API_KEY")
    with pytest.raises(InputError, match=r"^SPARRING_API_KEY: is not set, but tinker\.example\.org "):
        TinkerService("https://tinker.example.org")
