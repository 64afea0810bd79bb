"""``sparring serve``: models, runs, adapters that are loaded and unloaded, and the command."""

import contextlib
import json
import math
import os
import re
import shutil
import signal
import socket
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import quote

import openai
import pytest
from fastapi import FastAPI
from safetensors.torch import load_file

from live_server import ASK, TOKEN, Live, answer_of, engine_over, pieces_of_work_in_threads, running
from openai_http import httpx2
from sparring.cli.main import main
from sparring.commands.listening import listen, serve_until_ended, server_of
from sparring.commands.model_source import ModelSource, loaded_as
from sparring.commands.serve import ServedModels, build_application
from sparring.config.model import InferenceSettings, ModelSettings
from sparring.core import SparringError
from sparring.engine.engine import EmbeddedEngine
from sparring.finetune.jobs.launch import train_in_process
from sparring.finetune.jobs.records import ServedBase
from sparring.learn.checkpoints import save_adapter
from sparring.learn.policy import BASE, LoraSettings, PolicyModel
from sparring.run.assembly import publish_models
from tiny_models import perturb_adapter, tiny_model

BASE_NAME = tiny_model("llama").name


# Adapters


@pytest.fixture(scope="module")
def adapters(tmp_path_factory) -> dict[str, Path]:
    """Adapters of the tiny model with different weights, ranks, scales and layers."""
    folder = tmp_path_factory.mktemp("adapters")
    shapes = {
        "first": LoraSettings(4, 8.0),
        "second": LoraSettings(4, 8.0),
        "wide": LoraSettings(6, 3.0, ["q_proj", "v_proj"]),
    }
    for seed, (name, lora) in enumerate(shapes.items()):
        policy = PolicyModel(str(tiny_model("llama")), lora)
        perturb_adapter(policy, seed=seed)
        save_adapter(folder / name, policy, "tiny")
    return {name: folder / name for name in shapes}


def logprobs_with(directory: Path, lora: LoraSettings) -> list[float]:
    """Return the log-probabilities of the answer that an engine gives with only this adapter."""
    policy = PolicyModel(str(tiny_model("llama")), lora)
    policy.load_adapter_state(load_file(directory / "adapter_model.safetensors"))
    engine = engine_over(policy)
    return answer_of(engine, 1).completion_logprobs or []


@contextlib.contextmanager
def serving_adapters_of(directory: Path) -> Iterator[Live]:
    """A model without adapters, served as by ``sparring serve --adapters``."""
    source = ModelSource(ModelSettings(name=str(tiny_model("llama")), dtype="float32"))
    engine, app = served_by(source.model.name, source, directory)
    with running(app, engine) as live:
        yield live


@pytest.fixture
def serving_base(tmp_path, adapters) -> Iterator[Live]:
    """A server that may load the three adapters."""
    for name, directory in adapters.items():
        shutil.copytree(directory, tmp_path / name)
    with serving_adapters_of(tmp_path) as live:
        yield live


@pytest.fixture(scope="module")
def shared_base(adapters) -> Iterator[Live]:
    """The same for the tests that leave it as they found it."""
    with serving_adapters_of(adapters["first"].parent) as live:
        yield live


@pytest.fixture
def changed(adapters) -> Iterator[Path]:
    """A copy of the first adapter in the directory of the shared server, which a test changes."""
    place = Path(shutil.copytree(adapters["first"], adapters["first"].with_name("changed")))
    yield place
    shutil.rmtree(place)


def load(live: Live, name: str, path: object, **options) -> httpx2.Response:
    return live.post("/v1/load_lora_adapter", json={"lora_name": name, "lora_path": str(path), **options})


def unload(live: Live, name: str) -> None:
    assert live.post("/v1/unload_lora_adapter", json={"lora_name": name}).status_code == 200


def refusal_of(response: httpx2.Response) -> tuple[int, str]:
    return response.status_code, response.json()["error"]["param"]


def ask_logprobs(live: Live, model: str) -> tuple[list[float], str]:
    raw = live.client().chat.completions.with_raw_response.create(
        model=model, messages=ASK, seed=1, logprobs=True
    )
    content = raw.parse().choices[0].logprobs.content
    return [token.logprob for token in content], raw.headers["x-sparring-policy-version"]


@pytest.mark.parametrize(("name", "lora"), [("first", (4, 8.0)), ("wide", (6, 3.0, ["q_proj", "v_proj"]))])
def test_an_adapter_loaded_at_run_time_gives_the_same_answers_as_alone(serving_base, adapters, name, lora):
    live = serving_base
    base, version = ask_logprobs(live, BASE_NAME)
    assert version == "0"
    response = load(live, "mine", name)
    assert response.status_code == 200
    assert response.text == "Success: LoRA adapter 'mine' added successfully."
    logprobs, version = ask_logprobs(live, "mine")
    assert version == "1"
    assert logprobs == pytest.approx(logprobs_with(adapters[name], LoraSettings(*lora)), abs=1e-5)
    assert logprobs != base
    assert ask_logprobs(live, BASE_NAME) == (base, "0")
    assert [model.id for model in live.client().models.list()] == [BASE_NAME, "mine", "default", "base"]


def test_an_adapter_is_replaced_and_unloaded(serving_base, tmp_path):
    live = serving_base
    assert load(live, "mine", "first").status_code == 200
    before, _ = ask_logprobs(live, "mine")
    refused = load(live, "mine", "second")
    assert refused.status_code == 400
    assert "load_inplace" in refused.json()["error"]["message"]
    assert load(live, "mine", tmp_path / "second", load_inplace=True).status_code == 200
    after, version = ask_logprobs(live, "mine")
    assert after != before
    assert version == "2"
    headers = {"Authorization": f"Bearer {TOKEN}"}
    assert live.get("/adapters/version", headers=headers).json() == {"version": 2}
    assert live.post("/v1/unload_lora_adapter", json={"lora_name": "mine"}).status_code == 200
    with pytest.raises(openai.NotFoundError):
        ask_logprobs(live, "mine")
    assert live.post("/v1/unload_lora_adapter", json={"lora_name": "mine"}).status_code == 404
    assert load(live, "mine", "first").status_code == 200
    assert ask_logprobs(live, "mine") == (before, "3")


def change_config(directory: Path, **fields) -> None:
    path = directory / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))
    (directory / "manifest.json").unlink(missing_ok=True)  # as if another program had written it


@pytest.mark.parametrize(
    "fields",
    [
        {"r": 5},
        {"r": 200_000_000_000},  # more memory than there is
        {"r": "4"},
        {"r": True},
        {"lora_alpha": None},
        {"lora_alpha": math.nan},
        {"lora_alpha": 10**400},
        {"target_modules": r".*\.[qkvo]_proj|.*\.(gate|up|down)_proj"},  # to PEFT a regular expression
        {"target_modules": ["c_attn"]},
        {"target_modules": ["q_proj"]},
        {"use_dora": True},
    ],
    ids=lambda fields: str(fields)[:60],
)
def test_an_invalid_adapter_is_rejected_and_nothing_changes(shared_base, adapters, fields):
    live = shared_base
    with tempfile.TemporaryDirectory(dir=adapters["second"].parent) as folder:
        changed = shutil.copytree(adapters["second"], folder, dirs_exist_ok=True)
        change_config(Path(changed), **fields)
        assert refusal_of(load(live, "mine", changed)) == (400, "adapter")
    assert [model.id for model in live.client().models.list()] == [BASE_NAME, "default", "base"]
    assert load(live, "mine", "first").status_code == 200
    assert live.post("/v1/unload_lora_adapter", json={"lora_name": "mine"}).status_code == 200


def test_an_adapter_of_another_model_or_with_damaged_weights_is_rejected(serving_base, tmp_path):
    live = serving_base
    other = PolicyModel(str(tiny_model("qwen3", tied=False)), LoraSettings(4, 8.0, ["q_proj"]))
    save_adapter(tmp_path / "layers", other, "other")
    change_config(tmp_path / "layers", target_modules=["q_proj", "v_proj"])
    weights = tmp_path / "second" / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-8])
    for path in ("layers", "second", "nothing", "", "~nosuch-user/x"):
        assert refusal_of(load(live, "mine", path or ".")) == (400, "adapter")
    assert [model.id for model in live.client().models.list()] == [BASE_NAME, "default", "base"]


@pytest.mark.parametrize("name", ["default", "base", BASE_NAME])
def test_clients_cannot_load_adapters_under_the_servers_names(shared_base, name):
    live = shared_base
    before = ask_logprobs(live, name)
    for options in ({}, {"load_inplace": True}):
        assert refusal_of(load(live, name, "first", **options)) == (400, "lora_name")
    assert live.post("/v1/unload_lora_adapter", json={"lora_name": name}).status_code in (400, 404)
    assert ask_logprobs(live, name) == before


def test_clients_can_neither_replace_nor_unload_the_served_run(adapters, tmp_path):
    shutil.copytree(adapters["second"], tmp_path / "second")
    engine, app = served_by("kuhn", source_of(adapters["first"]), tmp_path)
    with running(app, engine) as live:
        before = ask_logprobs(live, "kuhn")
        assert refusal_of(load(live, "kuhn", "second", load_inplace=True)) == (400, "lora_name")
        unloaded = live.post("/v1/unload_lora_adapter", json={"lora_name": "kuhn"})
        assert refusal_of(unloaded) == (400, "lora_name")
        assert ask_logprobs(live, "kuhn") == before


def test_only_adapters_inside_the_directory_can_be_loaded(serving_base, adapters, tmp_path):
    live = serving_base
    (tmp_path / "link").symlink_to(adapters["first"])
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    outside = [adapters["first"], f"../{tmp_path.name}/../nothing", "/", "link", "circle", "first\0"]
    for path in outside:
        assert refusal_of(load(live, "mine", path)) == (400, "lora_path")
    assert load(live, "mine", tmp_path / "first").status_code == 200
    assert load(live, "yours", "second/../first").status_code == 200


FILES = ("adapter_config.json", "adapter_model.safetensors", "delivery.json", "manifest.json")


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("kind", ["a pipe", "a link out", "a link to a pipe", "a device", "a directory"])
def test_a_clients_files_are_regular_ones_in_the_directory(shared_base, changed, tmp_path, name, kind):
    outside = shutil.copytree(changed, tmp_path / "outside")
    (outside / "delivery.json").write_text("{}")
    file = changed / name
    file.unlink(missing_ok=True)
    if kind == "a link out":
        file.symlink_to(outside / name)
    elif kind == "a device":
        file.symlink_to("/dev/zero")
    elif kind == "a directory":
        file.mkdir()
    else:
        place = file if kind == "a pipe" else changed / "pipe"
        os.mkfifo(place)
        if place != file:
            file.symlink_to(place)
    refused = load(shared_base, "mine", "changed")
    assert refusal_of(refused) == (400, "lora_path")
    assert name in refused.json()["error"]["message"]
    assert load(shared_base, "mine", "second").status_code == 200
    unload(shared_base, "mine")


def test_a_link_within_the_directory_is_followed(serving_base, tmp_path):
    (tmp_path / "latest").symlink_to(tmp_path / "second")
    weights = tmp_path / "first" / "adapter_model.safetensors"
    weights.rename(tmp_path / "weights.safetensors")
    weights.symlink_to(tmp_path / "weights.safetensors")
    for path in ("latest", "first"):
        assert load(serving_base, f"my-{path}", path).status_code == 200


@pytest.mark.parametrize(
    "name",
    [
        *("", "x" * 129, "a\nb", "\x1b[2Jx", "a b", "\u202eabc", "\ud800", "-x"),
        *("\0", "na\u00efve", "ftjob-1\r\n", "org//model", "org/"),
    ],
)
def test_a_name_of_an_adapter_is_short_and_of_few_characters(shared_base, name):
    before = shared_base.get("/v1/models").text
    refused = post_json(shared_base, {"lora_name": name, "lora_path": "first"})
    assert refusal_of(refused) == (400, "lora_name")
    assert refused.json()["error"]["message"].isprintable()
    assert len(refused.json()["error"]["message"]) < 300
    assert shared_base.get("/v1/models").text == before


def post_json(live: Live, body: dict[str, str]) -> httpx2.Response:
    """Send a body as JSON in ASCII, which can have any character."""
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {TOKEN}"}
    return live.post("/v1/load_lora_adapter", content=json.dumps(body), headers=headers)


@pytest.mark.parametrize("name", ["org/model@v1.2", "a:b_c+d-e", "x" * 128])
def test_usual_names_are_served_under_themselves(shared_base, name):
    assert load(shared_base, name, "first").status_code == 200
    assert ask_logprobs(shared_base, name)[0]
    assert shared_base.post("/v1/unload_lora_adapter", json={"lora_name": name}).status_code == 200


@pytest.mark.parametrize(
    "path", ["x" * 5000, "x" * 300, "a/" * 400, "a\nb", "\x1b[2J", "\0", "\ud800", "y/" * 600]
)
def test_a_path_that_no_adapter_can_have_is_one_line(shared_base, path):
    refused = post_json(shared_base, {"lora_name": "mine", "lora_path": path})
    assert refused.status_code == 400
    assert refused.json()["error"]["message"].isprintable()
    assert len(refused.json()["error"]["message"]) < 1200


@pytest.mark.parametrize("field", ["\ud800", "\x1b[2J\n", "x" * 100_000, "\u202eevil"])
def test_words_of_a_file_or_client_come_back_short_and_printable(shared_base, changed, field):
    change_config(changed, **{field: 5})
    by_file = post_json(shared_base, {"lora_name": "mine", "lora_path": "changed"})
    path = f"/v1/models/{quote(field[:60_000], errors='replace')}"
    of_client = shared_base.get(path, headers={"Authorization": f"Bearer {TOKEN}"})
    for refused in (by_file, of_client):
        error = refused.json()["error"]
        assert refused.status_code in (400, 404)
        assert error["message"].isprintable()
        assert len(error["message"]) <= 4000


@pytest.mark.parametrize(
    ("delivered", "problem"),
    [
        ({"sha256": "0" * 64}, "the learner's have 000000"),
        ({"canary": -1.0}, "the learner's is -1.0000"),
        ({"canary": None}, "delivery.json is damaged"),
        ({}, None),
    ],
    ids=str,
)
def test_an_adapter_is_what_its_delivery_file_says(shared_base, changed, delivered, problem):
    policy = PolicyModel(str(tiny_model("llama")), LoraSettings(4, 8.0))
    perturb_adapter(policy, seed=3)
    save_adapter(changed, policy, "tiny", version=7)
    file = changed / "delivery.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | delivered))
    assert load(shared_base, "mine", "first").status_code == 200
    before = ask_logprobs(shared_base, "mine")
    response = load(shared_base, "mine", "changed", load_inplace=True)
    if problem is None:
        assert response.status_code == 200
    else:
        assert refusal_of(response) == (400, "adapter")
        assert problem in response.json()["error"]["message"]
        assert ask_logprobs(shared_base, "mine") == before, "it goes on answering"
    unload(shared_base, "mine")


def test_without_a_directory_no_adapter_can_be_loaded(adapters):
    engine, app = served_by(BASE_NAME, ModelSource(ModelSettings(name=str(tiny_model("llama")))))
    with running(app, engine) as live:
        assert load(live, "mine", adapters["first"]).status_code == 404


def test_other_requests_are_answered_while_an_adapter_is_read(serving_base):
    def load_it() -> None:
        assert load(serving_base, "mine", "first").status_code == 200

    reads = pieces_of_work_in_threads(serving_base, load_it, lambda: ask_logprobs(serving_base, BASE_NAME))
    assert reads == 2, "the header and the weights"


# Runs


def source_of(adapter: Path) -> ModelSource:
    return ModelSource(ModelSettings(name=str(tiny_model("llama"))), adapter)


def served_by(
    name: str, source: ModelSource, directory: Path | None = None
) -> tuple[EmbeddedEngine, FastAPI]:
    """Publish the models of a source as ``sparring serve`` does."""
    models, inference = ServedModels.of(source, name), InferenceSettings()
    published = publish_models(
        source.model, models.adapters, inference, base=models.base, versions=models.versions
    )
    engine = published.engine
    base = ServedBase.of(models.base, source.model.name, engine.facts())
    return engine, build_application(engine, published, base, train_in_process, models, TOKEN, directory)


async def test_a_run_is_served_under_its_name_with_its_step_as_version(adapters, tmp_path):
    step = tmp_path / "step-000120"
    step.symlink_to(adapters["first"])
    engine, _ = served_by("kuhn", source_of(step))
    assert engine.names() == ["kuhn", BASE_NAME]
    assert (await engine.complete(ASK, model="kuhn")).policy_version == 120
    assert (await engine.complete(ASK, model=BASE_NAME)).policy_version == 0
    assert await engine.get_policy_version() == 120


def test_a_checkpoint_of_a_run_is_served_under_the_runs_name_and_its_own(adapters, tmp_path):
    (tmp_path / "kuhn").mkdir()
    for given in (f"{tmp_path}/kuhn@best", "kuhn@best"):
        engine, _ = served_by(given, source_of(adapters["first"]))
        assert engine.names() == ["kuhn@best", BASE_NAME]


def test_all_policies_of_a_run_are_served(adapters, tmp_path):
    step = tmp_path / "step-000003"
    step.mkdir()
    (step / "proposer").symlink_to(adapters["first"])
    (step / "solver").symlink_to(adapters["wide"])
    (step / "state.json").write_text('{"step": 3, "versions": {"solver": 2}}')
    engine, app = served_by("two", source_of(step))
    assert engine.names() == ["proposer", "solver", BASE_NAME]
    with running(app, engine) as live:
        answers = {name: ask_logprobs(live, name) for name in ("proposer", "solver", "default", "base")}
    assert answers["proposer"] == answers["default"]
    assert len({str(answers[name]) for name in ("proposer", "solver", "base")}) == 3
    assert [answers[name][1] for name in ("proposer", "solver")] == ["3", "2"]


@pytest.mark.parametrize(
    ("state", "version"),
    [
        ('{"step": 8, "versions": {"default": 5}}', 5),
        ('{"step": 8}', 8),
        ('{"versions": "none"}', 8),
        ("{", 8),
    ],
)
async def test_a_run_of_one_policy_has_the_version_in_its_state_or_otherwise_its_step(
    adapters, tmp_path, state, version
):
    step = tmp_path / "step-000008"
    shutil.copytree(adapters["first"], step)
    (step / "state.json").write_text(state)
    engine, _ = served_by("kuhn", source_of(step))
    assert (await engine.complete(ASK, model="kuhn")).policy_version == version


def test_if_a_run_has_its_models_name_the_base_keeps_its_general_name(adapters):
    engine, _ = served_by(BASE_NAME, source_of(adapters["first"]))
    assert engine.names() == [BASE_NAME, BASE]


# The command


def test_threads_and_type_are_those_of_the_run_unless_they_are_given():
    of_run = ModelSettings(threads=3, dtype="bfloat16")
    assert loaded_as(of_run, None, None) == of_run
    assert loaded_as(of_run, 1, "float32") == ModelSettings(threads=1, dtype="float32")


def test_the_command_serves_until_it_is_interrupted(tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("SPARRING_API_KEY", raising=False)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]

    def use_and_interrupt() -> None:
        try:
            use_command(port, capsys)
        finally:
            os.kill(os.getpid(), signal.SIGINT)

    with ThreadPoolExecutor() as pool:
        used = pool.submit(use_and_interrupt)
        arguments = ["serve", str(tiny_model("llama")), "--port", str(port), "--threads", "1"]
        assert main(arguments) == 0
        used.result()
    assert capsys.readouterr().out == "stopped\n"


def use_command(port: int, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"http://127.0.0.1:{port}"
    connection = None
    while connection is None:
        with contextlib.suppress(httpx2.ConnectError):
            connection = httpx2.get(f"{url}/health", timeout=60)
    printed = capsys.readouterr().out
    assert f"serving {BASE_NAME} at {url}/v1 (Ctrl-C ends)\n" in printed
    token = re.search(r"SPARRING_API_KEY=(\S+)\n", printed)[1]
    client = openai.OpenAI(base_url=f"{url}/v1", api_key=token, max_retries=0)
    answer = client.chat.completions.create(model=BASE_NAME, messages=ASK)
    assert answer.usage.completion_tokens > 0
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="x").models.list()


def test_a_token_that_no_client_can_send_is_rejected(monkeypatch, capsys):
    monkeypatch.setenv("SPARRING_API_KEY", "two words")
    assert main(["serve", str(tiny_model("llama"))]) == 2
    assert capsys.readouterr().err.startswith("error: SPARRING_API_KEY: ")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "a-host"])
def test_other_machines_are_admitted_only_with_a_token_set_by_the_user(host, monkeypatch, capsys):
    monkeypatch.delenv("SPARRING_API_KEY", raising=False)
    assert main(["serve", str(tiny_model("llama")), "--host", host]) == 2
    line = f"error: --host: {host} lets other machines in, and you have set no token."
    assert capsys.readouterr().err == f"{line} Set SPARRING_API_KEY to a secret\n"


async def test_a_server_that_cannot_start_is_an_error():
    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI):
        raise RuntimeError("no memory")
        yield

    server = server_of(FastAPI(lifespan=lifespan))
    words = "the server could not start"
    with listen("127.0.0.1", 0) as listener, pytest.raises(SparringError, match=words):
        await serve_until_ended(server, listener)


def test_the_error_for_a_port_in_use_is_one_line(capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["serve", str(tiny_model("llama")), "--port", str(port)]) == 2
    error = capsys.readouterr().err
    assert error == (
        f"error: --port: the server cannot listen at 127.0.0.1:{port} (Address already in use). "
        "Choose another port or host\n"
    )


@pytest.mark.parametrize("host", ["a..b", "a" * 64])
def test_the_error_for_an_impossible_host_name_is_one_line(host, monkeypatch, capsys):
    monkeypatch.setenv("SPARRING_API_KEY", "a-token")
    assert main(["serve", str(tiny_model("llama")), "--host", host]) == 2
    assert (
        capsys.readouterr().err
        == f"error: --host: '{host}' is not a host name. Give a host name or an address\n"
    )
