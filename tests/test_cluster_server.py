"""The server over the engines of a cluster: engines in this process, called as Ray's actors are."""

import asyncio
import contextlib
import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import openai
import pytest
from safetensors.torch import load_file

from job_server import ASK, ended, forks, serving, start_many, start_short
from job_server import told as with_news
from live_server import TOKEN, Live, running
from sparring.cluster.engines.service import EngineService
from sparring.cluster.job_workers import JobActor
from sparring.cluster.served import ServingEngines
from sparring.collection.local_handle import LocalHandle
from sparring.commands.serve import ServedModels, build_application
from sparring.core import SparringError
from sparring.core.adapters import ADAPTER_FILE
from sparring.engine.answering import EngineCall, ModelFacts
from sparring.engine.engine import EmbeddedEngine
from sparring.engine.hosts import EmbeddedHost, EngineRequest
from sparring.finetune.jobs.records import ServedBase
from sparring.finetune.jobs.service import JobService
from sparring.learn.checkpoints import save_adapter, write_delivery
from sparring.learn.model_files import load_chat_tokens
from sparring.learn.policy import LoraSettings, PolicyModel
from tiny_models import CONTEXT_LENGTH, perturb_adapter, tiny_model

MODEL = str(tiny_model("llama"))
FEW = {"n_epochs": 3, "batch_size": 20, "learning_rate_multiplier": 200}
SHAPES = {"first": LoraSettings(4, 8.0), "wide": LoraSettings(6, 3.0, ["q_proj", "v_proj"])}


@dataclass
class Spread:
    """A server over several engines, and these."""

    live: Live
    hosts: list[EmbeddedHost]
    engines: ServingEngines
    notes: list[str]

    @property
    def client(self) -> openai.OpenAI:
        return self.live.client()


@contextlib.contextmanager
def spread(directory: Path, number: int = 2, max_adapters: int = 8) -> Iterator[Spread]:
    """A server whose engines load adapters of clients from ``directory``, which has the jobs too."""
    hosts = [
        EmbeddedHost(
            lambda: PolicyModel(MODEL, LoraSettings(1)),
            lambda policy: EmbeddedEngine(policy, max_tokens=8, max_queue=500, max_cached_tokens=4096),
            max_adapters,
            of_a_run=False,
        )
        for _ in range(number)
    ]
    handles = [LocalHandle(EngineService(host)) for host in hosts]
    vocabulary_size = PolicyModel(MODEL, LoraSettings(1)).vocabulary_size
    facts = ModelFacts(MODEL, "float32", "cpu", 1, "none", CONTEXT_LENGTH, vocabulary_size)
    engines = ServingEngines(handles, load_chat_tokens(MODEL), max_tokens=8, facts=facts, patience=60.0)
    engines.publish_base("tiny")
    base = ServedBase.of("tiny", MODEL, facts)
    models = ServedModels("tiny", {}, {}, {"base": "tiny", "default": "tiny"})
    notes: list[str] = []
    with pytest.MonkeyPatch.context() as patch:  # tests wait for the news of this server's jobs too
        patch.setattr(
            "sparring.commands.serve.JobService", lambda *to, **by: with_news(JobService(*to, **by))
        )
        app = build_application(
            engines, engines, base, forks().start, models, TOKEN, directory, directory / "jobs", notes.append
        )
    with running(app, engines) as live:
        yield Spread(live, hosts, engines, notes)


def answer(client: openai.OpenAI, model: str, seed: int = 1) -> tuple[str, list[float]]:
    choice = client.chat.completions.create(model=model, messages=ASK, seed=seed, logprobs=True).choices[0]
    return choice.message.content, [token.logprob for token in choice.logprobs.content]


def answers_of_each(server: Spread, model: str) -> list[tuple[str, list[float]]]:
    """Return what each engine answers to the same request."""

    async def ask(host: EmbeddedHost) -> tuple[str, list[float]]:
        adapter = server.engines.adapters[model]
        response = await host.complete(EngineRequest(0, adapter, EngineCall(ASK, seed=1)))
        return response.text, response.completion_logprobs or []

    return [asyncio.run_coroutine_threadsafe(ask(host), server.live.loop).result() for host in server.hosts]


def adapter_bytes(directory: Path) -> dict[str, bytes]:
    return {
        path.parent.name: path.read_bytes() for path in directory.glob(f"jobs/*/training/*/{ADAPTER_FILE}")
    }


def save(directory: Path, name: str, seed: int, *, described: bool = False) -> Path:
    policy = PolicyModel(MODEL, SHAPES[name])
    perturb_adapter(policy, seed=seed)
    save_adapter(directory / name, policy, "tiny")
    if described:
        write_delivery(directory / name, policy, "default", 1)
    return directory / name


def load(server: Spread, name: str, path: str, **options):
    return server.live.post("/v1/load_lora_adapter", json={"lora_name": name, "lora_path": path, **options})


def test_a_jobs_model_is_that_of_a_local_server_and_is_served_from_every_engine(tmp_path):
    with serving(tmp_path / "local") as live:
        job = ended(live.client(), start_many(live.client(), **FEW))
        expected = answer(live.client(), job.fine_tuned_model)
        base = answer(live.client(), "tiny")
    with spread(tmp_path / "spread") as server:
        job = ended(server.client, start_many(server.client, **FEW))
        assert job.error is None
        name = job.fine_tuned_model
        for host in server.hosts:  # before any request that names it; the job has three checkpoints
            assert host.stats()["adapters"] == 3
        assert answer(server.client, "base") == (base[0], pytest.approx(base[1], abs=1e-5))
        assert base != expected
        for text, logprobs in [answer(server.client, name), *answers_of_each(server, name)]:
            assert (text, logprobs) == (expected[0], pytest.approx(expected[1], abs=1e-5))
        names = [model.id for model in server.client.models.list()]
    assert adapter_bytes(tmp_path / "spread" / "jobs") == adapter_bytes(tmp_path / "local")
    with spread(tmp_path / "spread") as server:
        assert [model.id for model in server.client.models.list()] == names
        for text, logprobs in answers_of_each(server, name):
            assert (text, logprobs) == (expected[0], pytest.approx(expected[1], abs=1e-5))
        server.client.models.delete(name)
        with pytest.raises(openai.NotFoundError):
            answer(server.client, name)


def test_adapters_of_any_shape_are_loaded_replaced_and_found_again_after_making_room(tmp_path):
    for seed, name in enumerate(SHAPES):
        save(tmp_path, name, seed)
    with spread(tmp_path, max_adapters=1) as server:
        for name in SHAPES:
            assert load(server, name, name).status_code == 200
        first, wide = (answer(server.client, name) for name in SHAPES)
        assert len({first[0], wide[0], answer(server.client, "tiny")[0]}) == 3
        assert answer(server.client, "first") == (first[0], pytest.approx(first[1], abs=1e-5))
        assert load(server, "first", "wide").status_code == 400
        replaced = load(server, "first", "wide", load_inplace=True)
        assert int(replaced.headers["x-sparring-policy-version"]) == 3
        assert answer(server.client, "first")[0] == wide[0]
        assert load(server, "other", "../elsewhere").status_code == 400
        (tmp_path / "of another model").mkdir()
        for file in (tmp_path / "first").iterdir():
            shutil.copy(file, tmp_path / "of another model")
        config = json.loads((tmp_path / "first" / "adapter_config.json").read_text()) | {"r": 5}
        (tmp_path / "of another model" / "adapter_config.json").write_text(json.dumps(config))
        refused = load(server, "other", "of another model")
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "adapter")
        assert "other" not in server.engines.names()


def test_an_adapter_that_was_changed_since_fails_only_the_requests_that_name_it(tmp_path):
    save(tmp_path, "first", 1, described=True)
    save(tmp_path, "wide", 2)
    with spread(tmp_path, max_adapters=1) as server:
        assert load(server, "first", "first").status_code == 200
        assert load(server, "wide", "wide").status_code == 200
        (tmp_path / "first" / ADAPTER_FILE).write_bytes(b"other weights")
        with pytest.raises(openai.InternalServerError, match="first version 1 was not delivered"):
            answer(server.client, "first")
        assert answer(server.client, "wide")
        assert answer(server.client, "tiny")
        refused = load(server, "again", "first")
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "adapter")


def test_streams_large_seeds_and_impossible_requests(tmp_path):
    with spread(tmp_path, number=1) as server:
        client = server.client
        whole = client.chat.completions.create(model="tiny", messages=ASK, seed=7, n=2, temperature=0.5)
        parts: dict[int, str] = {0: "", 1: ""}
        for chunk in client.chat.completions.create(
            model="tiny", messages=ASK, seed=7, n=2, temperature=0.5, stream=True
        ):
            for choice in chunk.choices:
                parts[choice.index] += choice.delta.content or ""
        assert parts == {choice.index: choice.message.content for choice in whole.choices}
        assert answer(client, "tiny", seed=2**64 + 5)[0] == answer(client, "tiny", seed=5)[0]
        with pytest.raises(openai.BadRequestError, match="context"):
            client.chat.completions.create(model="tiny", messages=ASK, max_tokens=CONTEXT_LENGTH)
        with pytest.raises(openai.NotFoundError):
            answer(client, "nobody")


@pytest.mark.slow  # test_finetune_jobs_server has it without one
def test_a_job_starts_from_the_model_of_another_on_a_cluster(tmp_path):
    with spread(tmp_path) as server:
        first = ended(server.client, start_short(server.client).id)
        second = ended(server.client, start_short(server.client, first.fine_tuned_model).id)
        assert second.error is None
        weights = [
            load_file(tmp_path / "jobs" / "jobs" / job.id / "training" / "step-000001" / ADAPTER_FILE)
            for job in (first, second)
        ]
        assert any((weights[0][key] != weights[1][key]).any() for key in weights[0])


def test_a_worker_that_does_not_see_the_jobs_directory_says_so(tmp_path):
    with pytest.raises(SparringError, match=r"is not visible at .* all machines share"):
        JobActor().train(str(tmp_path / "elsewhere"))


HEAD = ("id", "created", "model")
ASKED = {
    "stop strings": ("chat", {"stop": ["e", "1"], "max_tokens": 8}),
    "a shape": ("chat", {"top_p": 0.5, "temperature": 0.8, "logit_bias": {"70": 2}}),
    "further shapes": ("chat", {"extra_body": {"top_k": 3, "min_p": 0.01, "stop_token_ids": [75]}}),
    "likeliest tokens": ("chat", {"temperature": 0, "logprobs": True, "top_logprobs": 5}),
    "log-probabilities of the draw": (
        "chat",
        {"temperature": 0.7, "logprobs": True, "extra_body": {"return_token_ids": True}},
    ),
    "a stream": ("chat", {"stream": True, "stop": "e", "n": 2}),
    "scored prompts": (
        "text",
        {"prompt": ["rules", [70, 71, 72]], "echo": True, "logprobs": 2, "max_tokens": 0},
    ),
    "texts": ("text", {"prompt": [70, 71], "n": 2, "logprobs": 1, "max_tokens": 4}),
}


def told(value: object) -> object:
    """What a response says, without its head and with log-probabilities that may differ by rounding."""
    if isinstance(value, dict):
        return {key: told(one) for key, one in value.items() if key not in HEAD}
    if isinstance(value, list):
        return [told(one) for one in value]
    return pytest.approx(value, abs=1e-4) if isinstance(value, float) else value


def said_of(client: openai.OpenAI, kind: str, options: dict) -> dict:
    asked = {"model": "base", "seed": 3, **options}
    create = client.completions.create if kind == "text" else client.chat.completions.create
    answer = create(**asked) if kind == "text" else create(messages=ASK, **asked)
    if not options.get("stream"):
        return answer.model_dump()
    texts: dict[int, str] = {}
    for chunk in answer:
        choice = chunk.choices[0]
        texts[choice.index] = texts.get(choice.index, "") + (choice.delta.content or "")
    return texts


def test_the_server_of_a_cluster_answers_all_parameters_as_the_local_one_does(tmp_path):
    with serving(tmp_path / "local") as live:
        expected = {name: told(said_of(live.client(), *asked)) for name, asked in ASKED.items()}
    with spread(tmp_path / "spread") as server:
        for name, asked in ASKED.items():
            answer = {key: value for key, value in said_of(server.client, *asked).items() if key not in HEAD}
            assert answer == expected[name], name
        refused = server.live.post("/v1/completions", json={"model": "base", "prompt": [10**6]})
        assert refused.status_code == 400
        missing = load(server, "tiny-too", "nowhere")
        assert (missing.status_code, missing.json()["error"]["message"].count("\n")) == (503, 0)
