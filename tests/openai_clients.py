"""Clients of a server of OpenAI's API that replies as a test says."""

import asyncio

import pytest

from replying_server import Server
from sparring.core import EpisodeError
from sparring.engine.openai_client import OpenAIClient

KEY = "sk-loopback-0123456789"


QUESTION = [{"role": "user", "content": "What is 2 + 2?"}]


LIMIT = 60.0
"""Seconds after which a test that hangs has failed."""


def client_of(server: Server, **settings) -> OpenAIClient:
    defaults = {"model": "small", "timeout": LIMIT, "retries": 3, "backoff": 0.001}
    return OpenAIClient(base_url=f"http://127.0.0.1:{server.port}/v1", **(defaults | settings))


async def ask(client: OpenAIClient, **settings):
    """Ask one question; a hang is a failure."""
    try:
        return await asyncio.wait_for(client.complete(QUESTION, **settings), LIMIT)
    finally:
        await client.close()


async def failure(client: OpenAIClient, kind: type[Exception] = EpisodeError) -> str:
    """Return the one line of the error with which the call ends."""
    with pytest.raises(kind) as caught:
        await ask(client)
    line = str(caught.value)
    assert "\n" not in line
    assert len(line) < 400
    return line
