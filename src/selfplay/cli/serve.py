"""``selfplay serve``: serve a model or a run to programs that use OpenAI's API."""

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from selfplay.cli.model_options import MODEL_HELP
from selfplay.core import InputError

PACKAGES = ("fastapi", "uvicorn", "python_multipart")


def serve(
    model: Annotated[str, typer.Argument(metavar="MODEL_OR_RUN", help=MODEL_HELP)],
    host: Annotated[str, typer.Option(help="Address to listen at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes any free one.")] = 8000,
    threads: Annotated[
        int | None, typer.Option(min=1, help="CPU threads; by default the run's, or the fastest.")
    ] = None,
    dtype: Annotated[
        str | None,
        typer.Option(help="auto, float32 or bfloat16; by default the run's. In float32, answers repeat."),
    ] = None,
    max_tokens: Annotated[
        int, typer.Option(min=1, help="Maximum tokens of an answer where a request gives no limit.")
    ] = 512,
    max_queue: Annotated[
        int, typer.Option(min=1, help="Maximum requests in progress; further ones are rejected.")
    ] = 1024,
    adapters: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Directory from which clients may load adapters; by default none."),
    ] = None,
    jobs: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Directory of fine-tuning jobs and their files; by default none."),
    ] = None,
) -> None:
    """Serve a model or a run at an OpenAI-compatible address until Ctrl-C."""
    for package in PACKAGES:
        if find_spec(package) is None:
            raise InputError(
                "serve", f"the package {package} is not installed", "Run: pip install 'selfplay-rl[serve]'"
            )
    from selfplay.commands.model_source import find_model
    from selfplay.training.progress_views import working

    find_model(model)
    console = Console()
    with working(console, "importing torch"):
        from selfplay.commands.serve import serve as serve_model

    serve_model(
        model,
        host=host,
        port=port,
        threads=threads,
        dtype=dtype,
        max_tokens=max_tokens,
        max_queue=max_queue,
        adapters=adapters,
        jobs=jobs,
        ray=None,
        console=console,
    )
