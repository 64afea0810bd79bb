"""Engines that are lost, come back or join later, and the games that go on with the others; no Ray."""

import asyncio
from collections import Counter
from typing import Any

import pytest
import ray
from ray.exceptions import ActorDiedError, RayActorError

from ray_simulation import SimulatedHost
from simulated_engines import (
    KillableHandle,
    RememberingHost,
    game_of_the_current_call,
    random_legal,
    run_on_virtual_time,
)
from sparring.cluster import health
from sparring.cluster.calls import Named, still_there
from sparring.cluster.engine_start import EngineStarts
from sparring.cluster.engines.client import EngineClient
from sparring.cluster.engines.link import SILENCE_SECONDS
from sparring.cluster.engines.service import EngineService
from sparring.collection.local_handle import LocalHandle
from sparring.core import Arena, InputError, ModelResponse, Role, SparringError
from sparring.core.current_episode import EpisodeContext, current_episode
from sparring.core.play import AgentSpec, PlaySpec
from sparring.envs.game_episode import GameEpisode
from sparring.envs.templates import get_template

PROMPT = [{"role": "user", "content": "your move"}]


class TimedClient(EngineClient):
    """Remembers how long each call took, and which game asked."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.seconds: list[float] = []
        self.answers: dict[tuple[str, int], str] = {}
        self._calls: Counter[str] = Counter()

    async def complete(self, *args: Any, **kwargs: Any) -> ModelResponse:
        loop = asyncio.get_running_loop()
        began = loop.time()
        response = await super().complete(*args, **kwargs)
        self.seconds.append(loop.time() - began)
        game = game_of_the_current_call()
        self.answers[game, self._calls[game]] = response.text
        self._calls[game] += 1
        return response


def hosts_of(count: int, seconds: float = 1.0) -> list[RememberingHost]:
    return [RememberingHost(seconds, random_legal) for _ in range(count)]


def killable(hosts: list[Any]) -> list[KillableHandle]:
    return [KillableHandle(lambda host=host: EngineService(host)) for host in hosts]


async def play(client: EngineClient, games: int, saboteur: Any = None) -> list[Any]:
    """Play games of Kuhn poker at the same time; return their rollouts."""
    arena = Arena(client, max_calls=100_000, retries=0)
    arena.add_episode("kuhn", GameEpisode("kuhn_poker", 2, get_template("fewshot-chat")))
    for pid in range(2):
        arena.add_role(Role(f"player_{pid}", temperature=1.0, max_tokens=4))
    agents = (AgentSpec("policy", "default", 1.0, 4),) * 2
    playing = [
        arena.try_episode(
            "kuhn", PlaySpec("kuhn_poker", 2, agents, seed), {"rollout_id": f"game-{seed}", "seed": seed}
        )
        for seed in range(games)
    ]
    disturbing = asyncio.create_task(saboteur()) if saboteur else None
    results = await asyncio.gather(*playing)
    if disturbing is not None:
        await disturbing
    await client.close()
    return [result.rollout for result in results]


def test_the_games_are_the_same_whichever_engines_are_lost_and_end_without_a_long_pause():
    async def answers(*lost: int) -> dict[tuple[str, int], str]:
        engines = killable(hosts_of(3))
        client = TimedClient(engines)

        async def lose() -> None:
            for number in lost:
                await asyncio.sleep(0.7)
                engines[number].kill()

        rollouts = await play(client, 60, lose)
        assert [one.error for one in rollouts] == [None] * 60
        assert max(client.seconds) < 10.0
        assert client.fatal is None
        return client.answers

    whole = run_on_virtual_time(answers())
    assert len(whole) > 120
    assert run_on_virtual_time(answers(0)) == whole
    assert run_on_virtual_time(answers(2, 1)) == whole


def test_the_requests_of_an_engine_that_falls_silent_go_to_the_others_and_it_may_come_back():
    async def scenario() -> None:
        hosts = hosts_of(2)
        engines = killable(hosts)
        client = EngineClient(engines)
        await asyncio.gather(*(client.complete(PROMPT, seed=seed) for seed in range(20)))
        engines[0].fall_silent()
        began = asyncio.get_running_loop().time()
        await asyncio.gather(*(client.complete(PROMPT, seed=seed) for seed in range(100)))
        assert asyncio.get_running_loop().time() - began < SILENCE_SECONDS + 10.0
        before = hosts[0].calls
        engines[0].speak()
        await asyncio.sleep(1.0)
        await asyncio.gather(*(client.complete(PROMPT, seed=seed) for seed in range(100)))
        assert hosts[0].calls > before + 20
        await client.close()

    run_on_virtual_time(scenario())


def test_a_request_that_two_engines_answer_has_one_answer():
    async def scenario() -> None:
        def name(messages: Any, seed: int | None) -> str:
            return str(seed)

        hosts = [RememberingHost(SILENCE_SECONDS + 20.0, name), RememberingHost(30.0, name)]
        engines = killable(hosts)
        client = EngineClient(engines)
        asked = [asyncio.create_task(client.complete(PROMPT, seed=seed)) for seed in range(10)]
        await asyncio.sleep(1.0)
        engines[0].fall_silent()
        await asyncio.sleep(SILENCE_SECONDS + 5.0)
        engines[0].speak()  # its answers come before those of the other engine
        answers = await asyncio.gather(*asked)
        assert [answer.text for answer in answers] == [str(seed) for seed in range(10)]
        assert sum(host.calls for host in hosts) > 10
        await asyncio.sleep(100.0)
        assert (await client.complete(PROMPT, seed=1)).text == "1"
        await client.close()

    run_on_virtual_time(scenario())


def test_only_when_no_engine_is_left_do_calls_fail():
    async def scenario() -> None:
        engines = killable(hosts_of(3))
        client = EngineClient(engines, patience=20.0)
        await client.complete(PROMPT)
        engines[0].kill()
        engines[1].kill()
        await asyncio.sleep(100.0)
        assert (await client.complete(PROMPT)).text
        engines[2].kill()
        with pytest.raises(SparringError, match="none of the 3 engines has answered for 20 s"):
            await client.complete(PROMPT)
        assert client.fatal is not None
        with pytest.raises(SparringError, match="none of the 3 engines"):
            await client.complete(PROMPT)
        await client.close()

    run_on_virtual_time(scenario())


def test_calls_wait_while_all_engines_are_away_for_a_moment():
    async def scenario() -> None:
        engines = killable(hosts_of(2))
        client = EngineClient(engines, patience=20.0)
        asked = [asyncio.create_task(client.complete(PROMPT, seed=seed)) for seed in range(30)]
        await asyncio.sleep(0.5)
        for engine in engines:
            engine.kill()
        await asyncio.sleep(10.0)
        engines[1].restart()
        assert len(await asyncio.gather(*asked)) == 30
        await client.close()

    run_on_virtual_time(scenario())


class FailingToStart(SimulatedHost):
    async def start(self) -> None:
        raise InputError("model.name", "there is no model at /models/small", "Copy it to this node")


def test_an_engine_that_cannot_start_is_left_out_and_its_error_is_told_if_no_other_can():
    async def scenario() -> None:
        good, bad = RememberingHost(1.0, random_legal), FailingToStart()
        client = EngineClient([LocalHandle(EngineService(host)) for host in (bad, good)])
        await asyncio.gather(*(client.complete(PROMPT, seed=seed) for seed in range(20)))
        assert good.calls == 20
        await client.close()
        client = EngineClient([LocalHandle(EngineService(FailingToStart())) for _ in range(2)])
        with pytest.raises(InputError, match="there is no model at /models/small"):
            await client.complete(PROMPT)
        assert asyncio.get_running_loop().time() < 60.0
        await client.close()

    run_on_virtual_time(scenario())


def test_an_engine_that_starts_at_the_second_attempt_is_taken_in():
    class StartsLate(SimulatedHost):
        starts = 0

        async def start(self) -> None:
            self.starts += 1
            if self.starts == 1:
                raise SparringError("the GPU's memory is still in use")

    async def scenario() -> None:
        host = StartsLate(1.0, random_legal)
        others = EngineService(SimulatedHost(1.0, random_legal))
        client = EngineClient([LocalHandle(EngineService(host)), LocalHandle(others)])
        await client.complete(PROMPT)
        await asyncio.sleep(20.0)
        await asyncio.gather(*(client.complete(PROMPT, seed=seed) for seed in range(20)))
        assert host.calls > 5
        await client.close()

    run_on_virtual_time(scenario())


async def ask(client: EngineClient, game: int, calls: int) -> None:
    """Ask several times, as a game does; every prompt is the game's name."""
    current_episode.set(EpisodeContext({}, f"game-{game}", game))
    for _ in range(calls):
        await client.complete([{"role": "user", "content": f"game-{game}"}])


async def ask_for_games(client: EngineClient, games: int, calls: int) -> None:
    await asyncio.gather(*(asyncio.create_task(ask(client, game, calls)) for game in range(games)))
    await client.close()


def test_all_calls_of_a_game_go_to_one_engine():
    async def scenario() -> list[Counter[str]]:
        hosts = hosts_of(5)
        engines = [LocalHandle(EngineService(host)) for host in hosts]
        await ask_for_games(EngineClient(engines), games=200, calls=4)
        return [Counter(host.prompts) for host in hosts]

    calls = run_on_virtual_time(scenario())
    assert sorted(count for host in calls for count in host.values()) == [4] * 200
    assert min(len(host) for host in calls) > 30


def test_the_games_of_a_lost_engine_stay_with_their_new_ones():
    async def scenario() -> list[Counter[str]]:
        hosts = hosts_of(3)
        engines = killable(hosts)
        asking = asyncio.create_task(ask_for_games(EngineClient(engines), games=60, calls=8))
        await asyncio.sleep(2.5)
        before = [Counter(host.prompts) for host in hosts]
        engines[0].kill()
        await asyncio.sleep(2.0)
        engines[0].restart()
        await asking
        return [Counter(host.prompts) - known for host, known in zip(hosts, before, strict=True)]

    back, *others = run_on_virtual_time(scenario())
    assert not back  # no game of its own is left, and the others are not overloaded
    assert not set(others[0]) & set(others[1])


def test_games_spread_nearly_evenly_over_many_engines():
    """A fixed choice by the game's id gave the busiest of 64 engines 1.67 times the mean of 1,000 games."""

    async def scenario() -> list[int]:
        hosts = hosts_of(64)
        engines = [LocalHandle(EngineService(host)) for host in hosts]
        await asyncio.gather(*(ask_for_games(EngineClient(engines), 250, 2) for _ in range(4)))
        return [host.most for host in hosts]

    most = run_on_virtual_time(scenario())
    assert max(most) < 1.4 * 1000 / 64


def test_new_games_avoid_an_engine_that_other_clients_keep_busy():
    async def scenario() -> None:
        hosts = hosts_of(2, 60.0)
        services = [EngineService(host) for host in hosts]
        other = EngineClient([LocalHandle(services[0])])
        client = EngineClient([LocalHandle(service) for service in services])
        busy = [asyncio.create_task(other.complete(PROMPT)) for _ in range(200)]
        await asyncio.sleep(5.0)
        await asyncio.gather(*(client.complete(PROMPT, seed=seed) for seed in range(100)))
        assert (hosts[0].calls, hosts[1].calls) == (200, 100)
        await asyncio.gather(*busy, client.close(), other.close())

    run_on_virtual_time(scenario())


def test_games_move_from_a_clearly_overloaded_engine_to_one_that_joins_later():
    async def scenario() -> list[RememberingHost]:
        hosts = hosts_of(2)
        engines = killable(hosts)
        engines[1].kill()  # not there yet
        asking = asyncio.create_task(ask_for_games(EngineClient(engines), games=300, calls=10))
        await asyncio.sleep(4.5)
        assert not hosts[1].calls
        engines[1].restart()
        await asking
        return hosts

    hosts = run_on_virtual_time(scenario())
    assert 60 < hosts[1].most < 150


def test_the_load_of_the_engines_that_answer_is_known():
    async def scenario() -> None:
        engines = killable(hosts_of(3))
        client = EngineClient(engines)
        await client.complete(PROMPT)
        assert list(await client.loads()) == ["Engine-0", "Engine-1", "Engine-2"]
        engines[1].kill()
        assert list(await client.loads()) == ["Engine-0", "Engine-2"]
        await client.close()

    run_on_virtual_time(scenario())


class Actor:
    """An actor that answers whether it is well, until it is away or dead."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.answers = asyncio.Event()
        self.answers.set()
        self.check = self

    def remote(self) -> "asyncio.Task[None]":
        """Answer."""

        async def answer() -> None:
            if self.error is not None:
                raise self.error
            await self.answers.wait()

        return asyncio.create_task(answer())


@pytest.mark.parametrize("error", [RayActorError(), ActorDiedError()])
def test_a_run_goes_on_while_one_of_its_engines_is_left(error):
    async def scenario() -> None:
        actors = {name: Actor() for name in ("Engine-0", "Engine-1", "Learner")}
        watched = health.Health(actors, 20.0, engines=["Engine-0", "Engine-1"])
        watching = asyncio.create_task(watched.watch())
        actors["Engine-0"].error = error
        await asyncio.sleep(40.0)
        assert watched.away["Engine-0"] > 30.0
        assert not watching.done()
        actors["Engine-0"].error = None
        await asyncio.sleep(10.0)
        assert not watched.away
        actors["Engine-1"].error = error
        await asyncio.sleep(40.0)
        assert watched.away["Engine-1"] > 30.0
        assert not watching.done()
        actors["Engine-0"].error = error
        with pytest.raises(SparringError, match=r"Engine-0 (has not come back|died)"):
            await watching

    run_on_virtual_time(scenario())


def test_the_loss_of_any_other_actor_ends_the_run():
    async def scenario() -> None:
        actors = {name: Actor() for name in ("Engine-0", "Engine-1", "Learner")}
        actors["Learner"].error = RayActorError()
        with pytest.raises(SparringError, match="Learner has not come back for 20 s"):
            await health.Health(actors, 20.0, engines=["Engine-0", "Engine-1"]).watch()

    run_on_virtual_time(scenario())


def test_an_actor_that_says_nothing_is_away_until_it_answers_or_is_lost():
    async def scenario() -> None:
        actors = {"Learner": Actor(), "Buffer": Actor()}
        watched = health.Health(actors, 60.0)
        watching = asyncio.create_task(watched.watch())
        actors["Learner"].answers.clear()
        await asyncio.sleep(30.0)
        assert list(watched.away) == ["Learner"]
        actors["Learner"].answers.set()
        await asyncio.sleep(5.0)
        assert not watched.away
        actors["Buffer"].answers.clear()
        with pytest.raises(SparringError, match="Buffer has not come back for 60 s"):
            await watching

    run_on_virtual_time(scenario())


async def test_the_reason_of_a_failed_call_is_the_actor_that_died_and_not_an_engine_that_the_run_can_lose():
    actors = {name: Actor() for name in ("Engine-0", "Engine-1", "Buffer")}
    actors["Engine-0"].error = actors["Buffer"].error = ActorDiedError()
    watched = health.Health(actors, 60.0, engines=["Engine-0", "Engine-1"])
    assert str(await watched.reason_of(ActorDiedError())).startswith("Buffer died and cannot come back")


def test_a_named_actor_that_died_for_good_is_left_out(monkeypatch):
    def get_actor(name: str, namespace: str) -> str:
        if name == "Engine-1":
            raise ValueError("Failed to look up actor with name 'Engine-1'")
        return f"handle of {name}"

    monkeypatch.setattr(ray, "get_actor", get_actor)
    named = [Named(f"Engine-{number}", "run") for number in range(3)]
    assert still_there(named) == ["handle of Engine-0", "handle of Engine-2"]


class SlowToStart(SimulatedHost):
    """Needs this long to start, or fails."""

    def __init__(self, seconds: float, error: SparringError | None = None) -> None:
        super().__init__()
        self.seconds = seconds
        self.error = error

    async def start(self) -> None:
        await asyncio.sleep(self.seconds)
        if self.error is not None:
            raise self.error


def starting(*hosts: SimulatedHost) -> tuple[EngineStarts, list[str]]:
    said: list[str] = []
    engines = {f"Engine-{number}": LocalHandle(EngineService(host)) for number, host in enumerate(hosts)}
    return EngineStarts(engines, said.append), said


def test_a_run_starts_with_its_least_number_of_engines_and_tells_when_others_join():
    async def scenario() -> None:
        starts, said = starting(SlowToStart(1.0), SlowToStart(50.0), SlowToStart(2.0))
        await starts.enough(2, patience=20.0)
        assert asyncio.get_running_loop().time() == 2.0
        assert said == ["Engine-1 is not there yet; the run starts without it"]
        await asyncio.sleep(60.0)
        assert said[1:] == ["Engine-1 has joined the run"]

    run_on_virtual_time(scenario())


def test_too_few_engines_within_the_patience_are_an_error_in_one_line():
    async def scenario() -> None:
        starts, _ = starting(SlowToStart(1.0), SlowToStart(50.0), SlowToStart(1e9))
        with pytest.raises(SparringError, match="only 1 of 2 engines started within 20 s"):
            await starts.enough(2, patience=20.0)
        assert asyncio.get_running_loop().time() == 20.0
        starts.cancel()

    run_on_virtual_time(scenario())


def test_engines_that_cannot_start_are_an_error_only_if_too_few_are_left():
    full = SparringError("the GPU's memory is full")

    async def scenario() -> None:
        starts, said = starting(SlowToStart(1.0, full), SlowToStart(2.0), SlowToStart(3.0))
        await starts.enough(2, patience=20.0)
        await asyncio.sleep(0)
        assert said == ["Engine-0 cannot start, and the run goes on without it: the GPU's memory is full"]
        starts, _ = starting(SlowToStart(1.0, full), SlowToStart(2.0), SlowToStart(1e9))
        with pytest.raises(SparringError, match="memory is full"):
            await starts.enough(3, patience=20.0)
        assert asyncio.get_running_loop().time() == 4.0  # at once
        starts.cancel()

    run_on_virtual_time(scenario())


def test_an_engine_that_is_killed_while_it_starts_is_waited_for():
    async def scenario() -> None:
        engine = KillableHandle(lambda: EngineService(SlowToStart(5.0)))
        starts = EngineStarts({"Engine-0": engine}, lambda line: None)
        waiting = asyncio.create_task(starts.enough(1, patience=60.0))
        await asyncio.sleep(2.0)
        engine.kill()
        await asyncio.sleep(2.0)
        engine.restart()
        await waiting
        assert asyncio.get_running_loop().time() >= 9.0

    run_on_virtual_time(scenario())
