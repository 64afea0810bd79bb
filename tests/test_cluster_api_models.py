"""Models behind an API: what their names may contain, and how many calls they get at once."""

import asyncio

import pytest

from replying_server import completion, http, serving
from sparring.cluster.actor_classes import ModelPoolActor
from sparring.collection.pool import PoolService
from sparring.core import InputError
from sparring.engine.api_models import api_client
from sparring.run.evaluation_opponents import check_opponent_name

PASSWORD, QUERY = "a user or a password", "a query or a fragment"
ADDRESSES = {
    "http://ann:hunter2@host/v1": PASSWORD,
    "https://hunter2@host:8000/v1": PASSWORD,
    "http://:hunter2@127.0.0.1/v1": PASSWORD,
    "http://ann:hunter2/@host/v1": PASSWORD,
    "HTTP://ann:hunter2@host/v1": PASSWORD,
    "http://host/v1?api_key=hunter2": QUERY,
    "http://host?hunter2": QUERY,
    "HTTPS://host/v1#hunter2": QUERY,
    "host/v1?api_key=hunter2": QUERY,
}


@pytest.mark.parametrize(("address", "part"), ADDRESSES.items())
def test_an_address_with_a_password_or_a_key_is_rejected_without_repeating_it(address, part, monkeypatch):
    monkeypatch.setenv("SPARRING_API_KEY", "a-key")
    name = f"small@{address}"
    pool = ModelPoolActor("fixed", 2)
    for use in (
        lambda: check_opponent_name(name, "fixed_opponents"),
        lambda: api_client(name),
        lambda: pool.add_fixed(name),
    ):
        with pytest.raises(InputError, match=f"the address of 'small' contains {part}") as refused:
            use()
        assert "hunter2" not in str(refused.value)
        assert "SPARRING_API_KEY" in refused.value.fix
        assert "\n" not in str(refused.value)
    assert pool.snapshot() == PoolService("fixed", 2).snapshot()


@pytest.mark.parametrize("name", ["small@http://127.0.0.1:8000/v1", "a/b@http://host/v1", "a/b"])
def test_an_address_without_a_password_is_accepted_as_a_name(name, monkeypatch):
    monkeypatch.setenv("SPARRING_API_KEY", "a-key")
    monkeypatch.setenv("OPENROUTER_API_KEY", "a-key")
    check_opponent_name(name, "fixed_opponents")
    assert PoolService("fixed", 2).add_fixed(name) == f"fixed-{name}"


async def test_an_api_gets_sixteen_calls_at_once_and_answers_all():
    arrived, most = 0, 0
    everyone = asyncio.Event()

    async def reply(writer: asyncio.StreamWriter) -> None:
        nonlocal arrived, most
        arrived += 1
        most = max(most, arrived)
        if arrived == 16:
            everyone.set()
        await everyone.wait()
        for _ in range(50):  # a seventeenth call would arrive meanwhile
            await asyncio.sleep(0)
        arrived -= 1
        writer.write(http(completion("yes")))
        await writer.drain()

    async with serving(reply) as server:
        client = api_client(f"small@http://127.0.0.1:{server.port}/v1")
        ask = [client.complete([{"role": "user", "content": "?"}]) for _ in range(50)]
        answers = await asyncio.gather(*ask)
    assert {one.text for one in answers} == {"yes"}
    assert (most, len(server.lines)) == (16, 50)
