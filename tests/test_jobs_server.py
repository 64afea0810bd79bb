"""Files and fine-tuning jobs of the server, as the ``openai`` package sees them."""

import asyncio
import contextlib
import csv
import functools
import hashlib
import inspect
import json
import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from fastapi import FastAPI

from job_workers import Forks
from live_server import TOKEN, Live, running
from selfplay.commands.served_adapters import ClientAdapters, ServedAdapters
from selfplay.core import InputError
from selfplay.inference.engine import EmbeddedEngine
from selfplay.inference.server import create_app
from selfplay.jobs.assembly import OpenJobs
from selfplay.jobs.queue import MAX_STARTS
from selfplay.jobs.routes import FILES, add_job_routes, refuse_job_routes
from selfplay.learning.checkpoints import load_adapter, save_adapter
from selfplay.learning.policy import BASE, LoraSettings, PolicyModel
from tiny_models import perturb_adapter, tiny_model

PAGE = Path(__file__).parents[1] / "docs" / "howto-fine-tuning-jobs.md"
RESOURCES = (
    "files",
    "fine_tuning.jobs",
    "fine_tuning.jobs.checkpoints",
    "fine_tuning.checkpoints.permissions",
    "fine_tuning.alpha.graders",
)
ASK = [{"role": "user", "content": "what is up"}]
STEPS = 30
MANY = {"n_epochs": 3, "batch_size": 4, "learning_rate_multiplier": 20}
"""Hyper-parameters with which 40 examples make 30 steps."""


@functools.cache
def forks() -> Forks:
    return Forks()


def base_policy(architecture: str = "llama") -> PolicyModel:
    return PolicyModel(str(tiny_model(architecture)), LoraSettings(1))


@contextlib.contextmanager
def serving(
    directory: Path, *, base: str = "tiny", notes: list[str] | None = None, **options
) -> Iterator[Live]:
    """A server over ``directory`` whose workers are forked."""
    policy = base_policy("qwen3" if base == "other" else "llama")
    engine = EmbeddedEngine(policy, max_tokens=8)
    engine.publish(base, BASE, 0)
    shelf = ServedAdapters(policy, engine)
    opened = OpenJobs(
        directory,
        engine,
        policy,
        shelf,
        served=base,
        name=policy.model_name,
        aliases={"base": base},
        say=(notes if notes is not None else []).append,
        launch=forks().start,
        **{"save_seconds": 0.0, "adapters": {}, **options},
    )
    app: FastAPI = create_app(
        engine,
        token=TOKEN,
        aliases={"base": base},
        adapters=ClientAdapters(shelf, directory, frozenset([base])),
        larger_bodies={FILES: 8 * 2**20},
        running=opened.running,
    )
    add_job_routes(app, opened.service)
    with running(app, engine) as live:
        yield live


@pytest.fixture(scope="module")
def live(tmp_path_factory) -> Iterator[Live]:
    with serving(tmp_path_factory.mktemp("jobs")) as live:
        yield live


def talk(question: str, answer: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]}


def preference(question: str, good: str, bad: str) -> dict[str, Any]:
    return {
        "input": {"messages": [{"role": "user", "content": question}]},
        "preferred_output": [{"role": "assistant", "content": good}],
        "non_preferred_output": [{"role": "assistant", "content": bad}],
    }


def calls_of(client: openai.OpenAI, path: str) -> list[str]:
    """Return the names of the calls of one of the package's resources."""
    resource = functools.reduce(getattr, path.split("."), client)
    own = [name for name in vars(type(resource)) if not name.startswith(("_", "with_"))]
    return [name for name in own if inspect.isfunction(vars(type(resource))[name])]


def upload(client: openai.OpenAI, lines: list[Any], name: str = "data.jsonl") -> str:
    content = "".join(json.dumps(line) + "\n" for line in lines).encode()
    return client.files.create(file=(name, content), purpose="fine-tune").id


def ended(client: openai.OpenAI, job_id: str) -> Any:
    """Wait for the end of a job."""
    return when(client, job_id, lambda job: job.status in ("succeeded", "failed", "cancelled"))


def when(client: openai.OpenAI, job_id: str, condition: Any) -> Any:
    while not condition(job := client.fine_tuning.jobs.retrieve(job_id)):
        time.sleep(0.02)
    return job


def wait_for_step(client: openai.OpenAI, job_id: str, step: int) -> None:
    def metrics(job: Any) -> list[Any]:
        events = client.fine_tuning.jobs.list_events(job_id, limit=1000).data
        return [event for event in events if event.type == "metrics"]

    when(client, job_id, lambda job: len(metrics(job)) >= step or job.status == "succeeded")


def supervised(**hyperparameters) -> dict[str, Any]:
    return {"type": "supervised", "supervised": {"hyperparameters": hyperparameters}}


def dpo(**hyperparameters) -> dict[str, Any]:
    return {"type": "dpo", "dpo": {"hyperparameters": hyperparameters}}


def many_talks() -> list[dict[str, Any]]:
    return [talk(f"question {index % 7}", f"answer {index}") for index in range(40)]


def start_short(client: openai.OpenAI, model: str = "tiny") -> Any:
    """Create a job of one step."""
    file = upload(client, [talk("a", "b")])
    return client.fine_tuning.jobs.create(model=model, training_file=file, method=supervised(n_epochs=1))


# Files


def test_a_file_is_uploaded_listed_read_and_deleted(live):
    client = live.client()
    content = json.dumps(talk("hi", "ho")).encode()
    file = client.files.create(file=("näme.jsonl", content), purpose="fine-tune")
    assert (file.object, file.bytes, file.filename) == ("file", len(content), "näme.jsonl")
    assert (file.purpose, file.status) == ("fine-tune", "processed")
    assert client.files.retrieve(file.id) == file
    assert client.files.content(file.id).content == content
    assert file in client.files.list().data
    deleted = client.files.delete(file.id)
    assert (deleted.id, deleted.deleted) == (file.id, True)
    with pytest.raises(openai.NotFoundError, match=f"No such File object: {file.id}"):
        client.files.retrieve(file.id)
    assert file.id not in [one.id for one in client.files.list()]


def test_files_are_listed_in_pages_in_either_order_and_by_purpose(tmp_path):
    with serving(tmp_path) as live:
        client = live.client()
        ids = [upload(client, [talk("a", "b")]) for _ in range(5)]
        assert [one.id for one in client.files.list(limit=2)] == ids[::-1]
        page = client.files.list(limit=2, order="asc")
        assert ([one.id for one in page.data], page.has_more) == (ids[:2], True)
        after = client.files.list(limit=2, order="asc", after=ids[2])
        assert ([one.id for one in after.data], after.has_more) == (ids[3:], False)
        assert client.files.list(purpose="fine-tune-results").data == []
        with pytest.raises(openai.BadRequestError, match="after: there is no 'file-x' in this list"):
            client.files.list(after="file-x")
    with serving(tmp_path) as again:
        assert [one.id for one in again.client().files.list(order="asc")] == ids


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"file": ("a.jsonl", b"{}"), "purpose": "assistants"}, "purpose: this server stores files for"),
        ({"file": ("a.jsonl", b""), "purpose": "fine-tune"}, "file: it is empty"),
        (
            {
                "file": ("a.jsonl", b"{}"),
                "purpose": "fine-tune",
                "expires_after": {"anchor": "created_at", "seconds": 3600},
            },
            "expires_after.*this server cannot do that",
        ),
    ],
)
def test_an_upload_that_cannot_be_kept_as_asked_is_refused(live, arguments, problem):
    with pytest.raises(openai.BadRequestError, match=problem):
        live.client().files.create(**arguments)


def test_an_upload_without_a_file_is_refused(live):
    answer = live.post("/v1/files", data={"purpose": "fine-tune"}, files={"other": ("x", b"y")})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "file")


def test_files_and_bodies_are_limited(tmp_path):
    with serving(tmp_path, max_stored_bytes=100) as live:
        client = live.client()
        client.files.create(file=("a", b"x" * 80), purpose="fine-tune")
        with pytest.raises(openai.APIStatusError, match="stores at most 100 bytes") as caught:
            client.files.create(file=("b", b"x" * 30), purpose="fine-tune")
        assert caught.value.status_code == 413
        with pytest.raises(openai.APIStatusError, match="the body has more than"):
            client.files.create(file=("b", b"x" * (9 * 2**20)), purpose="fine-tune")
        assert len(client.files.list().data) == 1


# A job


@pytest.fixture(scope="module")
def finished(live) -> Any:
    """A supervised job with a validation file, a suffix and metadata."""
    client = live.client()
    lines = [talk(f"what is {number}", f"it is {number}") for number in range(6)]
    job = client.fine_tuning.jobs.create(
        model="tiny",
        training_file=upload(client, lines),
        validation_file=upload(client, lines[:2]),
        suffix="first",
        metadata={"stage": "1", "run": "a"},
        seed=11,
        method=supervised(n_epochs=4, batch_size=2, learning_rate_multiplier=10),
    )
    assert job.status == "validating_files"
    assert (job.fine_tuned_model, job.trained_tokens, job.result_files) == (None, None, [])
    return ended(client, job.id)


def test_a_finished_job_has_all_that_openai_documents(live, finished):
    assert (finished.status, finished.error) == ("succeeded", None)
    assert (finished.object, finished.model, finished.seed) == ("fine_tuning.job", "tiny", 11)
    assert finished.fine_tuned_model.startswith("ft:tiny:selfplay:first:")
    assert finished.metadata == {"stage": "1", "run": "a"}
    assert finished.hyperparameters.n_epochs == 4
    assert finished.method.type == "supervised"
    numbers = finished.method.supervised.hyperparameters
    assert (numbers.n_epochs, numbers.batch_size, numbers.learning_rate_multiplier) == (4, 2, 10)
    assert finished.trained_tokens > 100
    assert finished.created_at <= finished.finished_at
    assert live.client().fine_tuning.jobs.retrieve(finished.id) == finished


def test_the_result_file_has_a_row_for_each_step(live, finished):
    client = live.client()
    (result,) = finished.result_files
    assert client.files.retrieve(result).purpose == "fine-tune-results"
    rows = list(csv.DictReader(client.files.content(result).text.splitlines()))
    assert list(rows[0]) == [
        "step",
        "train_loss",
        "train_accuracy",
        "valid_loss",
        "valid_mean_token_accuracy",
    ]
    assert [row["step"] for row in rows] == [str(step) for step in range(1, 13)]
    assert float(rows[-1]["valid_loss"]) < float(rows[2]["valid_loss"])


def test_events_tell_what_happened_newest_first(live, finished):
    client = live.client()
    events = list(client.fine_tuning.jobs.list_events(finished.id, limit=5))
    messages = [event.message for event in events]
    assert messages[0] == "The job has successfully completed"
    assert messages[-1] == f"Created fine-tuning job: {finished.id}"
    steps = [event.data["step"] for event in events if event.type == "metrics"]
    assert steps == list(range(12, 0, -1))
    assert len({event.id for event in events}) == len(events)


def test_checkpoints_are_the_models_of_the_last_three_epochs(live, finished):
    client = live.client()
    found = list(client.fine_tuning.jobs.checkpoints.list(finished.id, limit=2))
    assert [one.step_number for one in found] == [12, 9, 6]
    names = [one.fine_tuned_model_checkpoint for one in found]
    model = finished.fine_tuned_model
    assert names == [model, f"{model}:ckpt-step-9", f"{model}:ckpt-step-6"]
    assert all(one.metrics.full_valid_loss > 0 for one in found)
    assert set(names) <= {one.id for one in client.models.list()}


def test_the_model_answers_with_what_was_trained(live, finished):
    def answer(model: str) -> list[float]:
        asked = live.client().chat.completions.create(
            model=model, messages=ASK, temperature=1, seed=1, logprobs=True
        )
        return [token.logprob for token in asked.choices[0].logprobs.content]

    assert answer(finished.fine_tuned_model) != answer("tiny")


def test_jobs_are_found_again_by_their_metadata(live, finished):
    client = live.client()
    jobs = client.fine_tuning.jobs
    assert [one.id for one in jobs.list(metadata={"stage": "1", "run": "a"})] == [finished.id]
    assert jobs.list(metadata={"stage": "2"}).data == []
    plain = start_short(client, "base")
    without = jobs.list(extra_query={"metadata": "null"}).data
    assert plain.id in [one.id for one in without]
    assert finished.id not in [one.id for one in without]
    assert next(iter(jobs.list(limit=1))).id == plain.id
    assert ended(client, plain.id).metadata is None


def test_a_job_starts_from_the_model_of_an_earlier_one(live, finished):
    client = live.client()
    lines = [preference("what is up", "it is good", "no"), preference("what is 1", "it is 1", "2")]
    job = client.fine_tuning.jobs.create(
        model=finished.fine_tuned_model,
        training_file=upload(client, lines),
        method=dpo(n_epochs=2, batch_size=2, learning_rate_multiplier=10, beta=0.2),
    )
    job = ended(client, job.id)
    assert (job.status, job.model) == ("succeeded", finished.fine_tuned_model)
    assert job.method.dpo.hyperparameters.beta == 0.2
    rows = list(csv.DictReader(client.files.content(job.result_files[0]).text.splitlines()))
    assert float(rows[0]["train_loss"]) == pytest.approx(0.693147, abs=1e-4)
    assert float(rows[0]["train_reward_margin"]) == pytest.approx(0, abs=1e-3)
    assert job.fine_tuned_model in [one.id for one in client.models.list()]


def test_clients_cannot_take_the_names_of_fine_tuned_models(live, finished):
    name = finished.fine_tuned_model
    for path, body in (
        ("/v1/unload_lora_adapter", {"lora_name": name}),
        ("/v1/load_lora_adapter", {"lora_name": name, "lora_path": ".", "load_inplace": True}),
    ):
        answer = live.post(path, json=body)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "lora_name")


def test_a_deleted_model_is_gone_also_after_a_restart(tmp_path):
    with serving(tmp_path) as live:
        client = live.client()
        job = client.fine_tuning.jobs.create(
            model="tiny", training_file=upload(client, [talk("a", "b")]), method=supervised(n_epochs=2)
        )
        model = ended(client, job.id).fine_tuned_model
        earlier = f"{model}:ckpt-step-1"
        first, second = start_many(client), start_short(client, model)
        with pytest.raises(openai.ConflictError, match=f"is in use by {second.id}"):
            client.models.delete(model)
        for one in (first, second.id):
            client.fine_tuning.jobs.cancel(one)
        assert client.models.delete(model).deleted
        assert [one.id for one in client.models.list()] == ["tiny", earlier]
        found = client.fine_tuning.jobs.checkpoints.list(job.id).data
        assert [one.fine_tuned_model_checkpoint for one in found] == [earlier]
        for name in (model, "nobody"):
            with pytest.raises(openai.NotFoundError):
                client.models.delete(name)
        with pytest.raises(openai.BadRequestError, match="was not made by a fine-tuning job"):
            client.models.delete("tiny")
    notes: list[str] = []
    with serving(tmp_path, notes=notes) as live:
        assert [one.id for one in live.client().models.list()] == ["tiny", earlier]
    assert notes == []


def test_a_job_starts_from_an_adapter_of_the_server_with_its_shape(tmp_path):
    policy = PolicyModel(str(tiny_model("llama")), LoraSettings(3, 5.0, ["q_proj", "v_proj"]))
    perturb_adapter(policy)
    save_adapter(tmp_path / "mine", policy, "tiny")
    with serving(tmp_path / "jobs", adapters={"mine": tmp_path / "mine"}) as live:
        client = live.client()
        job = ended(client, start_short(client, "mine").id)
        assert (job.status, job.model) == ("succeeded", "mine")
    (made,) = tmp_path.glob("jobs/jobs/*/training/step-*")
    weights, config = load_adapter(made)
    assert (config["r"], config["lora_alpha"], config["target_modules"]) == (3, 5.0, ["q_proj", "v_proj"])
    before = policy.adapter_state()
    moved = sum(float((weights[key] - before[key]).norm()) for key in before)
    assert 0 < moved < 0.1 * sum(float(one.norm()) for one in before.values())


# Refusals


@pytest.mark.parametrize(
    ("lines", "method", "problem"),
    [
        ([talk("a", "b"), {"messages": []}], "supervised", r"line 2: messages: List should have at least 1"),
        ([talk("a", "b"), talk("c" * 300, "d")], "supervised", r"line 2: it has \d+ tokens, but the model's"),
        ([talk("a", "b")], "dpo", "line 1: input: Field required"),
        ([preference("a", "b", "c"), preference("a", "b", "b")], "dpo", "line 2: the preferred and the"),
    ],
)
@pytest.mark.parametrize("param", ["training_file", "validation_file"])
def test_a_wrong_line_fails_the_job_with_its_number_and_reason(live, lines, method, problem, param):
    client = live.client()
    good = [talk("a", "b")] if method == "supervised" else [preference("a", "b", "c")]
    files = {"training_file": upload(client, good), param: upload(client, lines)}
    job = client.fine_tuning.jobs.create(model="tiny", method={"type": method}, **files)
    job = ended(client, job.id)
    assert (job.status, job.error.code, job.error.param) == ("failed", f"invalid_{param}", param)
    assert re.match(problem, job.error.message)
    assert job.fine_tuned_model is None
    events = client.fine_tuning.jobs.list_events(job.id).data
    assert (events[0].level, events[0].message) == ("error", job.error.message)


@pytest.mark.parametrize(
    ("changes", "param", "problem"),
    [
        ({"model": "nobody"}, "model", "The model `nobody` does not exist"),
        ({"training_file": "file-x"}, "training_file", "there is no file 'file-x'"),
        ({"validation_file": "file-x"}, "validation_file", "there is no file 'file-x'"),
        ({"suffix": "a:b"}, "suffix", "use 1 to 64 letters"),
        ({"suffix": "x" * 65}, "suffix", "use 1 to 64 letters"),
        ({"metadata": {"k" * 65: "v"}}, "metadata", "at most 16 pairs"),
        ({"integrations": [{"type": "wandb", "wandb": {"project": "p"}}]}, "integrations", "reports to"),
        ({"method": {"type": "reinforcement"}}, "method.type", "has the methods supervised and dpo"),
        ({"method": {"type": "dpo", "supervised": {}}}, "method.supervised", "the type of the method is dpo"),
        ({"method": supervised(n_epochs=0)}, "method.supervised.hyperparameters.n_epochs", "from 1 to"),
        ({"method": dpo(beta=0.0)}, "method.dpo.hyperparameters.beta", "above 0"),
        ({"method": supervised(beta=0.1)}, "method.supervised.hyperparameters.beta", "not permitted"),
        ({"hyperparameters": {"batch_size": -1}}, "hyperparameters.batch_size", "from 1 to"),
        ({"extra_body": {"priority": 1}}, "priority", "not permitted"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_request_that_cannot_be_met_is_refused_by_its_parameter(live, changes, param, problem):
    client = live.client()
    jobs = len(client.fine_tuning.jobs.list(limit=1000).data)
    arguments = {"model": "tiny", "training_file": upload(client, [talk("a", "b")])} | changes
    with pytest.raises(openai.APIStatusError, match=problem) as caught:
        client.fine_tuning.jobs.create(**arguments)
    assert caught.value.status_code in (400, 404)
    assert (caught.value.param, caught.value.type) == (param, "invalid_request_error")
    assert len(client.fine_tuning.jobs.list(limit=1000).data) == jobs


def test_a_job_that_does_not_exist_is_not_found_on_any_route(live):
    jobs = live.client().fine_tuning.jobs
    calls = [jobs.retrieve, jobs.cancel, jobs.pause, jobs.resume, jobs.list_events, jobs.checkpoints.list]
    for call in calls:
        with pytest.raises(openai.NotFoundError, match="Could not find fine tune: ftjob-x") as caught:
            call("ftjob-x")
        assert caught.value.code == "fine_tune_not_found"


REFUSED = {
    "fine_tuning.jobs.pause": lambda client, job: client.fine_tuning.jobs.pause(job),
    "fine_tuning.jobs.resume": lambda client, job: client.fine_tuning.jobs.resume(job),
    "fine_tuning.checkpoints.permissions.create": lambda client, job: (
        client.fine_tuning.checkpoints.permissions.create(job, project_ids=["p"]).data
    ),
    "fine_tuning.checkpoints.permissions.retrieve": lambda client, job: (
        client.fine_tuning.checkpoints.permissions.retrieve(job)
    ),
    "fine_tuning.checkpoints.permissions.list": lambda client, job: (
        client.fine_tuning.checkpoints.permissions.list(job)
    ),
    "fine_tuning.checkpoints.permissions.delete": lambda client, job: (
        client.fine_tuning.checkpoints.permissions.delete("x", fine_tuned_model_checkpoint=job)
    ),
    "fine_tuning.alpha.graders.run": lambda client, job: client.fine_tuning.alpha.graders.run(
        grader={"type": "string_check"}, model_sample="x"
    ),
    "fine_tuning.alpha.graders.validate": lambda client, job: client.fine_tuning.alpha.graders.validate(
        grader={"type": "string_check"}
    ),
}
"""Calls that this server does not support."""


@pytest.mark.filterwarnings("ignore:.*deprecated:DeprecationWarning")
def test_the_table_of_calls_is_complete_and_the_rest_is_answered_not_supported(live, finished):
    client = live.client()
    rows = re.findall(r"^\| `client\.([\w.]+)` \| (.+?) \|", PAGE.read_text(), re.MULTILINE)
    calls = {f"{path}.{name}" for path in RESOURCES for name in calls_of(client, path)}
    assert {name for name, _ in rows} == {*calls, "models.delete"}
    assert {name for name, answer in rows if answer.startswith("not supported")} == set(REFUSED)
    for name, call in REFUSED.items():
        with pytest.raises(openai.BadRequestError) as caught:
            call(client, finished.id)
        assert caught.value.code == "not_supported", name


def test_a_job_that_has_ended_cannot_be_cancelled(live, finished):
    client = live.client()
    with pytest.raises(openai.BadRequestError, match="has ended already"):
        client.fine_tuning.jobs.cancel(finished.id)


def test_results_cannot_be_trained_on(live, finished):
    with pytest.raises(openai.BadRequestError, match="is fine-tune-results"):
        live.client().fine_tuning.jobs.create(model="tiny", training_file=finished.result_files[0])


def test_every_route_needs_the_token(live, finished):
    stranger = live.client("another")
    jobs = stranger.fine_tuning.jobs
    calls = [
        stranger.files.list,
        lambda: stranger.files.create(file=("a", b"b"), purpose="fine-tune"),
        lambda: stranger.files.content(finished.training_file),
        lambda: jobs.create(model="tiny", training_file=finished.training_file),
        jobs.list,
        lambda: jobs.list_events(finished.id),
        lambda: jobs.cancel(finished.id),
    ]
    for call in calls:
        with pytest.raises(openai.AuthenticationError):
            call()


def test_without_the_option_every_route_names_it():
    policy = base_policy()
    engine = EmbeddedEngine(policy)
    engine.publish("tiny", BASE, 0)
    app = create_app(engine, token=TOKEN)
    refuse_job_routes(app)
    with running(app, engine) as live:
        client = live.client()
        jobs = client.fine_tuning.jobs
        calls = [
            client.files.list,
            lambda: client.files.create(file=("a", b"b"), purpose="fine-tune"),
            lambda: client.files.delete("file-x"),
            lambda: client.files.content("file-x"),
            lambda: jobs.create(model="tiny", training_file="file-x"),
            jobs.list,
            lambda: jobs.retrieve("ftjob-x"),
            lambda: jobs.cancel("ftjob-x"),
        ]
        for call in calls:
            with pytest.raises(openai.BadRequestError, match="selfplay serve MODEL --jobs DIR") as caught:
                call()
            assert caught.value.code == "not_supported"


def test_the_example_of_the_page_runs(live, tmp_path):
    (code,) = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {}
    exec(code, names)
    (tmp_path / "data.jsonl").write_text(json.dumps(talk("2 + 2 = 5", "reject")) + "\n")
    model = names["fine_tune"](live.client(), tmp_path / "data.jsonl")
    assert re.fullmatch("ft:tiny:selfplay:verifier:[0-9a-f]{8}", model)


# While a job runs


@pytest.fixture
def busy(tmp_path) -> Iterator[tuple[Live, str]]:
    """A server that works on a job of many steps."""
    with serving(tmp_path) as live:
        client = live.client()
        job = start_many(client)
        wait_for_step(client, job, 1)
        yield live, job


def start_many(client: openai.OpenAI) -> str:
    file = upload(client, many_talks())
    return client.fine_tuning.jobs.create(
        model="tiny", training_file=file, seed=5, method=supervised(**MANY)
    ).id


def test_other_requests_are_answered_while_a_job_runs_and_a_second_job_waits(busy):
    live, job = busy
    client = live.client()
    second = start_short(client)
    assert client.chat.completions.create(model="tiny", messages=ASK).choices
    when(client, second.id, lambda one: one.status == "queued")
    with pytest.raises(openai.ConflictError, match=f"is in use by {second.id}"):
        client.files.delete(second.training_file)
    assert client.fine_tuning.jobs.retrieve(job).status == "running"
    cancelled = client.fine_tuning.jobs.cancel(second.id)
    assert cancelled.status == "cancelled"
    assert client.files.delete(second.training_file).deleted
    client.fine_tuning.jobs.cancel(job)


def test_cancelling_a_running_job_ends_its_process_and_the_next_one_is_trained(busy):
    live, job = busy
    client = live.client()
    second = start_short(client)
    cancelled = client.fine_tuning.jobs.cancel(job)
    assert (cancelled.status, cancelled.fine_tuned_model) == ("cancelled", None)
    assert ended(client, second.id).status == "succeeded"
    assert client.fine_tuning.jobs.retrieve(job).status == "cancelled"
    rows = [e for e in client.fine_tuning.jobs.list_events(job, limit=1000) if e.type == "metrics"]
    assert len(rows) < STEPS


def test_a_process_that_crashes_fails_the_job_with_the_reason(tmp_path):
    with serving(tmp_path) as live:
        client = live.client()
        first, second = start_many(client), start_short(client)
        when(client, second.id, lambda job: job.status == "queued")
        (tmp_path / "files" / second.training_file / "content").unlink()
        client.fine_tuning.jobs.cancel(first)
        failed = ended(client, second.id)
        assert (failed.status, failed.error.code) == ("failed", "server_error")
        assert failed.error.message.startswith("Training crashed: FileNotFoundError")
        assert client.chat.completions.create(model="tiny", messages=ASK).choices


def test_a_process_that_is_killed_again_and_again_fails_the_job(tmp_path):
    with serving(tmp_path) as live:
        client, before = live.client(), len(forks().started)
        job = start_many(client)
        for number in range(MAX_STARTS):
            when(client, job, lambda _, wanted=before + number: len(forks().started) > wanted)
            os.kill(forks().started[-1], signal.SIGKILL)
        failed = ended(client, job)
        assert (failed.status, failed.error.code) == ("failed", "server_error")
        assert failed.error.message == "Training crashed: the process that trains was ended by signal 9"


# Restarts


def bytes_of(directory: Path) -> dict[str, str]:
    """The hashes of all adapters and results of the only job."""
    (training,) = directory.glob("jobs/*/training")
    files = [*training.glob("step-*/*"), training / "results.csv", training / "state" / "learner.safetensors"]
    return {str(file.relative_to(training)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


@pytest.fixture(scope="module")
def alone(tmp_path_factory) -> dict[str, str]:
    """The hashes of a job of many steps that nothing interrupts."""
    directory = tmp_path_factory.mktemp("alone")
    with serving(directory) as live:
        assert ended(live.client(), start_many(live.client())).status == "succeeded"
    return bytes_of(directory)


def test_a_job_that_is_interrupted_several_times_ends_with_the_same_bytes(tmp_path, alone):
    with serving(tmp_path) as live:
        job = start_many(live.client())
    for step in (1, 9, 20):
        with serving(tmp_path) as live:  # ends with a kill of the process that trains
            wait_for_step(live.client(), job, step)
    with serving(tmp_path) as live:
        done = ended(live.client(), job)
        assert done.status == "succeeded"
        assert live.client().fine_tuning.jobs.list().data == [done]
        messages = [e.message for e in live.client().fine_tuning.jobs.list_events(job, limit=1000)]
    assert "Fine-tuning job continues from its last saved step" in messages
    assert bytes_of(tmp_path) == alone


def test_a_job_whose_process_is_killed_several_times_ends_with_the_same_bytes(tmp_path, alone):
    with serving(tmp_path) as live:
        job = start_many(live.client())
        for step in (1, 9, 20):
            wait_for_step(live.client(), job, step)
            os.kill(forks().started[-1], signal.SIGKILL)
        assert ended(live.client(), job).status == "succeeded"
    assert bytes_of(tmp_path) == alone


def test_models_are_served_again_after_a_restart_unless_the_base_is_another(tmp_path):
    with serving(tmp_path) as live:
        client = live.client()
        job = start_short(client)
        model = ended(client, job.id).fine_tuned_model
    with serving(tmp_path) as live:
        client = live.client()
        assert model in [one.id for one in client.models.list()]
        assert client.chat.completions.create(model=model, messages=ASK).choices
        assert client.fine_tuning.jobs.retrieve(job.id).status == "succeeded"
    with serving(tmp_path, base="other") as live:
        client = live.client()
        assert [one.id for one in client.models.list()] == ["other"]
        with pytest.raises(openai.BadRequestError, match=f"{model} is a model of tiny, but this server has"):
            client.fine_tuning.jobs.create(model=model, training_file=job.training_file)


def test_a_model_whose_weights_were_changed_is_not_served_and_is_named(tmp_path):
    with serving(tmp_path) as live:
        client = live.client()
        job = start_short(client)
        model = ended(client, job.id).fine_tuned_model
    (weights,) = tmp_path.glob("jobs/*/training/step-*/adapter_model.safetensors")
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    notes: list[str] = []
    with serving(tmp_path, notes=notes) as live:
        assert model not in [one.id for one in live.client().models.list()]
    (note,) = notes
    assert note.startswith(f"note: {model} is not served (")
    assert "have hash" in note


def test_a_directory_belongs_to_one_server(tmp_path):
    with serving(tmp_path), pytest.raises(InputError, match="is in use by another server"), serving(tmp_path):
        pass


def test_a_damaged_record_is_named_at_the_start(tmp_path):
    with serving(tmp_path) as live:
        file = upload(live.client(), [talk("a", "b")])
    (tmp_path / "files" / file / "file.json").write_text("{")
    with pytest.raises(InputError, match=r"file\.json is missing or damaged"), serving(tmp_path):
        pass


def test_jobs_made_at_once_are_all_kept(tmp_path):
    async def create(live: Live) -> list[str]:
        async with live.async_client() as client:
            file = upload(live.client(), [{"messages": "wrong"}])
            made = (client.fine_tuning.jobs.create(model="tiny", training_file=file) for _ in range(8))
            return [job.id for job in await asyncio.gather(*made)]

    with serving(tmp_path) as live:
        ids = asyncio.run(create(live))
        assert {ended(live.client(), one).status for one in ids} == {"failed"}
        assert {one.id for one in live.client().fine_tuning.jobs.list()} == set(ids)
