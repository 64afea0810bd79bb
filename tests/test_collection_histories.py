"""Steps on their way between services: of a conversation only what is new, and they arrive as they were."""

import pickle
import random
from copy import deepcopy

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparring.collection import serialization
from sparring.collection.buffer_state import Drawn, FinishedGame, PackedGames
from sparring.collection.serialization import packed, unpacked
from sparring.core import Step, Trajectory

TOKENS = st.lists(st.integers(0, 200_000), max_size=3)
TURNS = st.lists(st.tuples(st.sampled_from("ab"), st.booleans(), st.booleans(), TOKENS, TOKENS), max_size=8)


def said(role: str, ids: list[int]) -> dict:
    return {"role": role, "content": " ".join(map(str, ids))}


def steps_of(turns: list) -> list[Step]:
    """Steps of two roles, whose texts and ids go on or begin again; those without a drawn id have no ids."""
    steps: list[Step] = []
    for role, texts_go_on, ids_go_on, asked, drawn in turns:
        last = next((one for one in reversed(steps) if one.role_id == role), None)
        messages = [*last.prompt, *last.completion] if last is not None and texts_go_on else []
        known = ids_go_on and last is not None and last.prompt_token_ids is not None
        ids = [*last.prompt_token_ids, *last.completion_token_ids] if known else []
        answer = [said("assistant", drawn)]
        step = Step(role, [*messages, said("user", asked)], answer, [*ids, *asked], drawn)
        if not drawn:
            step.prompt_token_ids = step.completion_token_ids = None
        steps.append(step)
    return steps


def sent_as_a_batch(steps: list[Step]) -> list[Step]:
    return pickle.loads(pickle.dumps(Drawn(1, steps))).steps


def sent_as_a_game(steps: list[Step]) -> list[Step]:
    game = FinishedGame(0, [Trajectory(0, "x", 0.0, []), Trajectory(0, "x", 1.0, steps)])
    (received,) = pickle.loads(pickle.dumps(PackedGames([game]))).games()
    return received.trajectories[1].steps


WAYS = [sent_as_a_batch, sent_as_a_game]


@pytest.mark.parametrize("send", WAYS)
@given(turns=TURNS)
def test_steps_arrive_as_they_were_sent_and_the_sender_keeps_them(send, turns):
    steps = steps_of(turns)
    before = deepcopy(steps)
    assert send(steps) == before
    assert steps == before


@pytest.mark.parametrize("send", [Drawn, lambda update, steps: PackedGames([game_of(steps)])])
def test_a_conversation_grows_by_what_is_new(send):
    rng = random.Random(0)
    turns = [("a", True, True, ids_of(rng, 60), ids_of(rng, 40)) for _ in range(40)]
    steps = steps_of(turns)
    half, whole = (len(pickle.dumps(send(1, steps[:count]))) for count in (20, 40))
    assert whole < 2.2 * half


def game_of(steps: list[Step]) -> FinishedGame:
    return FinishedGame(0, [Trajectory(0, "x", 1.0, steps)])


def ids_of(rng: random.Random, count: int) -> list[int]:
    return [rng.randrange(200_000) for _ in range(count)]


@given(content=st.binary(min_size=1), place=st.floats(0, 1, exclude_max=True))
def test_what_is_packed_is_read_back_and_damage_to_any_byte_or_a_missing_end_is_noticed(content, place):
    whole, decoder = packed(content), msgspec.msgpack.Decoder(bytes)
    assert unpacked(whole, decoder) == content
    number = int(place * len(whole))
    for damaged in (whole[:number], whole[:number] + bytes([whole[number] ^ 255]) + whole[number + 1 :]):
        with pytest.raises(msgspec.DecodeError):
            unpacked(damaged, decoder)


def test_a_few_bytes_do_not_fill_the_memory(monkeypatch):
    monkeypatch.setattr(serialization, "MOST_BYTES", 1000)
    with pytest.raises(msgspec.DecodeError, match="more than 1000 bytes"):
        unpacked(packed(b"0" * 100_000), msgspec.msgpack.Decoder(bytes))
