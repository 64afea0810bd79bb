"""``selfplay serve``: a model or a run behind an OpenAI-compatible server."""

import asyncio
import os
import secrets
import socket
from pathlib import Path

import msgspec
import uvicorn
from fastapi import FastAPI
from rich.console import Console

from selfplay.core import InputError
from selfplay.inference.engine import EmbeddedEngine
from selfplay.inference.openai_client import TOKEN_VARIABLE, is_loopback, is_sendable
from selfplay.inference.server import create_app
from selfplay.learning.checkpoints import ADAPTER_CONFIG, STATE_FILE
from selfplay.learning.policy import BASE, TRAINED, LoraSettings, PolicyModel
from selfplay.runtime import assembly
from selfplay.runtime.evaluate import ModelSource, find_model
from selfplay.runtime.run_directory import CHECKPOINT_PREFIX
from selfplay.runtime.served_adapters import ServedAdapters

KEEP_ALIVE_SECONDS = 75
SHUTDOWN_SECONDS = 5


class _State(msgspec.Struct):
    """What is read of a checkpoint's state: its policies' versions."""

    versions: dict[str, int]


def serve(
    model_or_run: str,
    *,
    host: str,
    port: int,
    threads: int | None,
    max_tokens: int,
    max_queue: int,
    console: Console,
) -> None:
    """Serve until interrupted.

    Args:
        model_or_run: a run (its newest checkpoint, every policy of it), an adapter directory, or a model.
        host: address to listen at. One that other machines reach needs a token in SELFPLAY_API_KEY.
        port: port to listen at; 0 for any free one.
        threads: of the model's computation; ``None`` for the run's setting, or all.
        max_tokens: most tokens of an answer where a request does not say.
        max_queue: most requests under way; one more is refused.
        console: where the address, and a token made up here, are printed.

    Raises:
        InputError: the model cannot be had, or host or port cannot be used.
    """
    chosen = _chosen_token()
    token = chosen or _new_token(host)
    source = find_model(model_or_run)
    model = source.model if threads is None else source.model.model_copy(update={"threads": threads})
    with _listen(host, port) as listener:
        policy = assembly.build_policy(model, LoraSettings(lora_rank=1), 0, console.print)
        engine = EmbeddedEngine(policy, max_tokens=max_tokens, max_queue=max_queue)
        app = build_app(engine, policy, model_or_run, source, token)
        address = f"http://{_in_url(host)}:{listener.getsockname()[1]}/v1"
        _say(console, f"serving {', '.join(engine.names())} at {address} (Ctrl-C ends)")
        if not chosen:
            _say(console, f"clients need the token: export {TOKEN_VARIABLE}={token}")
        _run(app, listener)
    _say(console, "stopped")


def build_app(
    engine: EmbeddedEngine, policy: PolicyModel, name: str, source: ModelSource, token: str | None
) -> FastAPI:
    """Publish what ``source`` has and return the server's application.

    ``default`` is another name of the first model served, and ``base`` of the base model.
    """
    adapters = ServedAdapters(policy, engine)
    found = adapter_directories(source, _last_part(name))
    for adapter_name, directory in found.items():
        adapters.load(adapter_name, directory, _version_of(source, directory))
    base = _last_part(source.model.name)
    base = BASE if base in found else base
    engine.publish(base, BASE, 0)
    return create_app(
        engine,
        token=token,
        aliases={TRAINED: next(iter(found), base), BASE: base},
        load_adapter=adapters.load,
        unload_adapter=adapters.unload,
    )


def adapter_directories(source: ModelSource, name: str) -> dict[str, Path]:
    """Adapters by the name that each is served under.

    A run of one policy, or an adapter, goes by ``name``; the policies of a run that has several by their own.
    """
    if source.adapter is None:
        return {}
    if (source.adapter / ADAPTER_CONFIG).is_file():
        return {name: source.adapter}
    policies = sorted(source.adapter.glob(f"*/{ADAPTER_CONFIG}"))
    return {config.parent.name: config.parent for config in policies}


def _version_of(source: ModelSource, directory: Path) -> int:
    """The policy version of an adapter: as its checkpoint's state says, else the checkpoint's step, else 0.

    A policy that learned less often than the others is behind the step.
    """
    alone = directory == source.adapter
    checkpoint, policy = (directory, TRAINED) if alone else (directory.parent, directory.name)
    versions = _versions_in(checkpoint)
    if policy in versions:
        return versions[policy]
    step = checkpoint.name.removeprefix(CHECKPOINT_PREFIX)
    return int(step) if step.isdecimal() else 0


def _versions_in(checkpoint: Path) -> dict[str, int]:
    """Versions by policy, as far as a checkpoint says. An adapter that is no checkpoint says nothing."""
    try:
        return msgspec.json.decode((checkpoint / STATE_FILE).read_bytes(), type=_State).versions
    except (OSError, msgspec.DecodeError):
        return {}


def _last_part(name: str) -> str:
    """The last part of a path; a name that is none as it is."""
    path = Path(os.path.expanduser(name))
    return path.resolve().name if path.exists() else name


def _chosen_token() -> str:
    """The token that the user has set, or nothing."""
    token = os.environ.get(TOKEN_VARIABLE, "")
    if not is_sendable(token):
        raise InputError(TOKEN_VARIABLE, "holds a character that no token has", "Use letters and digits.")
    return token


def _new_token(host: str) -> str:
    """A token for this run of the server, where only this machine can reach it."""
    if not is_loopback(host):
        raise InputError(
            "--host",
            f"{host} lets other machines in, and there is no token of yours",
            f"Set {TOKEN_VARIABLE} to a secret.",
        )
    return secrets.token_urlsafe(24)


def _listen(host: str, port: int) -> socket.socket:
    """Open the port. Clients that come while the model is loaded wait.

    Raises:
        InputError: the port or the host cannot be used.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address[:2], family=family)
    except UnicodeError as error:
        raise InputError("--host", f"{host!r} is no host's name", "Give one, or an address.") from error
    except OSError as error:
        number = error.errno or 0
        reason = os.strerror(number) if number > 0 else error.strerror
        raise InputError(
            "--port", f"nothing can listen at {host}:{port} ({reason})", "Choose another port or host."
        ) from error


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _say(console: Console, line: str) -> None:
    """Print a line that can be copied: neither wrapped nor coloured."""
    console.print(line, markup=False, highlight=False, soft_wrap=True)


def _run(app: FastAPI, listener: socket.socket) -> None:
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        lifespan="off",
        ws="none",
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=SHUTDOWN_SECONDS,
    )
    try:
        asyncio.run(uvicorn.Server(config).serve(sockets=[listener]))
    except KeyboardInterrupt:
        return
