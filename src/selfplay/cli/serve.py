"""``selfplay serve``: a model or a run for every program that speaks OpenAI's API."""

from importlib.util import find_spec
from typing import Annotated

import typer
from rich.console import Console

from selfplay.core import InputError

PACKAGES = ("fastapi", "uvicorn")


def serve(
    model: Annotated[str, typer.Argument(metavar="MODEL_OR_RUN", help="A run's name or path, or a model.")],
    host: Annotated[str, typer.Option(help="Address to listen at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes any free one.")] = 8000,
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads; the run's, or all.")] = None,
    max_tokens: Annotated[
        int, typer.Option(min=1, help="Most tokens of an answer where a request gives no limit.")
    ] = 512,
    max_queue: Annotated[
        int, typer.Option(min=1, help="Most requests under way; one more is refused.")
    ] = 1024,
) -> None:
    """Serve a model or a run at an OpenAI-compatible address until Ctrl-C."""
    for package in PACKAGES:
        if find_spec(package) is None:
            raise InputError(
                "serve", f"the package {package} is not installed", "Run: pip install 'selfplay-rl[serve]'"
            )
    from selfplay.runtime.serve import serve as serve_model

    serve_model(
        model,
        host=host,
        port=port,
        threads=threads,
        max_tokens=max_tokens,
        max_queue=max_queue,
        console=Console(),
    )
