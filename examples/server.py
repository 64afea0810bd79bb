"""Helpers of both examples: connect to a running server, and print an error in one line."""

import asyncio
import sys
from collections.abc import Coroutine
from typing import Any

from sparring.core import InputError, SparringError
from sparring.core.text import one_line
from sparring.engine.openai_client import DEFAULT_MODEL, OpenAIClient


async def connect(local: bool, port: int, model: str | None) -> OpenAIClient:
    """Return a client of OpenRouter, or of a server on this machine after checking that it answers.

    Raises:
        InputError: the server does not answer or rejects the key, or OpenRouter's key is missing.
    """
    if not local:
        return OpenAIClient.for_openrouter(model=model or DEFAULT_MODEL)
    once = OpenAIClient(base_url=f"http://127.0.0.1:{port}/v1", timeout=10, retries=0)
    try:
        await once.get_policy_version()
    except InputError:  # the server answers but rejects the key
        raise
    except SparringError as error:
        raise InputError(
            "--port", f"no server answers ({error})", f"Start one: sparring serve smollm2-135m --port {port}"
        ) from error
    finally:
        await once.close()
    return OpenAIClient.for_local(port, model=model or "default")


def run(main: Coroutine[Any, Any, None]) -> None:
    """Run an example. An error ends it with one line and status 2 (bad input) or 1 (any later error)."""
    try:
        asyncio.run(main)
    except KeyboardInterrupt:
        sys.exit(130)
    except SparringError as error:
        print(one_line(str(error)), file=sys.stderr)
        sys.exit(2 if isinstance(error, InputError) else 1)
