"""The routes of the training API, below ``/api/v1``."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import msgspec
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response

from sparring.core.errors import NOT_JSON
from sparring.core.text import one_line
from sparring.engine.server_errors import ApiError
from sparring.finetune.tinker import requests
from sparring.finetune.tinker.listings import Listings
from sparring.finetune.tinker.messages import GradientRequest
from sparring.finetune.tinker.samplers import Samplers
from sparring.finetune.tinker.service import LONGEST_WAIT, TrainingService
from sparring.finetune.tinker.store import SavedWeights
from sparring.finetune.tinker.training_model import (
    FORWARD_BACKWARD,
    LOAD,
    OPTIM_STEP,
    SAVE,
    SAVE_FOR_SAMPLER,
    UNKNOWN,
)

ROOT = "/api/v1"
GRADIENTS = f"{ROOT}/{FORWARD_BACKWARD}"
MAX_GRADIENTS_BYTES = 16 * 2**20
"""Maximum size of a request for gradients; the SDK divides what is larger than 5 MB."""
PROTOBUF, JSON = "application/x-protobuf", "application/json"


class _Head(msgspec.Struct):
    """What names a request of a model; the rest is checked when it is its turn."""

    model_id: str
    seq_id: int


@dataclass(frozen=True)
class TrainingApi:
    """What the routes call."""

    service: TrainingService
    samplers: Samplers

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Take requests while the body runs."""
        async with self.service.running():
            try:
                yield
            finally:
                self.samplers.close()


def add_training_routes(app: FastAPI, api: TrainingApi) -> None:
    """Add all routes to the server's application."""
    service, samplers = api.service, api.samplers
    _add_constants(app, service)
    _add_sessions(app, service, samplers)
    _add_training(app, service)
    _add_sampling(app, samplers)
    _add_futures(app, service, samplers)
    _add_listings(app, Listings(service.store, service.base))
    _add_unknown(app, service)


def _add_constants(app: FastAPI, service: TrainingService) -> None:
    @app.get(f"{ROOT}/healthz")
    async def healthz() -> Response:
        return JSONResponse({"status": "ok"})

    @app.post(f"{ROOT}/client/config")
    @app.post(f"{ROOT}/client/dynamic_config")
    async def config() -> Response:
        return JSONResponse({"pjwt_auth_enabled": False, "proto_compress_fwdbwd": False})

    @app.post(f"{ROOT}/telemetry")
    async def telemetry() -> Response:
        return JSONResponse({"status": "accepted"})

    @app.get(f"{ROOT}/get_server_capabilities")
    async def capabilities() -> Response:
        model = {
            "model_name": service.base.name,
            "max_context_length": service.policy.context_length,
            "trainable": True,
            "sampleable": True,
        }
        return JSONResponse({"supported_models": [model]})


def _add_sessions(app: FastAPI, service: TrainingService, samplers: Samplers) -> None:
    @app.post(f"{ROOT}/create_session")
    async def create_session(body: requests.CreateSession) -> Response:
        return JSONResponse({"session_id": service.create_session(body), "type": "create_session"})

    @app.post(f"{ROOT}/session_heartbeat")
    async def heartbeat(body: requests.OfSession) -> Response:
        service.store.session(body.session_id)
        return JSONResponse({"type": "session_heartbeat"})

    @app.post(f"{ROOT}/sessions/{{session_id}}/finish")
    async def finish(session_id: str) -> Response:
        service.store.session(session_id)
        return Response(status_code=204)

    @app.post(f"{ROOT}/create_sampling_session")
    async def create_sampling_session(body: requests.CreateSampler) -> Response:
        if body.base_model is not None:
            service.check_base(body.base_model)
        sampler = samplers.create(body)
        return JSONResponse({"sampling_session_id": sampler, "type": "create_sampling_session"})


def _add_training(app: FastAPI, service: TrainingService) -> None:
    @app.post(f"{ROOT}/create_model")
    async def create_model(body: requests.CreateModel) -> Response:
        name = service.create_model(body)
        return JSONResponse({"request_id": f"{name}/0", "model_id": name})

    @app.post(GRADIENTS)
    async def forward_backward(request: Request) -> Response:
        if request.headers.get("content-encoding"):
            raise ApiError(415, "Content-Encoding: send the body as it is")
        body = await request.body()
        read = GradientRequest.read(body)
        return _accepted(service, read.model_id, read.seq_id, FORWARD_BACKWARD, body)

    @app.post(f"{ROOT}/{OPTIM_STEP}")
    async def optim_step(request: Request) -> Response:
        return await _in_turn(service, OPTIM_STEP, request)

    @app.post(f"{ROOT}/{SAVE}")
    async def save_weights(request: Request) -> Response:
        return await _in_turn(service, SAVE, request)

    @app.post(f"{ROOT}/{SAVE_FOR_SAMPLER}")
    async def save_for_sampler(request: Request) -> Response:
        return await _in_turn(service, SAVE_FOR_SAMPLER, request)

    @app.post(f"{ROOT}/{LOAD}")
    async def load_weights(body: requests.LoadWeights, request: Request) -> Response:
        if body.model_id is not None:
            return await _in_turn(service, LOAD, request)
        name = service.load_new(body, await request.body())
        return JSONResponse({"request_id": f"{name}/0", "model_id": name})


async def _in_turn(service: TrainingService, kind: str, request: Request) -> Response:
    body = await request.body()
    head = _head(body)
    return _accepted(service, head.model_id, head.seq_id, kind, body)


def _head(body: bytes) -> _Head:
    try:
        return msgspec.json.decode(body, type=_Head)
    except (msgspec.DecodeError, *NOT_JSON) as error:
        raise ApiError(400, f"body: {error}. Give model_id and seq_id") from error


def _accepted(service: TrainingService, name: str, seq_id: int, kind: str, body: bytes) -> Response:
    if not 0 < seq_id < 10**9:
        raise ApiError(400, "seq_id: number the requests of a model from 1 on", param="seq_id")
    request_id = service.accept(name, seq_id, kind, body)
    return JSONResponse({"request_id": request_id, "model_id": name})


def _add_sampling(app: FastAPI, samplers: Samplers) -> None:
    @app.post(f"{ROOT}/asample")
    async def asample(body: requests.Sample) -> Response:
        request_id, sequences = samplers.submit(body)
        return JSONResponse({"request_id": request_id, "sample_sequence_ids": sequences})


def _add_futures(app: FastAPI, service: TrainingService, samplers: Samplers) -> None:
    @app.post(f"{ROOT}/retrieve_future")
    async def retrieve_future(body: requests.Retrieve) -> Response:
        source = samplers if ":sample:" in body.request_id else service
        answer = await source.answer(body.request_id, LONGEST_WAIT)
        if answer is None:
            waiting = {"type": "try_again", "request_id": body.request_id, "queue_state": "active"}
            return JSONResponse(waiting)
        return Response(answer.body, media_type=PROTOBUF if answer.is_protobuf else JSON)


def _add_listings(app: FastAPI, listings: Listings) -> None:
    @app.post(f"{ROOT}/get_info")
    async def get_info(body: requests.OfModel) -> Response:
        return JSONResponse(listings.info(body.model_id))

    @app.post(f"{ROOT}/weights_info")
    async def weights_info(body: requests.OfPath) -> Response:
        return JSONResponse(listings.weights_info(SavedWeights.at(body.tinker_path)))

    @app.get(f"{ROOT}/samplers/{{sampler_id}}")
    async def sampler(sampler_id: str) -> Response:
        return JSONResponse(listings.sampler(sampler_id))

    @app.get(f"{ROOT}/training_runs")
    async def training_runs(limit: int = 20, offset: int = 0) -> Response:
        return JSONResponse(listings.runs(limit, offset))

    @app.get(f"{ROOT}/training_runs/{{model_id}}")
    async def training_run(model_id: str) -> Response:
        return JSONResponse(listings.run(model_id))

    @app.get(f"{ROOT}/training_runs/{{model_id}}/checkpoints")
    async def checkpoints(model_id: str) -> Response:
        return JSONResponse({"checkpoints": listings.checkpoints(model_id)})

    @app.delete(f"{ROOT}/training_runs/{{model_id}}/checkpoints/{{kind}}/{{name}}")
    async def delete(model_id: str, kind: str, name: str) -> Response:
        listings.delete(SavedWeights.at(f"tinker://{model_id}/{kind}/{name}"))
        return Response(status_code=204)

    @app.get(f"{ROOT}/checkpoints")
    async def all_checkpoints(limit: int = 100, offset: int = 0) -> Response:
        return JSONResponse(listings.all_checkpoints(limit, offset))

    @app.get(f"{ROOT}/sessions")
    async def sessions(limit: int = 20, offset: int = 0) -> Response:
        return JSONResponse({"sessions": listings.sessions(limit, offset)})

    @app.get(f"{ROOT}/sessions/{{session_id}}")
    async def session(session_id: str) -> Response:
        return JSONResponse(listings.session(session_id))


def _add_unknown(app: FastAPI, service: TrainingService) -> None:
    """Add the route of what a model may be asked for and is not served; it comes after all others."""

    @app.post(f"{ROOT}/{{request_type:path}}")
    async def unknown(request_type: str, request: Request) -> Response:
        what = one_line(request_type)[:100]
        try:
            head = _head(await request.body())
        except ApiError as error:
            raise ApiError(404, f"POST {ROOT}/{what}: this server has no such request") from error
        return _accepted(service, head.model_id, head.seq_id, UNKNOWN, what.encode())
