"""The server's application over an engine, wherever the engine and the jobs are."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fastapi import FastAPI

from selfplay.commands.client_adapters import ClientAdapters
from selfplay.commands.served_models import ServedModels
from selfplay.inference.answering import AdapterLoader, Answering
from selfplay.inference.server import create_app
from selfplay.jobs.launch import Launch
from selfplay.jobs.queue import CheckedLoader
from selfplay.jobs.records import ServedBase
from selfplay.jobs.routes import FILES, MAX_UPLOAD_BYTES, add_job_routes, refuse_job_routes
from selfplay.jobs.service import JobService


@dataclass(frozen=True)
class Backend:
    """What is behind the application.

    Attributes:
        engine: answers; it serves the models that the server has from its start.
        loader: loads the adapters of clients into it.
        checked_loader: loads the adapters of jobs into it.
        base: the base model.
        launch: starts the process that trains a job.
    """

    engine: Answering
    loader: AdapterLoader
    checked_loader: CheckedLoader
    base: ServedBase
    launch: Launch


def build_application(
    backend: Backend,
    models: ServedModels,
    token: str | None,
    root: Path | None,
    jobs: Path | None,
    say: Callable[[str], None],
) -> FastAPI:
    """Return the server's application.

    Args:
        backend: what is behind it.
        models: the models that the server has from its start.
        token: the token that clients need, if any.
        root: the directory from which clients may load adapters, under names other than those of ``models``.
        jobs: the directory of files and fine-tuning jobs.
        say: prints a line for whoever runs the server.

    Raises:
        InputError: ``jobs`` cannot be used.
    """
    engine, aliases = backend.engine, models.aliases
    reserved = frozenset([*aliases, *engine.names()])
    of_clients = None if root is None else ClientAdapters(backend.loader, root.expanduser(), reserved)
    if jobs is None:
        app = create_app(engine, token=token, aliases=aliases, adapters=of_clients)
        refuse_job_routes(app)
        return app
    service = JobService(
        jobs.expanduser(),
        backend.checked_loader,
        backend.base,
        adapters=models.adapters,
        aliases=aliases,
        say=say,
        launch=backend.launch,
    )
    app = create_app(
        engine,
        token=token,
        aliases=aliases,
        adapters=of_clients,
        larger_bodies={FILES: MAX_UPLOAD_BYTES},
        made=service.made,
        running=service.running,
    )
    add_job_routes(app, service)
    return app
