"""The training API over real HTTP. tests/with_clients asks it with Tinker's own SDK."""

import contextlib
import shutil

import numpy as np
import pytest
import torch
from google.protobuf import descriptor_pb2
from hypothesis import given
from hypothesis import strategies as st

from sparring.core import InputError
from sparring.core.manifest import sealed, unsealed
from sparring.finetune.tinker import samplers, training_model
from sparring.finetune.tinker import service as service_module
from sparring.finetune.tinker.protobuf import as_double, field, fields
from sparring.finetune.tinker.store import Store
from training_client import (
    Client,
    Model,
    base_policy,
    datum,
    drawn_of,
    floats,
    loss_of,
    serving,
    tensor,
    texts,
)


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return tmp_path_factory.mktemp("training")


@pytest.fixture(scope="module")
def client(directory):
    with serving(directory) as client:
        yield client


@pytest.fixture
def session(client):
    return Client(client.live)


def test_a_model_learns_and_its_samples_are_from_what_it_saved(session):
    model = session.create()
    before = model.call("save_weights_for_sampler", sampling_session_seq_id=0)["sampling_session_id"]
    losses = []
    for _ in range(3):
        losses.append(model.gradients(texts()))
        assert model.step()["metrics"]["grad_norm"] > 0
    assert losses == sorted(losses, reverse=True)
    assert model.gradients(texts(), forward_only=True) < losses[-1]
    after = model.call("save_weights_for_sampler", path="after")["path"]
    sampler = session.post(
        "create_sampling_session", session_id=session.session, sampling_session_seq_id=1, model_path=after
    )["sampling_session_id"]
    ids = list(b"the rules are short, so")
    old, new = (
        session.sample(one, ids, num_samples=2, prompt_logprobs=True, topk_prompt_logprobs=2)
        for one in (before, sampler)
    )
    assert [len(one) for one in drawn_of(new)] == [5, 5]
    scores = [floats(dict(fields(one))[2]) for one in (old, new)]
    assert all(np.isnan(one[0]) and len(one) == len(ids) for one in scores)
    assert np.sum(scores[1][1:]) > np.sum(scores[0][1:]) + 1
    likeliest = dict(fields(dict(fields(new))[3]))
    assert (likeliest[3], likeliest[4]) == (2, len(ids))


def test_gradients_add_up_until_a_step(session):
    one, other = session.create(0), session.create(1)
    one.gradients(texts()[:1])
    one.gradients(texts()[1:])
    other.gradients(texts())
    norms = [model.step()["metrics"]["grad_norm"] for model in (one, other)]
    assert norms[0] == pytest.approx(norms[1], rel=1e-4)
    assert "forward_backward" in one.step()["error"]


def test_requests_are_taken_in_their_order_and_once(session):
    in_order, mixed = session.create(0), session.create(1)
    first, second = texts()[:1], texts()[1:]
    losses = [in_order.gradients(first), in_order.step(), in_order.gradients(second)]
    later = session.ask("forward_backward", content=mixed.gradients_body(second, "cross_entropy", 3))
    mixed.seq_id = 1
    step = mixed.send("optim_step", adam_params={"learning_rate": 0.01, "eps": 1e-8})
    for _ in range(2):
        begin = session.ask("forward_backward", content=mixed.gradients_body(first, "cross_entropy", 1))
    found = [session.retrieve(one) for one in (begin.json()["request_id"], step, later.json()["request_id"])]
    assert loss_of(found[0]) == losses[0]
    assert found[1] == losses[1]
    assert loss_of(found[2]) == losses[2]


def test_requests_after_one_that_never_comes_fail(session, monkeypatch):
    monkeypatch.setattr(service_module, "GAP_SECONDS", 0.0)
    model = session.create()
    model.seq_id = 1
    assert "request 1 of" in model.gradients(texts())["error"]
    assert isinstance(model.gradients(texts()), float)


def test_a_request_that_is_not_served_fails_alone_and_the_next_one_does_not_wait_for_it(session):
    model = session.create()
    assert "save_weights_external" in model.call("save_weights_external", path="x")["error"]
    assert isinstance(model.gradients(texts()), float)


def test_weights_are_loaded_with_and_without_the_optimizer(session):
    model = session.create()
    model.gradients(texts())
    model.step()
    path = model.call("save_weights", path="one")["path"]
    losses = []
    for number, optimizer in enumerate([True, False], 1):
        asked = {"session_id": session.session, "model_seq_id": number}
        made = session.post("load_weights", **asked, path=path, optimizer=optimizer)
        loaded = Model(session, session.retrieve(made["request_id"])["model_id"])
        losses.append([loaded.gradients(texts()), loaded.step(), loaded.gradients(texts())])
    losses.append([model.gradients(texts()), model.step(), model.gradients(texts())])
    assert losses[0] == losses[2]
    assert losses[1][:2] == losses[2][:2]
    assert losses[1][2] != losses[2][2]
    assert model.call("load_weights", path=path, optimizer=True)["path"] == path
    assert model.gradients(texts()) == losses[2][0]
    assert "already" in model.call("save_weights", path="one")["error"]
    assert model.call("save_weights", path="one", overwrite=True)["path"] == path
    listed = session.get(f"training_runs/{model.id}/checkpoints")["checkpoints"]
    assert [one["tinker_path"] for one in listed] == [path]
    assert session.post("weights_info", tinker_path=path)["lora_rank"] == 2
    assert model.id in session.get(f"sessions/{session.session}")["training_run_ids"]


def test_what_was_answered_is_there_after_a_kill(session, directory, tmp_path):
    """A copy of the directory is what a kill leaves: here a state, and requests that it does not hold."""
    model = session.create()
    answers = [model.gradients(texts()), model.step(), model.call("save_weights", path="saved")]
    answers += [model.gradients(texts()), model.step(), model.gradients(texts()[1:])]
    shutil.copytree(directory, tmp_path / "copy")
    expected = [model.step(), model.gradients(texts())]
    with serving(tmp_path / "copy") as other:
        again = Client(other.live, session.session)
        found = [again.retrieve(f"{model.id}/{number + 1}") for number in range(len(answers))]
        assert [loss_of(one) if isinstance(one, bytes) else one for one in found] == answers
        resumed = Model(again, model.id, len(answers))
        assert [resumed.step(), resumed.gradients(texts())] == expected


def test_models_beyond_those_in_memory_lose_nothing(session, monkeypatch):
    monkeypatch.setattr(service_module, "MAX_RESIDENT", 2)
    models = [session.create(number, rank=number + 1) for number in range(4)]
    alone = [[model.gradients(texts()), model.step(), model.gradients(texts())] for model in models[:1]]
    mixed = [[one.gradients(texts())] for one in models[1:]]
    for found, model in zip(mixed, models[1:], strict=True):
        found += [model.step(), model.gradients(texts())]
    assert all(one[2] < one[0] for one in [*alone, *mixed])
    assert [session.post("get_info", model_id=one.id)["lora_rank"] for one in models] == [1, 2, 3, 4]


WRONG_DATA = {
    "no targets": (field(1, field(1, field(1, b"\1\0\0\0"))), "target_tokens"),
    "another length": (datum([1, 2], [2], weights=[1.0]), "shape"),
    "no weights": (datum([1], [2]), "weights"),
    "unknown input": (datum([1], [2], weights=[1.0], mask=[1.0]), "mask"),
    "unknown token": (datum([10**6], [2], weights=[1.0]), "tokens"),
    "unknown target": (datum([1], [-1], weights=[1.0]), "tokens"),
    "too long": (datum([1] * 999, [2] * 999, weights=[1.0] * 999), "context"),
    "an image": (field(1, field(2, b"")), "text"),
    "another type": (datum([1], [2]) + field(2, field(1, "weights") + field(2, tensor([1], "<f8"))), "type"),
    "sparse": (datum([1], [2]) + field(2, field(1, "weights") + field(2, field(2, b""))), "sparse"),
    "not finite": (datum([1], [2], weights=[float("inf")]), "finite"),
    "broken": (b"\xff", "broken"),
    "half a tensor": (
        datum([1], [2]) + field(2, field(1, "weights") + field(2, field(1, b"abc") + field(3, 1))),
        "broken",
    ),
}


def test_a_wrong_request_fails_alone_and_says_why(session):
    model = session.create()
    for wrong, problem in WRONG_DATA.values():
        found = model.gradients([wrong])
        assert problem in found["error"]
        assert found["category"] == "user"
    assert "stable_reinforce" in model.gradients(texts(), "stable_reinforce")["error"]
    for eps in (-1, 0):
        assert "eps" in model.call("optim_step", adam_params={"eps": eps})["error"]
    assert "nesterov" in model.call("optim_step", adam_params={"nesterov": True})["error"]
    for path in ("../../x", "a/b", ".hidden", "", "~000000001"):
        assert "path" in model.call("save_weights", path=path)["error"]
    for path in ("/etc/passwd", f"tinker://{model.id}/weights/../x", f"tinker://{model.id}/weights/none"):
        assert "path" in model.call("load_weights", path=path, optimizer=True)["error"]
    assert isinstance(model.gradients(texts()), float)


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("create_model", {"lora_config": {"rank": 10**9}}, 400),
        ("create_model", {"base_model": "another"}, 400),
        ("create_model", {"session_id": "0" * 32}, 404),
        ("create_model", {"optimizer_config": {"type": "dimuon"}}, 400),
        ("create_model", {"lora_config": {"rank": 1, "train_mlp": False, "train_attn": False}}, 400),
        ("create_model", {"user_metadata": {"text": "x" * 2**17}}, 400),
        ("optim_step", {"seq_id": 1}, 400),
        ("optim_step", {"model_id": "../../x", "seq_id": 1}, 404),
        ("forward_backward", {}, 400),
        ("create_sampling_session", {"sampling_session_seq_id": 0, "model_path": "/etc"}, 400),
        ("asample", {"record_stability_info": True}, 400),
        ("retrieve_future", {"request_id": "x"}, 410),
        ("retrieve_future", {"request_id": "x:sample:0"}, 410),
        ("session_heartbeat", {"session_id": "../models"}, 404),
    ],
)
def test_impossible_requests_are_refused(session, path, body, status):
    usual = {"session_id": session.session}
    if path == "create_model":
        usual |= {"model_seq_id": 7, "base_model": "tiny", "lora_config": {"rank": 1}}
    if path == "create_sampling_session":
        usual |= {"sampling_session_seq_id": 7}
    needed = {} if path in ("optim_step", "retrieve_future", "asample") else usual
    answer = session.ask(path, json=needed | body)
    assert answer.status_code == status, answer.text
    assert answer.json()["error"]["message"]


@pytest.mark.parametrize("value", ["NaN", r'"\ud800"', "[" * 500 + "]" * 500])
def test_metadata_that_could_not_be_listed_is_refused(session, value):
    body = f'{{"user_metadata": {{"key": {value}}}}}'
    answer = session.ask("create_session", content=body, headers={"Content-Type": "application/json"})
    if answer.status_code == 200:
        assert session.get(f"sessions/{answer.json()['session_id']}")["user_metadata"]
    else:
        assert "user_metadata" in answer.json()["error"]["message"]


def test_a_model_whose_creation_was_killed_is_not_listed(session, directory):
    model = session.create()
    (directory / "models" / f"{session.session}.train.8" / "requests").mkdir(parents=True)
    listed = session.get(f"sessions/{session.session}")["training_run_ids"]
    assert listed == [model.id]
    runs = session.get("training_runs?limit=1000")["training_runs"]
    assert model.id in [one["training_run_id"] for one in runs]


def test_a_number_belongs_to_one_model(session):
    model = session.create(rank=2)
    assert session.create(rank=2).id == model.id
    asked = {"session_id": session.session, "model_seq_id": 0}
    other = {**asked, "base_model": "tiny", "lora_config": {"rank": 3}}
    path = model.call("save_weights", path="one")["path"]
    for answer in (
        session.ask("create_model", json=other),
        session.ask("load_weights", json={**asked, "path": path, "optimizer": True}),
    ):
        assert answer.status_code == 400
        assert "another model" in answer.json()["error"]["message"]


def test_weights_saved_anew_under_a_deleted_name_are_those_that_answer(session):
    model, scores = session.create(), []
    for number in range(2):
        path = model.call("save_weights_for_sampler", path="same")["path"]
        asked = {"session_id": session.session, "sampling_session_seq_id": number, "model_path": path}
        sampler = session.post("create_sampling_session", **asked)["sampling_session_id"]
        answer = session.sample(sampler, list(b"the rules"), prompt_logprobs=True)
        scores.append(floats(dict(fields(answer))[2])[1:])
        session.delete(f"training_runs/{model.id}/checkpoints/sampler_weights/same")
        model.gradients(texts())
        model.step()
    assert scores[0] != scores[1]


def test_damaged_weights_are_not_loaded(session, directory):
    model = session.create()
    path = model.call("save_weights", path="one")["path"]
    file = directory / "models" / model.id.replace(":", ".") / "weights" / "one" / "learner.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    assert "damaged" in model.call("load_weights", path=path, optimizer=True)["error"]


def test_a_damaged_model_fails_alone(session, directory, tmp_path):
    broken, well = session.create(0), session.create(1)
    for model in (broken, well):
        model.call("save_weights", path="one")
    folders = [one.id.replace(":", ".") for one in (broken, well)]
    for kind, name in (("sessions", f"{session.session}.json"), *(("models", one) for one in folders)):
        source, copy = directory / kind / name, tmp_path / kind / name
        copy.parent.mkdir(exist_ok=True)
        shutil.copytree(source, copy) if source.is_dir() else shutil.copy(source, copy)
    state = tmp_path / "models" / folders[0] / "state" / "state.json"
    state.write_bytes(state.read_bytes()[:-5])
    with serving(tmp_path) as other:
        again = Client(other.live, session.session)
        assert "damaged" in again.retrieve(f"{broken.id}/1")["error"]
        body = {"model_id": broken.id, "seq_id": 2, "adam_params": {}}
        refused = again.ask("optim_step", json=body)
        assert refused.status_code == 400  # the SDK would repeat others
        assert "damaged" in refused.json()["error"]["message"]
        assert isinstance(Model(again, well.id, 1).gradients(texts()), float)


def test_answers_are_kept_however_often_the_state_is_saved(session, monkeypatch):
    monkeypatch.setattr(training_model, "SAVE_REQUESTS", 1)
    model = session.create()
    ids = [model.send_gradients(texts()[:1], "none") for _ in range(4)]
    assert all("none" in session.retrieve(one)["error"] for one in ids)


def test_the_newest_answers_are_kept_as_far_as_there_is_room(session, monkeypatch):
    monkeypatch.setattr(training_model, "KEPT_BYTES", 200)
    monkeypatch.setattr(samplers, "MAX_ANSWER_BYTES", 1)
    model = session.create()
    ids = [model.send_gradients(texts()[:1], forward_only=True) for _ in range(4)]
    sampler = session.post("create_sampling_session", session_id=session.session, sampling_session_seq_id=0)[
        "sampling_session_id"
    ]
    found = session.retrieve(ids[-1])
    assert len(found) < 200 < 2 * len(found)
    drawn = session.sample(sampler, [1], 0), session.sample(sampler, [1], 1)
    assert all(isinstance(one, bytes) for one in drawn)
    states = [session.ask("retrieve_future", json={"request_id": one}).status_code for one in ids]
    assert states == [410, 410, 200, 200]


def test_a_failure_of_the_engine_is_told(session, monkeypatch):
    async def fails(call):
        raise RuntimeError("no memory")

    sampler = session.post("create_sampling_session", session_id=session.session, sampling_session_seq_id=0)[
        "sampling_session_id"
    ]
    monkeypatch.setattr(session.live.engine, "answer", fails)
    assert "no memory" in session.sample(sampler, [1])["error"]


def test_the_key_is_the_server_s_token(session):
    for key, status in (("tml-the-token", 200), ("the-token", 200), ("tml-wrong", 401), ("", 401)):
        found = session.live.get("/api/v1/healthz", headers={"X-API-Key": key})
        assert found.status_code == status


def test_a_directory_with_other_files_or_in_use_is_refused(directory, client, tmp_path):
    with pytest.raises(InputError, match="in use"):
        Store(directory)
    (tmp_path / "thesis").write_text("x")
    with pytest.raises(InputError, match="thesis"):
        Store(tmp_path)


@given(st.text(), st.binary(), st.integers(0, 2**31 - 1), st.floats(allow_nan=False))
def test_fields_are_those_of_protobuf(text, content, number, double):
    option = descriptor_pb2.UninterpretedOption(
        identifier_value=text, positive_int_value=number, double_value=double, string_value=content
    )
    own = field(3, text) + field(4, number) + field(6, double) + field(7, content)
    assert option.SerializeToString() == own
    found = dict(fields(own))
    assert found[3] == text.encode()
    assert (found[4], as_double(found[6]), found[7]) == (number, double, content)


@given(st.binary(max_size=40))
def test_a_broken_message_raises_a_value_error(content):
    with contextlib.suppress(ValueError):
        assert all(number >= 0 for number, _ in fields(content))


def test_models_are_not_trained_on_in_another_type_than_they_began_in(tmp_path):
    with serving(tmp_path) as client:
        model = Client(client.live).create()
        model.gradients(texts())
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    fix = r"Write --dtype float32, or name another directory$"
    refused = pytest.raises(InputError, match=rf"^--dtype: .* train in float32, this is bfloat16\. {fix}")
    with refused, serving(tmp_path, base_policy(torch.bfloat16)):
        pass
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    record = next(tmp_path.glob("models/*/model.json"))
    older = unsealed(record.read_bytes())
    del older["dtype"]
    record.write_bytes(sealed(older))
    with serving(tmp_path, base_policy(torch.bfloat16)) as client:
        assert isinstance(Model(client, model.id, 1).gradients(texts()), float)
