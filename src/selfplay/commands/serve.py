"""``selfplay serve``: serve a model or a run with an OpenAI-compatible server."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

from fastapi import FastAPI
from rich.console import Console

from selfplay.commands.application import Backend, build_application
from selfplay.commands.listening import (
    address_of,
    chosen_token,
    listen,
    new_token,
    serve_until_ended,
    server_of,
)
from selfplay.commands.model_source import ModelSource, find_model
from selfplay.commands.served_models import ServedModels, version_of
from selfplay.config.model import InferenceSettings, LoraSection, ModelSettings
from selfplay.config.ray import RaySettings
from selfplay.core import InputError
from selfplay.inference.engine import EmbeddedEngine
from selfplay.inference.openai_client import TOKEN_VARIABLE
from selfplay.jobs.checked_engine_loader import CheckedEngineLoader, base_of
from selfplay.jobs.launch import LocalWorker
from selfplay.learning.policy import BASE, PolicyModel
from selfplay.training import assembly
from selfplay.training.progress_views import print_line
from selfplay.training.served_adapters import ServedAdapters


def serve(
    model_or_run: str,
    *,
    host: str,
    port: int,
    threads: int | None,
    dtype: str | None,
    max_tokens: int,
    max_queue: int,
    adapters: Path | None,
    jobs: Path | None,
    ray: RaySettings | None,
    console: Console,
) -> None:
    """Serve until interrupted.

    Args:
        model_or_run: a run (every policy of its newest checkpoint), an adapter directory, or a model.
        host: address to listen at. One that other machines can reach needs a token in SELFPLAY_API_KEY.
        port: port to listen at; 0 for any free one.
        threads: threads of the model's computation; ``None`` for the run's setting, or the fastest number.
        dtype: type of the base weights; ``None`` for the run's setting.
        max_tokens: maximum tokens of an answer where a request gives no limit.
        max_queue: maximum requests in progress at an engine; further ones are rejected.
        adapters: the only directory from which clients may load adapters; ``None`` lets them load none.
        jobs: directory of files and fine-tuning jobs; ``None`` for a server without them.
        ray: the cluster of the engines and jobs; ``None`` for an engine in this process.
        console: prints the address and, if this function generates it, the token.

    Raises:
        InputError: the model is not available, host or port cannot be used, or there is no such cluster.
        SelfplayError: the cluster was lost.
    """
    chosen = chosen_token()
    token = chosen or new_token(host)
    if adapters is not None and not adapters.expanduser().is_dir():
        raise InputError("--adapters", f"{adapters} is not a directory", "Give one that holds adapters.")
    source = find_model(model_or_run)
    model = served_model(source.model, threads, dtype)
    with listen(host, port) as listener:

        def announce(names: list[str]) -> None:
            address = address_of(host, listener)
            print_line(console, f"serving {', '.join(names)} at {address} (Ctrl-C ends)")
            if not chosen:
                print_line(console, f"clients need the token: export {TOKEN_VARIABLE}={token}")

        if ray is not None:
            from selfplay.commands.serve_on_ray import serve_on_ray

            serve_on_ray(
                source,
                ServedModels.of(source, model_or_run),
                listener,
                ray=ray,
                model=model,
                inference=InferenceSettings(max_tokens=max_tokens, max_queue=max_queue),
                token=token,
                root=adapters,
                jobs=jobs,
                announce=announce,
                console=console,
            )
        else:
            say = partial(print_line, console)
            policy = assembly.build_policy(model, LoraSection(rank=1), 0, say)
            engine = EmbeddedEngine(policy, max_tokens=max_tokens, max_queue=max_queue)
            app = build_app(engine, policy, model_or_run, source, token, adapters, jobs, say)
            announce(engine.names())
            with suppress(KeyboardInterrupt):
                asyncio.run(serve_until_ended(server_of(app), listener))
    print_line(console, "stopped")


def build_app(
    engine: EmbeddedEngine,
    policy: PolicyModel,
    name: str,
    source: ModelSource,
    token: str | None,
    root: Path | None = None,
    jobs: Path | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> FastAPI:
    """Publish the models of ``source`` and return the application of a server in this process.

    ``default`` is an alias of the first model served, and ``base`` of the base model. Clients may load
    adapters from ``root``, under names other than these. Files and fine-tuning jobs are in ``jobs``.

    Raises:
        InputError: an adapter cannot be loaded, or ``jobs`` cannot be used.
    """
    models = ServedModels.of(source, name)
    loader = ServedAdapters(policy, engine)
    for adapter_name, directory in models.adapters.items():
        loader.load(adapter_name, directory, version_of(source, directory))
    engine.publish(models.base, BASE, 0)
    checked_loader = CheckedEngineLoader(engine, policy, loader, models.base)
    base = base_of(policy, models.base, source.model.name)
    backend = Backend(engine, loader, checked_loader, base, LocalWorker.start)
    return build_application(backend, models, token, root, jobs, say)


def served_model(model: ModelSettings, threads: int | None, dtype: str | None) -> ModelSettings:
    """Return the settings of a model with those of the command line.

    Raises:
        InputError: there is no such type.
    """
    if dtype not in (None, "auto", "float32", "bfloat16"):
        raise InputError("--dtype", f"there is no type {dtype!r}", "Use auto, float32 or bfloat16")
    given = {"threads": threads, "dtype": dtype}
    return model.model_copy(update={name: value for name, value in given.items() if value is not None})
