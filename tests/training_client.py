"""A server of the training API over a tiny model, and a client that speaks its wire without the SDK."""

import contextlib
import functools
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from live_server import TOKEN, Live, running
from openai_http import httpx2
from sparring.engine.engine import EmbeddedEngine
from sparring.engine.published_adapters import PublishedAdapters
from sparring.engine.server import create_app
from sparring.finetune.jobs.records import ServedBase
from sparring.finetune.tinker.protobuf import as_bytes, as_double, field, fields
from sparring.finetune.tinker.routes import (
    GRADIENTS,
    MAX_GRADIENTS_BYTES,
    TrainingApi,
    add_training_routes,
)
from sparring.finetune.tinker.samplers import Samplers
from sparring.finetune.tinker.service import TrainingService
from sparring.learn.policy import BASE, LoraSettings, PolicyModel
from tiny_models import tiny_model

ADAM = {"learning_rate": 0.01, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8}


def base_policy(dtype: torch.dtype = torch.float32) -> PolicyModel:
    return PolicyModel(str(tiny_model("llama")), LoraSettings(1), dtype=dtype)


@contextlib.contextmanager
def serving(directory: Path, policy: PolicyModel | None = None) -> Iterator["Client"]:
    """A server over ``directory``, with a model of its own; yields a client of a session of its own."""
    policy = policy or base_policy()
    engine = EmbeddedEngine(policy, max_tokens=8)
    engine.publish("tiny", BASE, 0)
    base = ServedBase.of("tiny", policy.model_name, engine.facts())
    service = TrainingService(directory, policy, base, print)
    api = TrainingApi(service, Samplers(service.store, engine, PublishedAdapters(engine), "tiny"))
    larger = {GRADIENTS: MAX_GRADIENTS_BYTES}
    app = create_app(engine, token=TOKEN, larger_bodies=larger, running=api.running)
    add_training_routes(app, api)
    with running(app, engine) as live:
        yield Client(live)


def serve_forever(directory: Path, policy: PolicyModel, pipe: Any) -> None:
    """Serve in this process until it is killed; send the address once it answers."""
    with serving(directory, policy) as client:
        pipe.send(client.live.url)
        threading.Event().wait()


def tensor(values: Sequence[float], kind: str = "<f4", shape: Sequence[int] = ()) -> bytes:
    dtype = {"<f4": 1, "<i8": 2}.get(kind, 9)
    packed = b"".join(bytes([size]) for size in shape)
    content = field(1, np.array(values, kind).tobytes()) + field(3, dtype)
    return content + (field(4, packed) if packed else b"")


def datum(tokens: Sequence[int], targets: Sequence[int], **inputs: Sequence[float]) -> bytes:
    """A sample, as the SDK sends it."""
    content = field(1, field(1, field(1, np.array(tokens, "<i4").tobytes())))
    given = {"target_tokens": tensor(targets, "<i8")} | {key: tensor(one) for key, one in inputs.items()}
    return content + b"".join(field(2, field(1, key) + field(2, value)) for key, value in given.items())


def text_datum(text: str) -> bytes:
    ids = [byte % 250 for byte in text.encode()]
    return datum(ids[:-1], ids[1:], weights=[1.0] * (len(ids) - 1))


class Client:
    """A session at a server."""

    def __init__(self, live: Live, session: str = "") -> None:
        self.live = live
        self.session = session or self.post("create_session", tags=[])["session_id"]

    def ask(self, path: str, /, **options: Any) -> Any:
        headers = {"X-API-Key": f"tml-{TOKEN}", **options.pop("headers", {})}
        return self.live.post(f"/api/v1/{path}", headers=headers, timeout=60, **options)

    def post(self, path: str, /, **body: Any) -> Any:
        answer = self.ask(path, json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def get(self, path: str) -> Any:
        answer = self.live.get(f"/api/v1/{path}", headers={"X-API-Key": TOKEN})
        assert answer.status_code == 200, answer.text
        return answer.json()

    def delete(self, path: str) -> None:
        url = f"{self.live.url}/api/v1/{path}"
        answer = httpx2.delete(url, headers={"X-API-Key": TOKEN}, verify=False)
        assert answer.status_code == 204, answer.text

    def retrieve(self, request_id: str) -> Any:
        """Wait for an answer: JSON, or the content of a protobuf message."""
        answer = self.ask("retrieve_future", json={"request_id": request_id})
        assert answer.status_code == 200, answer.text
        is_protobuf = answer.headers["content-type"] == "application/x-protobuf"
        return answer.content if is_protobuf else answer.json()

    def create(self, number: int = 0, rank: int = 2, seed: int = 5) -> "Model":
        asked = {"session_id": self.session, "model_seq_id": number, "base_model": "tiny"}
        made = self.post("create_model", **asked, lora_config={"rank": rank, "seed": seed})
        return Model(self, self.retrieve(made["request_id"])["model_id"])

    def sample(self, sampler: str, ids: Sequence[int], seq_id: int = 0, **more: Any) -> Any:
        params = {"max_tokens": 5, "seed": 3, **more.pop("params", {})}
        prompt = {"chunks": [{"type": "encoded_text", "tokens": list(ids)}]}
        asked = self.post(
            "asample",
            sampling_session_id=sampler,
            seq_id=seq_id,
            prompt=prompt,
            sampling_params=params,
            **more,
        )
        return self.retrieve(asked["request_id"])


class Model:
    """A model of a client, which numbers its requests."""

    def __init__(self, client: Client, model_id: str, seq_id: int = 0) -> None:
        self.client = client
        self.id = model_id
        self.seq_id = seq_id

    def send_gradients(self, data: Sequence[bytes], loss: str = "cross_entropy", **more: Any) -> str:
        self.seq_id += 1
        body = self.gradients_body(data, loss, self.seq_id, **more)
        answer = self.client.ask("forward_backward", content=body)
        assert answer.status_code == 200, answer.text
        return answer.json()["request_id"]

    def gradients_body(
        self, data: Sequence[bytes], loss: str, seq_id: int, *, forward_only: bool = False
    ) -> bytes:
        head = field(1, self.id) + field(2, seq_id) + field(4, loss) + field(6, int(forward_only))
        return head + b"".join(field(3, one) for one in data)

    def gradients(self, data: Sequence[bytes], loss: str = "cross_entropy", **more: Any) -> Any:
        """The loss, or the answer of a failed request."""
        answer = self.client.retrieve(self.send_gradients(data, loss, **more))
        return loss_of(answer) if isinstance(answer, bytes) else answer

    def send(self, path: str, /, **body: Any) -> str:
        self.seq_id += 1
        asked = {"model_id": self.id, "seq_id": self.seq_id, **body}
        return self.client.post(path, **asked)["request_id"]

    def call(self, path: str, /, **body: Any) -> Any:
        return self.client.retrieve(self.send(path, **body))

    def step(self, **values: float) -> Any:
        return self.call("optim_step", adam_params={**ADAM, **values})


def loss_of(answer: bytes) -> float:
    """The loss in an answer to a request for gradients."""
    metrics = (dict(fields(as_bytes(value))) for number, value in fields(answer) if number == 3)
    (loss,) = (as_double(one[2]) for one in metrics if one[1] == b"loss:sum")
    return loss


def drawn_of(answer: bytes) -> list[list[int]]:
    """The token ids of each sample."""
    sequences = [dict(fields(as_bytes(value))) for number, value in fields(answer) if number == 1]
    return [np.frombuffer(as_bytes(one[2]), "<i4").tolist() for one in sequences]


def floats(packed: int | bytes) -> list[float]:
    return np.frombuffer(as_bytes(packed), "<f4").tolist()


@functools.cache
def texts() -> list[bytes]:
    return [text_datum(f"the rules are short, so {end}") for end in ("play", "pass", "play on")]
