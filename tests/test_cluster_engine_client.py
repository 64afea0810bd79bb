"""Requests to engines in batches, even while engines are killed. Only Ray's errors are used, not Ray."""

import asyncio
from typing import Any

import pytest

from ray_simulation import SimulatedHost
from simulated_engines import KillableHandle, RememberingHost, run_on_virtual_time
from sparring.cluster.engine_start import calls_of_each_client
from sparring.cluster.engines.client import EngineClient
from sparring.cluster.engines.conversations import packed_requests
from sparring.cluster.engines.link import SHARES
from sparring.cluster.engines.service import FORGET_SECONDS, EngineService
from sparring.collection.local_handle import LocalHandle
from sparring.config import load_config
from sparring.core import InputError, SparringError
from sparring.core.adapters import AdapterRef, Weights
from sparring.engine.adapters import DeliveryError

PROMPT = [{"role": "user", "content": "your move"}]


class FailingHost(SimulatedHost):
    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error

    async def complete(self, *args: Any) -> Any:
        raise self.error


def test_simultaneous_requests_are_sent_in_one_call():
    async def scenario() -> None:
        engine = KillableHandle(lambda: EngineService(SimulatedHost(1.0)))
        client = EngineClient([engine])
        answers = await asyncio.gather(*(client.complete(PROMPT) for _ in range(500)))
        assert len(answers) == 500
        assert engine.calls["submit"] == 1
        assert engine.calls["poll"] < 10
        await client.close()

    run_on_virtual_time(scenario())


@pytest.mark.parametrize(("games", "calls"), [(200, 1 + SHARES), (600, 2)])
def test_a_few_games_send_their_requests_in_shares_without_waiting_for_the_last_game(games, calls):
    async def game(client: EngineClient) -> None:
        for _ in range(2):
            await client.complete(PROMPT)

    async def scenario() -> None:
        engine = KillableHandle(lambda: EngineService(SimulatedHost(1.0)))
        client = EngineClient([engine])
        await asyncio.gather(*(game(client) for _ in range(games)))
        assert calls <= engine.calls["submit"] <= 2 * calls
        await client.close()

    run_on_virtual_time(scenario())


@pytest.mark.parametrize("limit", [1000, 10], ids=["all are sent", "some wait"])
def test_requests_to_a_killed_engine_are_resent_and_all_are_answered(limit):
    async def scenario() -> int:
        host = SimulatedHost(1.0)
        engine = KillableHandle(lambda: EngineService(host))
        client = EngineClient([engine], calls_per_engine=limit)
        asked = [asyncio.create_task(client.complete(PROMPT, seed=seed)) for seed in range(50)]
        for _ in range(3):
            await asyncio.sleep(0.7)
            engine.kill()
            await asyncio.sleep(2.0)
            engine.restart()
        answers = await asyncio.gather(*asked)
        await client.close()
        assert len(answers) == 50
        return host.calls

    assert run_on_virtual_time(scenario()) > 50


@pytest.mark.parametrize("engines", [1, 2, 8])
def test_calls_in_flight_grow_with_engines_and_no_engine_gets_more_than_its_limit(engines):
    async def scenario() -> list[int]:
        hosts = [RememberingHost(1.0) for _ in range(engines)]
        client = EngineClient([LocalHandle(EngineService(host)) for host in hosts], calls_per_engine=10)
        await asyncio.gather(*(client.complete(PROMPT, seed=seed) for seed in range(40 * engines)))
        await client.close()
        assert sum(host.calls for host in hosts) == 40 * engines
        return [host.most for host in hosts]

    assert run_on_virtual_time(scenario()) == [10] * engines


@pytest.mark.parametrize("engines", [1, 4, 64])
def test_the_calls_of_all_clients_together_fill_every_engine_and_overfill_none(engines):
    config = load_config("quickstart", {"run.runtime": "ray", "ray.engines": engines, "ray.collectors": 16})
    clients = config.ray.collectors + 1  # and the evaluation
    assert clients * calls_of_each_client(config) <= engines * config.inference.max_queue
    assert clients * calls_of_each_client(config) > 0.99 * engines * config.inference.max_queue


def test_an_engine_that_does_not_come_back_is_given_up_with_a_one_line_error():
    async def scenario() -> None:
        engine = KillableHandle(lambda: EngineService(SimulatedHost(1.0)))
        client = EngineClient([engine], patience=20.0)
        asked = asyncio.create_task(client.complete(PROMPT))
        await asyncio.sleep(0.5)
        engine.kill()
        with pytest.raises(SparringError, match="Engine-0 has not answered for 20 s"):
            await asked
        assert client.fatal is not None
        await client.close()

    run_on_virtual_time(scenario())


@pytest.mark.parametrize(
    ("error", "is_fatal"),
    [
        (SparringError("the prompt is too long"), False),
        (InputError("max_tokens", "0 leaves no room", "Give at least 1"), False),
        (DeliveryError("default", 7, "other weights answer"), True),
        (ZeroDivisionError("division by zero"), False),
    ],
)
def test_an_error_of_an_engine_reaches_its_caller(error, is_fatal):
    async def scenario() -> None:
        client = EngineClient([LocalHandle(EngineService(FailingHost(error), "Engine-3"))])
        with pytest.raises(SparringError) as caught:
            await client.complete(PROMPT)
        await client.close()
        if isinstance(error, SparringError):
            assert str(caught.value) == str(error)
        else:
            assert "Engine-3 failed: ZeroDivisionError" in str(caught.value)
        assert (client.fatal is not None) == is_fatal

    run_on_virtual_time(scenario())


def test_a_nonsensical_answer_of_an_engine_fails_its_requests():
    class Nonsense(EngineService):
        async def poll(self, client: str, wait: float = 1.0) -> Any:
            return "nonsense"

    async def scenario() -> None:
        client = EngineClient([LocalHandle(Nonsense(SimulatedHost()))])
        with pytest.raises(SparringError, match="a request to an engine failed"):
            await client.complete(PROMPT)
        assert client.fatal is not None

    run_on_virtual_time(scenario())


def test_the_newest_weights_answer_and_name_their_version():
    async def scenario() -> list[int | None]:
        client = EngineClient([LocalHandle(EngineService(SimulatedHost()))])
        versions = [(await client.complete(PROMPT)).policy_version]
        client.follow(Weights(3, {"default": AdapterRef("default", 3, "v3")}))
        versions.append((await client.complete(PROMPT, model="default")).policy_version)
        client.follow(Weights(2, {"default": AdapterRef("default", 2, "v2")}))  # arrives late
        versions.append((await client.complete(PROMPT)).policy_version)
        client.adapters["ckpt-1"] = AdapterRef("ckpt-1", 1, "v1")
        versions.append((await client.complete(PROMPT, model="ckpt-1")).policy_version)
        versions.append((await client.complete(PROMPT, model="base")).policy_version)
        with pytest.raises(SparringError, match="there is no adapter for the model ckpt-9"):
            await client.complete(PROMPT, model="ckpt-9")
        await client.close()
        return versions

    assert run_on_virtual_time(scenario()) == [0, 3, 3, 1, 0]


def test_a_client_that_has_left_is_forgotten_and_its_requests_are_cancelled():
    async def scenario() -> None:
        host = SimulatedHost(10 * FORGET_SECONDS)
        service = EngineService(host)
        client = EngineClient([LocalHandle(service)])
        asked = asyncio.create_task(client.complete(PROMPT))
        await asyncio.sleep(1.0)
        asked.cancel()
        await client.close()
        before = await service.submit(client.name, packed_requests([], None))
        await asyncio.sleep(FORGET_SECONDS / 2)
        assert service.load()["running"] == 1
        await asyncio.sleep(FORGET_SECONDS)
        assert service.load()["running"] == 0
        assert await service.submit(client.name, packed_requests([], None)) != before

    run_on_virtual_time(scenario())


def test_after_a_long_silence_a_request_is_sent_once():
    async def scenario() -> int:
        host = SimulatedHost(1.0)
        client = EngineClient([LocalHandle(EngineService(host))])
        await client.complete(PROMPT)
        await asyncio.sleep(10 * FORGET_SECONDS)
        await asyncio.gather(*(client.complete(PROMPT, seed=seed) for seed in range(20)))
        await client.close()
        return host.calls

    assert run_on_virtual_time(scenario()) == 21


@pytest.mark.parametrize("model", [None, "default", "vendor/model", "seker"])
def test_with_adapters_only_other_names_are_rejected(model):
    async def scenario() -> None:
        client = EngineClient([LocalHandle(EngineService(SimulatedHost()))], ["seeker"], adapters_only=True)
        client.follow(Weights(2, {"seeker": AdapterRef("seeker", 2, "somewhere")}))
        assert (await client.complete(PROMPT, model="seeker")).policy_version == 2
        with pytest.raises(InputError, match=r"does not serve \S+. It serves base, seeker"):
            await client.complete(PROMPT, model=model)
        await client.close()

    run_on_virtual_time(scenario())


class BlockingHost(SimulatedHost):
    """Blocks the engine at its first request for longer than a client is remembered."""

    async def complete(self, *args: Any) -> Any:
        if not self.calls:
            asyncio.get_running_loop().block(2 * FORGET_SECONDS)
        return await super().complete(*args)


def test_a_client_that_was_forgotten_by_mistake_resends_its_requests():
    """An engine answers no client while it loads its model, however long that takes."""

    async def scenario() -> None:
        host = BlockingHost(10.0)
        client = EngineClient([LocalHandle(EngineService(host))])
        async with asyncio.timeout(10 * FORGET_SECONDS):
            assert (await client.complete(PROMPT)).text == "[check]"
        await client.close()
        assert host.calls == 2  # the first time for a client that was forgotten

    run_on_virtual_time(scenario())
