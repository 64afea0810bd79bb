"""``sparring serve``: serve a model or a run to programs that use OpenAI's API."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from sparring.cli.options import MODEL_HELP, Address
from sparring.core import InputError
from sparring.core.errors import check_installed

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
        typer.Option(
            help="auto, float32 or bfloat16; by default the run's, or float32 with --training on a CPU. "
            "In float32, answers repeat."
        ),
    ] = None,
    max_tokens: Annotated[
        int, typer.Option(min=1, help="Maximum tokens of an answer where a request gives no limit.")
    ] = 512,
    max_queue: Annotated[
        int, typer.Option(min=1, help="Maximum requests in progress; further ones are rejected.")
    ] = 1024,
    sampling: Annotated[
        str,
        typer.Option(
            help="plain, or model: temperature and sampling of the model's own generation_config.json, where "
            "a request leaves them open."
        ),
    ] = "plain",
    adapters: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Directory from which clients may load adapters; by default none."),
    ] = None,
    jobs: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Directory of fine-tuning jobs and their files; by default none."),
    ] = None,
    training: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Directory of models that clients train with Tinker's SDK; by default none.",
        ),
    ] = None,
    runtime: Annotated[
        str, typer.Option(help="local (this process) or ray (engines and jobs on a cluster).")
    ] = "local",
    address: Address = None,
    engines: Annotated[
        int | None,
        typer.Option(min=1, help="Number of engines on the cluster; by default 1."),
    ] = None,
    gpus: Annotated[
        float | None,
        typer.Option(min=0, help="GPUs of each engine and of the worker of jobs; by default none."),
    ] = None,
) -> None:
    """Serve a model or a run at an OpenAI-compatible address until Ctrl-C."""
    check_installed("serve", "serve", *PACKAGES)
    if training is not None and runtime == "ray":
        raise InputError("--training", "is for one process", "Leave --runtime out.")
    _check_runtime(runtime, {"--address": address, "--engines": engines, "--gpus": gpus})
    from sparring.commands.member_sampling import OWN, PLAIN
    from sparring.commands.model_source import find_model
    from sparring.run.progress_views import working

    if sampling not in (OWN, PLAIN):
        raise InputError("--sampling", f"there is no sampling {sampling!r}", f"Use {OWN} or {PLAIN}")
    find_model(model)
    console, cluster = Console(), None
    if runtime == "ray":
        with working(console, "importing Ray"):
            from sparring.cluster.connect import import_ray
            from sparring.config.run import RaySettings

            import_ray(silent=True)
        # A job has the place of a run's learner; nothing collects games.
        cluster = RaySettings(
            address=address,
            engines=engines or 1,
            gpus_per_engine=gpus or 0,
            gpus_per_learner=0 if jobs is None else gpus or 0,
            cpus_per_learner=0 if jobs is None else 1,
            cpus_per_collector=0,
        )
    with working(console, "importing torch"):
        from sparring.commands.serve import serve as serve_model

    serve_model(
        model,
        host=host,
        port=port,
        threads=threads,
        dtype=dtype,
        max_tokens=max_tokens,
        max_queue=max_queue,
        sampling=sampling,
        adapters=adapters,
        jobs=jobs,
        training=training,
        ray=cluster,
        console=console,
    )


def _check_runtime(runtime: str, for_ray: dict[str, object]) -> None:
    if runtime not in ("local", "ray"):
        raise InputError("--runtime", f"there is no runtime {runtime!r}", "Use local or ray.")
    if runtime == "ray":
        check_installed("--runtime", "ray", "ray")
        return
    for option, value in for_ray.items():
        if value is not None:
            raise InputError(option, "is for a cluster", f"Add --runtime ray, or leave {option} out.")
