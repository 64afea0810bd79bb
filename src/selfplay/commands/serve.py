"""``selfplay serve``: serve a model or a run with an OpenAI-compatible server."""

import asyncio
import os
import secrets
import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec
import uvicorn
from fastapi import FastAPI
from rich.console import Console

from selfplay.commands.model_source import ModelSource, find_model
from selfplay.commands.served_adapters import ClientAdapters, ServedAdapters
from selfplay.config.model import LoraSection, ModelSettings
from selfplay.core import InputError
from selfplay.core.adapters import ADAPTER_CONFIG
from selfplay.inference.engine import EmbeddedEngine
from selfplay.inference.openai_client import TOKEN_VARIABLE, is_loopback, is_sendable
from selfplay.inference.server import create_app
from selfplay.jobs.assembly import OpenJobs
from selfplay.jobs.routes import FILES, MAX_UPLOAD_BYTES, add_job_routes, refuse_job_routes
from selfplay.learning.checkpoints import STATE_FILE
from selfplay.learning.policy import BASE, TRAINED, PolicyModel
from selfplay.training import assembly
from selfplay.training.progress_views import print_line
from selfplay.training.run_directory import CHECKPOINT_PREFIX
from selfplay.training.run_names import split_checkpoint

KEEP_ALIVE_SECONDS = 75
SHUTDOWN_SECONDS = 5


class _State(msgspec.Struct):
    """The part of a checkpoint's state that is read: the versions of its policies."""

    versions: dict[str, int]


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
        max_queue: maximum requests in progress; further ones are rejected.
        adapters: the only directory from which clients may load adapters; ``None`` lets them load none.
        jobs: directory of files and fine-tuning jobs; ``None`` for a server without them.
        console: prints the address and, if this function generates it, the token.

    Raises:
        InputError: the model is not available, or host or port cannot be used.
    """
    chosen = _chosen_token()
    token = chosen or _new_token(host)
    if adapters is not None and not adapters.expanduser().is_dir():
        raise InputError("--adapters", f"{adapters} is not a directory", "Give one that holds adapters.")
    source = find_model(model_or_run)
    model = served_model(source.model, threads, dtype)
    with _listen(host, port) as listener:
        say = partial(print_line, console)
        policy = assembly.build_policy(model, LoraSection(rank=1), 0, say)
        engine = EmbeddedEngine(policy, max_tokens=max_tokens, max_queue=max_queue)
        app = build_app(engine, policy, model_or_run, source, token, adapters, jobs, say)
        address = f"http://{_in_url(host)}:{listener.getsockname()[1]}/v1"
        print_line(console, f"serving {', '.join(engine.names())} at {address} (Ctrl-C ends)")
        if not chosen:
            print_line(console, f"clients need the token: export {TOKEN_VARIABLE}={token}")
        _run(app, listener)
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
    """Publish the models of ``source`` and return the server's application.

    ``default`` is an alias of the first model served, and ``base`` of the base model. Clients may load
    adapters from ``root``, under names other than these. Files and fine-tuning jobs are in ``jobs``.

    Raises:
        InputError: an adapter cannot be loaded, or ``jobs`` cannot be used.
    """
    adapters = ServedAdapters(policy, engine)
    found = adapter_directories(source, _last_part(name))
    for adapter_name, directory in found.items():
        adapters.load(adapter_name, directory, _version_of(source, directory))
    base = _last_part(source.model.name)
    base = BASE if base in found else base
    engine.publish(base, BASE, 0)
    aliases = {TRAINED: next(iter(found), base), BASE: base}
    reserved = frozenset([*aliases, *engine.names()])
    of_clients = None if root is None else ClientAdapters(adapters, root.expanduser(), reserved)
    if jobs is None:
        app = create_app(engine, token=token, aliases=aliases, adapters=of_clients)
        refuse_job_routes(app)
        return app
    opened = OpenJobs(
        jobs.expanduser(),
        engine,
        policy,
        adapters,
        served=base,
        name=source.model.name,
        adapters=found,
        aliases=aliases,
        say=say,
    )
    app = create_app(
        engine,
        token=token,
        aliases=aliases,
        adapters=of_clients,
        larger_bodies={FILES: MAX_UPLOAD_BYTES},
        running=opened.running,
    )
    add_job_routes(app, opened.service)
    return app


def served_model(model: ModelSettings, threads: int | None, dtype: str | None) -> ModelSettings:
    """Return the settings of a model with those of the command line.

    Raises:
        InputError: there is no such type.
    """
    if dtype not in (None, "auto", "float32", "bfloat16"):
        raise InputError("--dtype", f"there is no type {dtype!r}", "Use auto, float32 or bfloat16")
    given = {"threads": threads, "dtype": dtype}
    return model.model_copy(update={name: value for name, value in given.items() if value is not None})


def adapter_directories(source: ModelSource, name: str) -> dict[str, Path]:
    """Return adapters by the name that each is served under.

    The adapter of a run with one policy is served as ``name``, and so is an adapter directory; the policies
    of a run with several are served under their own names.
    """
    if source.adapter is None:
        return {}
    if (source.adapter / ADAPTER_CONFIG).is_file():
        return {name: source.adapter}
    policies = sorted(source.adapter.glob(f"*/{ADAPTER_CONFIG}"))
    return {config.parent.name: config.parent for config in policies}


def _version_of(source: ModelSource, directory: Path) -> int:
    """Return the policy version of an adapter: from its checkpoint's state, else the step's number, else 0.

    The version of a policy that learned less often than the others is lower than the step.
    """
    alone = directory == source.adapter
    checkpoint, policy = (directory, TRAINED) if alone else (directory.parent, directory.name)
    versions = _versions_in(checkpoint)
    if policy in versions:
        return versions[policy]
    step = checkpoint.name.removeprefix(CHECKPOINT_PREFIX)
    return int(step) if step.isdecimal() else 0


def _versions_in(checkpoint: Path) -> dict[str, int]:
    """Return the versions by policy that a checkpoint records; none for an adapter outside a checkpoint."""
    try:
        return msgspec.json.decode((checkpoint / STATE_FILE).read_bytes(), type=_State).versions
    except (OSError, msgspec.DecodeError):
        return {}


def _last_part(name: str) -> str:
    """Return the last part of a path that exists, with its checkpoint; any other name unchanged."""
    run, checkpoint = split_checkpoint(name)
    path = Path(os.path.expanduser(run))
    short = path.resolve().name if path.exists() else run
    return short if run == name else f"{short}@{checkpoint}"


def _chosen_token() -> str:
    """Return the token that the user has set, or an empty one."""
    token = os.environ.get(TOKEN_VARIABLE, "")
    if not is_sendable(token):
        raise InputError(
            TOKEN_VARIABLE, "holds a character that a token cannot have", "Use letters and digits."
        )
    return token


def _new_token(host: str) -> str:
    """Generate a token for this run of the server, if only this machine can reach the server."""
    if not is_loopback(host):
        raise InputError(
            "--host",
            f"{host} lets other machines in, and you have set no token",
            f"Set {TOKEN_VARIABLE} to a secret.",
        )
    return secrets.token_urlsafe(24)


def _listen(host: str, port: int) -> socket.socket:
    """Open the port. Clients that connect while the model is loaded wait.

    Raises:
        InputError: the port or the host cannot be used.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address[:2], family=family)
    except UnicodeError as error:
        raise InputError(
            "--host", f"{host!r} is not a host name", "Give a host name or an address."
        ) from error
    except OSError as error:
        number = error.errno or 0
        reason = os.strerror(number) if number > 0 else error.strerror
        raise InputError(
            "--port", f"the server cannot listen at {host}:{port} ({reason})", "Choose another port or host."
        ) from error


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _run(app: FastAPI, listener: socket.socket) -> None:
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        lifespan="on",
        ws="none",
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=SHUTDOWN_SECONDS,
    )
    try:
        asyncio.run(uvicorn.Server(config).serve(sockets=[listener]))
    except KeyboardInterrupt:
        return
