"""What both examples need: a client whose server is there, and one line instead of a stack trace."""

import asyncio
import sys
from collections.abc import Coroutine
from typing import Any

from selfplay.core import InputError, SelfplayError
from selfplay.inference.openai_client import DEFAULT_MODEL, OpenAIClient


async def connect(local: bool, port: int, model: str | None) -> OpenAIClient:
    """A client of OpenRouter, or of a server on this machine, which is asked first whether it is there.

    Raises:
        InputError: it is not, or OpenRouter's key is missing.
    """
    if not local:
        return OpenAIClient.for_openrouter(model=model or DEFAULT_MODEL)
    once = OpenAIClient(base_url=f"http://127.0.0.1:{port}/v1", timeout=10, retries=0)
    try:
        await once.get_policy_version()
    except SelfplayError as error:
        raise InputError(
            "--port", f"no server answers ({error})", f"Start one: selfplay serve smollm2-135m --port {port}"
        ) from error
    finally:
        await once.close()
    return OpenAIClient.for_local(port, model=model or "default")


def run(main: Coroutine[Any, Any, None]) -> None:
    """Run an example. What is wrong ends it with one line and status 2 (bad input) or 1 (anything later)."""
    try:
        asyncio.run(main)
    except KeyboardInterrupt:
        sys.exit(130)
    except SelfplayError as error:
        print(error, file=sys.stderr)
        sys.exit(2 if isinstance(error, InputError) else 1)
