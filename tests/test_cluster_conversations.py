"""Prompts on their way to an engine: what it has of a conversation is not sent again, and all is exact."""

import asyncio
import random
from copy import deepcopy
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from ray_simulation import SimulatedHost
from simulated_engines import KillableHandle, run_on_virtual_time
from sparring.cluster.engines.client import EngineClient
from sparring.cluster.engines.conversations import KeptConversations
from sparring.cluster.engines.service import EngineService
from sparring.core import Messages, ModelResponse
from sparring.core.current_episode import EpisodeContext, current_episode
from sparring.core.messages import said
from sparring.engine.hosts import EngineRequest

RULES = random.Random(0).randbytes(1000).hex()
"""Two thousand bytes of which packing leaves half."""


def ids_of(messages: Messages) -> list[int]:
    """Token ids as an engine makes them: those of an answer as they were drawn, of other messages bytes."""
    return [token for one in messages for token in [*one.get("token_ids", one["content"].encode()), 0]]


class Speaker(SimulatedHost):
    """Answers with the seed, and keeps the prompts that it was asked."""

    def __init__(self) -> None:
        super().__init__(1.0)
        self.asked: list[Messages] = []

    async def complete(self, request: EngineRequest) -> ModelResponse:
        self.asked.append(request.call.messages)
        text = f"answer {request.call.seed}"
        drawn = [300 + (request.call.seed or 0), *text.encode(), 256]
        prompt = ids_of(request.call.messages)
        return ModelResponse(text, [said("assistant", text, drawn)], prompt, drawn, [-0.5] * len(drawn))


class Counted(KillableHandle):
    """Counts the bytes of the requests, and of the ids of prompts that come back."""

    sent = 0
    received = 0

    async def _call(self, name: str, args: tuple[Any, ...]) -> Any:
        if name == "submit":
            self.sent += len(args[1])
        answer = await super()._call(name, args)
        if name == "poll":
            self.received += sum(len(one.response.prompt_token_ids) for one in answer.answers)
        return answer


def question(text: str) -> Messages:
    return [{"role": "user", "content": text}]


async def talk(client: EngineClient, turns: int, between: Any = None) -> list[ModelResponse]:
    """Ask in one conversation; ``between`` is called before each turn."""
    current_episode.set(EpisodeContext({}, "game", 1))
    messages, responses = question(RULES), []
    for turn in range(turns):
        if between is not None:
            await between(turn)
        responses.append(await client.complete(messages, seed=turn))
        messages = [*messages, *responses[-1].completion, *question(f"And {turn}?")]
    return responses


def talk_with(service: Any, turns: int, between: Any = None) -> tuple[list[ModelResponse], Counted]:
    async def scenario() -> tuple[list[ModelResponse], Counted]:
        engine = Counted(service)
        client = EngineClient([engine])
        work = talk(client, turns, None if between is None else lambda turn: between(engine, turn))
        responses = await asyncio.create_task(work)
        await client.close()
        return responses, engine

    return run_on_virtual_time(scenario())


def prompts(turns: int) -> list[Messages]:
    """The prompts of a conversation as they are without anything in between."""
    asked, messages = [], question(RULES)
    for turn in range(turns):
        asked.append(messages)
        text = f"answer {turn}"
        drawn = [300 + turn, *text.encode(), 256]
        messages = [*messages, said("assistant", text, drawn), *question(f"And {turn}?")]
    return asked


def test_an_engine_gets_and_gives_back_only_what_is_new_of_a_conversation():
    host = Speaker()
    responses, engine = talk_with(lambda: EngineService(host), 12)
    assert host.asked == prompts(12)
    assert [one.prompt_token_ids for one in responses] == list(map(ids_of, prompts(12)))
    assert engine.received == len(ids_of(prompts(12)[-1])) - sum(len(one.drawn) for one in responses[:-1])
    assert engine.calls["submit"] == 12
    assert engine.sent < 2 * len(RULES)


def test_a_conversation_goes_on_with_an_engine_that_has_forgotten_it():
    async def kill(engine: KillableHandle, turn: int) -> None:
        if turn == 3:
            engine.kill()
            engine.restart()

    host = Speaker()
    responses, engine = talk_with(lambda: EngineService(host), 6, kill)
    assert host.asked == prompts(6)
    assert [one.prompt_token_ids for one in responses] == list(map(ids_of, prompts(6)))
    assert engine.calls["submit"] == 7


def test_an_engine_keeps_no_more_conversations_than_it_has_room_for():
    kept = KeptConversations(most_bytes=3000)
    answer = ModelResponse("yes", question("yes"))
    keys = [kept.keep(bytes(1000), answer) for _ in range(5)]
    assert [kept.has(key) for key in keys] == [False, False, False, True, True]


TURNS = st.lists(
    st.tuples(
        st.sampled_from(["goes on", "branches", "forgets", "is edited", "is another"]),
        st.booleans(),
        st.text(st.characters(codec="utf-8"), max_size=5),
    ),
    max_size=8,
)


@given(TURNS)
def test_whatever_a_game_asks_the_engine_is_asked_the_same(turns):
    """Prompts go on, begin again, lose or change earlier messages in place; engines are killed between."""

    async def game(client: EngineClient, engine: KillableHandle, host: Speaker) -> None:
        current_episode.set(EpisodeContext({}, "game", 1))
        messages, before = question(RULES), question(RULES)
        for number, (how, killed, text) in enumerate(turns):
            if killed:
                engine.kill()
                engine.restart()
            if how == "branches":
                messages = before
            elif how == "forgets":
                messages = [{"role": one["role"], "content": one["content"]} for one in messages]
            elif how == "is edited":
                messages[-1]["content"] += text
            elif how == "is another":
                messages = question(text)
            asked = deepcopy(messages)
            response = await client.complete(messages, seed=number % 2)
            assert host.asked[-1] == asked
            assert response.prompt_token_ids == ids_of(asked)
            before, messages = messages, [*messages, *response.completion, *question(text)]

    async def scenario() -> None:
        host = Speaker()
        engine = KillableHandle(lambda: EngineService(host))
        client = EngineClient([engine])
        await asyncio.create_task(game(client, engine, host))
        await client.close()

    run_on_virtual_time(scenario())
