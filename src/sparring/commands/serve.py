"""``sparring serve``: serve a model or a run with an OpenAI-compatible server."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    ExitStack,
    asynccontextmanager,
    suppress,
)
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Self

import msgspec
from fastapi import FastAPI
from rich.console import Console

from sparring.collection.serialization import UNREADABLE
from sparring.commands.listening import (
    address_of,
    chosen_token,
    listen,
    new_token,
    serve_until_ended,
    server_of,
)
from sparring.commands.member_sampling import OWN
from sparring.commands.model_source import ModelSource, find_model, loaded_as
from sparring.config.model import InferenceSettings, ModelSettings
from sparring.config.run import RaySettings
from sparring.core import CallSettings, InputError
from sparring.core.adapters import BASE, STATE_FILE, TRAINED
from sparring.core.types import UNSET
from sparring.engine.adapters import ClientAdapters, Publisher
from sparring.engine.answering import TOKEN_VARIABLE, Answering, ModelFacts
from sparring.engine.engine import EmbeddedEngine
from sparring.engine.server import create_app
from sparring.finetune.jobs.launch import Launch, train_in_process
from sparring.finetune.jobs.records import ServedBase
from sparring.finetune.jobs.routes import FILES, MAX_UPLOAD_BYTES, add_job_routes, refuse_job_routes
from sparring.finetune.jobs.service import JobService
from sparring.finetune.tinker.routes import (
    GRADIENTS,
    MAX_GRADIENTS_BYTES,
    TrainingApi,
    add_training_routes,
)
from sparring.finetune.tinker.samplers import Samplers
from sparring.finetune.tinker.service import TrainingService
from sparring.learn.own_sampling import own_sampling
from sparring.run.assembly import publish_models
from sparring.run.hardware import computes_on_gpu
from sparring.run.progress_views import print_line, working
from sparring.run.run_directory import CHECKPOINT_PREFIX
from sparring.run.run_names import last_part


@dataclass(frozen=True)
class ServedModels:
    """The models that a server has from its start, and their names.

    Attributes:
        adapters: directories of the adapters, by name: the one that the user gave, or of a run with several
            policies their own.
        versions: the version that each adapter's answers carry: from its checkpoint's state, else the step's
            number, else 0.
        aliases: additional names: ``default`` is the first model, and ``base`` the base model.
    """

    base: str
    adapters: dict[str, Path]
    versions: dict[str, int]
    aliases: dict[str, str]

    @classmethod
    def of(cls, source: ModelSource, name: str) -> Self:
        """Return the models of a source that the command line calls ``name``."""
        adapters: dict[str, Path] = {}
        versions: dict[str, int] = {}
        if source.adapter is not None:
            recorded, step = _versions_in(source.adapter)
            trained = [one for one in source.adapters().values() if one not in source.frozen.values()]
            for path in trained:
                alone = path == source.adapter
                served = last_part(name) if alone else path.name
                adapters[served] = path
                versions[served] = recorded.get(TRAINED if alone else path.name, step)
        base = last_part(source.model.name)
        base = BASE if base in adapters else base
        return cls(base, adapters, versions, {TRAINED: next(iter(adapters), base), BASE: base})


class _State(msgspec.Struct):
    """The part of a checkpoint's state that is read: the versions of its policies."""

    versions: dict[str, int]


def _versions_in(checkpoint: Path) -> tuple[dict[str, int], int]:
    """Return the versions by policy that a checkpoint records, and its step; nothing and 0 elsewhere."""
    step = checkpoint.name.removeprefix(CHECKPOINT_PREFIX)
    number = int(step) if step.isdecimal() else 0
    try:
        return msgspec.json.decode((checkpoint / STATE_FILE).read_bytes(), type=_State).versions, number
    except (OSError, *UNREADABLE):
        return {}, number


def serve(
    model_or_run: str,
    *,
    host: str,
    port: int,
    threads: int | None,
    dtype: str | None,
    max_tokens: int,
    max_queue: int,
    sampling: str,
    adapters: Path | None,
    jobs: Path | None,
    training: Path | None,
    ray: RaySettings | None,
    console: Console,
) -> None:
    """Serve until interrupted.

    Args:
        model_or_run: a run (every policy of its newest checkpoint), an adapter directory, or a model.
        host: address to listen at. One that other machines can reach needs a token in SPARRING_API_KEY.
        threads, dtype: of the model; ``None`` for the run's, or float32 for training on a CPU.
        max_tokens: maximum tokens of an answer where a request gives no limit.
        max_queue: maximum requests in progress at an engine; further ones are rejected.
        sampling: ``model`` or ``plain``: what holds where a request leaves temperature and sampling open.
        adapters: the only directory from which clients may load adapters; ``None`` lets them load none.
        jobs: directory of files and fine-tuning jobs; ``None`` for a server without them.
        training: directory of the training API, for an engine in this process; ``None`` for none.
        ray: the cluster of the engines and jobs; ``None`` for an engine in this process.
        console: prints the address and, if this function generates it, the token.

    Raises:
        InputError: the model is not available, host or port cannot be used, or there is no such cluster.
        SparringError: the cluster was lost.
    """
    chosen = chosen_token()
    token = chosen or new_token(host)
    if adapters is not None and not adapters.expanduser().is_dir():
        raise InputError("--adapters", f"{adapters} is not a directory", "Give one that holds adapters.")
    source = find_model(model_or_run)
    models = ServedModels.of(source, model_or_run)
    if training is not None and dtype is None and not computes_on_gpu(source.model.device):
        dtype = "float32"  # in bfloat16, sampling and training differ by up to half a nat a token
    model = loaded_as(source.model, threads, dtype)
    inference = InferenceSettings(max_tokens=max_tokens, max_queue=max_queue)
    own = own_sampling(source.model.name, "--sampling") if sampling == OWN else UNSET
    say = partial(print_line, console)
    with listen(host, port) as listener:

        def application(
            engine: Answering, publisher: Publisher, facts: ModelFacts, launch: Launch
        ) -> FastAPI:
            base = ServedBase.of(models.base, source.model.name, facts)
            trained = None
            if training is not None and isinstance(engine, EmbeddedEngine):
                service = TrainingService(training, engine.model, base, say)
                say(f"training and sampling in {str(engine.model.dtype).removeprefix('torch.')}")
                trained = TrainingApi(service, Samplers(service.store, engine, publisher, base.served))
            app = build_application(
                engine, publisher, base, launch, models, token, adapters, jobs, say, own, trained
            )
            say(f"serving {', '.join(engine.names())} at {address_of(host, listener)} (Ctrl-C ends)")
            if not chosen:
                say(f"clients need the token: export {TOKEN_VARIABLE}={token}")
            return app

        if ray is not None:
            _serve_on_ray(models, listener, ray, model, inference, application, console)
        else:
            published = publish_models(
                model, models.adapters, inference, base=models.base, versions=models.versions, say=say
            )
            engine = published.engine
            app = application(engine, published, engine.facts(), train_in_process)
            with suppress(KeyboardInterrupt):
                asyncio.run(serve_until_ended(server_of(app), listener))
    say("stopped")


def _serve_on_ray(
    models: ServedModels,
    listener: socket.socket,
    ray: RaySettings,
    model: ModelSettings,
    inference: InferenceSettings,
    application: Callable[[Answering, Publisher, ModelFacts, Launch], FastAPI],
    console: Console,
) -> None:
    """Serve until interrupted, also by SIGTERM: the engines and the fine-tuning jobs are on a cluster."""
    from sparring.cluster.served import ServingCluster
    from sparring.learn.model_files import load_chat_tokens, resolve_model

    say = partial(print_line, console)
    tokens = load_chat_tokens(resolve_model(model.name, say), model.template_options)
    cluster = ServingCluster(ray, inference, model, tokens, say)

    async def run() -> None:
        async with cluster.running() as (engines, facts):
            for name, directory in models.adapters.items():
                await engines.publish_in_background(name, directory, models.versions[name])
            engines.publish_base(models.base)
            server = server_of(application(engines, engines, facts, cluster.workers().train))

            def end() -> None:
                server.should_exit = True

            await cluster.guard(engines, serve_until_ended(server, listener), end)

    where = "on this machine" if ray.address is None else f"at {ray.address}"
    with ExitStack() as stack:
        with working(console, f"joining Ray {where}"):
            stack.enter_context(cluster.joined())
        with suppress(KeyboardInterrupt):
            asyncio.run(run())


def build_application(
    engine: Answering,
    publisher: Publisher,
    base: ServedBase,
    launch: Launch,
    models: ServedModels,
    token: str | None,
    root: Path | None = None,
    jobs: Path | None = None,
    say: Callable[[str], None] = lambda line: None,
    own: CallSettings = UNSET,
    training: TrainingApi | None = None,
) -> FastAPI:
    """Return the server's application over an engine, wherever the engine and the jobs are.

    Args:
        engine: answers; it serves ``models``.
        publisher: publishes the adapters of clients and jobs in it.
        launch: trains a job in a process of its own.
        token: the token that clients need, if any.
        root: the directory from which clients may load adapters, under other names.
        jobs: the directory of files and fine-tuning jobs.
        say: prints a line for whoever runs the server.
        own: see :func:`create_app`.
        training: the training API.
    """
    aliases, parts = models.aliases, list[Callable[[], AbstractAsyncContextManager[None]]]()
    reserved = frozenset([*aliases, *engine.names()])
    of_clients = None if root is None else ClientAdapters(publisher, root.expanduser(), reserved)
    service = None
    if jobs is not None:
        place, adapters = jobs.expanduser(), models.adapters
        service = JobService(
            place, publisher, base, adapters=adapters, aliases=aliases, say=say, launch=launch
        )
        parts.append(service.running)
    if training is not None:
        parts.append(training.running)
    app = create_app(
        engine,
        token=token,
        aliases=aliases,
        own=own,
        adapters=of_clients,
        larger_bodies={FILES: MAX_UPLOAD_BYTES, GRADIENTS: MAX_GRADIENTS_BYTES},
        made=service.made if service is not None else lambda name: None,
        running=partial(_all_running, parts),
    )
    if service is not None:
        add_job_routes(app, service)
    else:
        refuse_job_routes(app)
    if training is not None:
        add_training_routes(app, training)
    return app


@asynccontextmanager
async def _all_running(parts: list[Callable[[], AbstractAsyncContextManager[None]]]) -> AsyncIterator[None]:
    async with AsyncExitStack() as stack:
        for part in parts:
            await stack.enter_async_context(part())
        yield
