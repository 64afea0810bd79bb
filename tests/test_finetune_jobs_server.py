"""Files and fine-tuning jobs of the server, as the ``openai`` package sees them."""

import csv
import functools
import inspect
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from job_server import (
    ASK,
    base_policy,
    dpo,
    ended,
    preference,
    serving,
    start_endless,
    start_short,
    supervised,
    talk,
    upload,
)
from live_server import TOKEN, Live, running
from matrices import one_of_each
from sparring.engine.engine import EmbeddedEngine
from sparring.engine.server import create_app
from sparring.finetune.jobs.routes import refuse_job_routes
from sparring.learn.checkpoints import load_adapter, save_adapter
from sparring.learn.policy import BASE, LoraSettings, PolicyModel
from tiny_models import perturb_adapter, tiny_model

PAGE = Path(__file__).parents[1] / "docs" / "howto-fine-tuning-jobs.md"
RESOURCES = (
    "files",
    "fine_tuning.jobs",
    "fine_tuning.jobs.checkpoints",
    "fine_tuning.checkpoints.permissions",
    "fine_tuning.alpha.graders",
)


@pytest.fixture(scope="module")
def live(tmp_path_factory) -> Iterator[Live]:
    with serving(tmp_path_factory.mktemp("jobs")) as live:
        yield live


def calls_of(client: openai.OpenAI, path: str) -> list[str]:
    """Return the names of the calls of one of the package's resources."""
    resource = functools.reduce(getattr, path.split("."), client)
    own = [name for name in vars(type(resource)) if not name.startswith(("_", "with_"))]
    return [name for name in own if inspect.isfunction(vars(type(resource))[name])]


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
    assert finished.fine_tuned_model.startswith("ft:tiny:sparring:first:")
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


def test_a_models_creation_is_that_of_its_checkpoint(live, finished):
    client = live.client()
    for one in client.fine_tuning.jobs.checkpoints.list(finished.id):
        assert client.models.retrieve(one.fine_tuned_model_checkpoint).created == one.created_at
        assert finished.created_at <= one.created_at <= finished.finished_at


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
        first, second = start_endless(client), start_short(client, model)
        with pytest.raises(openai.ConflictError, match=f"is in use by {second.id}"):
            client.models.delete(model)
        for one in (first, second.id):
            client.fine_tuning.jobs.cancel(one)
        assert client.models.delete(model).deleted
        assert [one.id for one in client.models.list()] == ["tiny", earlier, "base"]
        found = client.fine_tuning.jobs.checkpoints.list(job.id).data
        assert [one.fine_tuned_model_checkpoint for one in found] == [earlier]
        for name in (model, "nobody"):
            with pytest.raises(openai.NotFoundError):
                client.models.delete(name)
        with pytest.raises(openai.BadRequestError, match="was not made by a fine-tuning job"):
            client.models.delete("tiny")
    notes: list[str] = []
    with serving(tmp_path, notes=notes) as live:
        assert [one.id for one in live.client().models.list()] == ["tiny", earlier, "base"]
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


WRONG_LINES = [
    ([talk("a", "b"), {"messages": []}], "supervised", r"line 2: messages: List should have at least 1"),
    ([talk("a", "b"), talk("c" * 300, "d")], "supervised", r"line 2: it has \d+ tokens, but the model's"),
    ([talk("a", "b")], "dpo", "line 1: input: Field required"),
    ([preference("a", "b", "c"), preference("a", "b", "b")], "dpo", "line 2: the preferred and the"),
]


@pytest.mark.parametrize(("param", "wrong"), one_of_each(["training_file", "validation_file"], WRONG_LINES))
def test_a_wrong_line_fails_the_job_with_its_number_and_reason(live, wrong, param):
    lines, method, problem = wrong
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
            with pytest.raises(openai.BadRequestError, match="sparring serve MODEL --jobs DIR") as caught:
                call()
            assert caught.value.code == "not_supported"


def test_the_example_of_the_page_runs(live, tmp_path):
    (code,) = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {}
    exec(code, names)
    (tmp_path / "data.jsonl").write_text(json.dumps(talk("2 + 2 = 5", "reject")) + "\n")
    model = names["fine_tune"](live.client(), tmp_path / "data.jsonl")
    assert re.fullmatch("ft:tiny:sparring:verifier:[0-9a-f]{8}", model)
