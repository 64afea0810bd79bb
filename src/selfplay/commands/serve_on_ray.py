"""``selfplay serve --runtime ray``: the engines and the fine-tuning jobs are on a cluster."""

import asyncio
import signal
import socket
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

from rich.console import Console

from selfplay.cluster.server.cluster import ServingCluster
from selfplay.commands.application import Backend, build_application
from selfplay.commands.listening import serve_until_ended, server_of
from selfplay.commands.model_source import ModelSource
from selfplay.commands.served_models import ServedModels, version_of
from selfplay.config.model import InferenceSettings, ModelSettings
from selfplay.config.ray import RaySettings
from selfplay.inference.chat_tokens import load_chat_tokens
from selfplay.jobs.records import ServedBase
from selfplay.learning.model_files import resolve_model
from selfplay.training.progress_views import print_line, working


def serve_on_ray(
    source: ModelSource,
    models: ServedModels,
    listener: socket.socket,
    *,
    ray: RaySettings,
    model: ModelSettings,
    inference: InferenceSettings,
    token: str,
    root: Path | None,
    jobs: Path | None,
    announce: Callable[[list[str]], None],
    console: Console,
) -> None:
    """Serve until interrupted, also by SIGTERM.

    See :func:`selfplay.commands.serve.serve`, also for the errors.

    Args:
        source: the run, adapter or model.
        models: its models.
        listener: the open port.
        ray: the cluster, the number of engines, and what they and a job request.
        model: the base model, with the settings of the command line.
        inference: the engines.
        token: the token that clients need.
        root: the directory from which clients may load adapters.
        jobs: the directory of jobs.
        announce: called with the names of the models once they are served.
        console: the console to print on.
    """

    def say(line: str) -> None:
        print_line(console, line)

    tokens = load_chat_tokens(resolve_model(model.name, say))
    cluster = ServingCluster(ray, inference, model, tokens, say)

    async def run() -> None:
        async with cluster.running() as (engines, facts):
            for name, directory in models.adapters.items():
                await engines.load(name, directory, version_of(source, directory))
            engines.serve_base(models.base)
            base = ServedBase(
                models.base,
                source.model.name,
                facts.path,
                facts.dtype,
                facts.device,
                facts.threads,
                facts.quantization,
            )
            backend = Backend(engines, engines, engines, base, cluster.workers().start)
            server = server_of(build_application(backend, models, token, root, jobs, say))

            def end() -> None:
                server.should_exit = True

            announce(engines.names())
            await cluster.guard(engines, serve_until_ended(server, listener), end)

    where = "on this machine" if ray.address is None else f"at {ray.address}"
    with ExitStack() as stack:
        with working(console, f"joining Ray {where}"):
            stack.enter_context(cluster.joined())
        # Ray has set a handler that ends the program with a traceback.
        signal.signal(signal.SIGTERM, lambda number, frame: signal.raise_signal(signal.SIGINT))
        with suppress(KeyboardInterrupt):
            asyncio.run(run())
