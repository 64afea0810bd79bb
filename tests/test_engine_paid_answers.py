"""Answers that cost money: kept, counted, and paid for once."""

import asyncio
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hostile_text import CHAT_CONTROL_TOKENS, HTML, TERMINAL
from sparring.core import InputError, MockInferenceClient, SparringError, TransientError
from sparring.engine.paid_answers import ENOUGH, MOST_FAILURES, CallsSpent, PaidAnswers, PaidFile, PaidLine

ASK = [{"role": "user", "content": "Check, bet, call or fold?"}]
OTHER = [{"role": "user", "content": "Check or bet?"}]


class Api(MockInferenceClient):
    """Answers with one of four moves, by the seed of the call."""

    def __init__(self, text=None):
        super().__init__(
            lambda messages, seed: (
                random.Random(seed).choice(["check", "bet", "call"]) if text is None else text
            )
        )


def ask(api, path, seeds, messages=ASK, *, measured=False, limit=None):
    """Ask with each seed at once, as a process of its own does; return the answers, and the file's calls."""

    async def all_of_them():
        file = PaidFile(path, limit)
        client = PaidAnswers("mover", api, file, 8, measured=measured)
        found = await asyncio.gather(
            *(client.complete(messages, seed=seed) for seed in seeds), return_exceptions=True
        )
        return [one if isinstance(one, Exception) else one.text for one in found], file.calls

    return asyncio.run(all_of_them())


def test_the_same_call_is_paid_for_once_whatever_process_makes_it(tmp_path):
    path, api = tmp_path / "answers.jsonl", Api()
    first, calls = ask(api, path, range(5))
    assert ask(api, path, range(5)) == (first, calls)
    assert api.calls == calls == 5
    ask(api, path, range(5), OTHER)
    assert api.calls == 10


@pytest.mark.parametrize("measured", [False, True])
def test_calls_with_one_seed_that_are_made_at_once_are_paid_for_once(measured, tmp_path):
    path, api = tmp_path / "answers.jsonl", Api()
    found, calls = ask(api, path, [*range(5)] * 4, measured=measured)
    assert found == found[:5] * 4
    assert api.calls == calls == 5


def test_training_asks_a_prompt_so_often_and_then_draws_from_what_was_answered(tmp_path):
    path, api = tmp_path / "answers.jsonl", Api()
    drawn, _ = ask(api, path, range(200))
    assert api.calls == ENOUGH
    assert len({*drawn}) > 1
    measured, _ = ask(api, path, range(1000, 1020), measured=True)
    assert api.calls == ENOUGH + 20, "measuring asks anew"
    assert ask(api, path, range(1000, 1020), measured=True)[0] == measured
    ask(api, path, range(300, 400))
    assert api.calls == ENOUGH + 20


def test_no_more_calls_are_made_than_allowed_in_all_processes_together(tmp_path):
    path, api = tmp_path / "answers.jsonl", Api()
    found, calls = ask(api, path, range(12), limit=7)
    assert sum(isinstance(one, CallsSpent) for one in found) == 5
    assert api.calls == calls == 7
    kept = [seed for seed, one in enumerate(found) if isinstance(one, str)]
    assert ask(api, path, kept, limit=7)[0] == [found[seed] for seed in kept]
    assert isinstance(ask(api, path, [99], limit=7)[0][0], InputError)
    assert api.calls == 7


def test_a_call_that_is_cancelled_keeps_its_answer(tmp_path):
    path, api = tmp_path / "answers.jsonl", Api()

    async def cancelled():
        client = PaidAnswers("mover", api, PaidFile(path, None), 8)
        task = asyncio.create_task(client.complete(ASK, seed=1))
        while not api.in_flight:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
    ask(api, path, [1])
    assert api.calls == 1


def test_a_call_that_fails_is_counted_and_others_ask_in_its_stead(tmp_path):
    path, api = tmp_path / "answers.jsonl", Api()
    answers, failed = api.responses, []

    def fails_once(messages, seed):
        if not failed:
            failed.append(seed)
            raise SparringError("the server is gone")
        return answers(messages, seed)

    api.responses = fails_once
    found, calls = ask(api, path, range(40))
    assert sum(isinstance(one, SparringError) for one in found) == 1
    assert calls == ENOUGH + 1


def test_a_server_that_is_gone_is_one_line_before_the_calls_are_used_up(tmp_path):
    path, api = tmp_path / "answers.jsonl", Api()

    def is_gone(messages, seed):
        raise TransientError("the connection failed")

    api.responses = is_gone
    found, calls = ask(api, path, range(40), measured=True, limit=50)
    assert calls == PaidFile(path, None).calls == 40
    ended = [one for one in found if isinstance(one, InputError)]
    assert len(ended) == 40 - MOST_FAILURES + 1
    assert str(ended[0]).startswith("mover: failed 16 times in a row: the connection failed. See that it")


@given(st.integers(0, 400), st.binary(max_size=30))
def test_a_damaged_end_of_the_file_costs_its_last_line_alone(tmp_path_factory, cut, junk):
    path = tmp_path_factory.mktemp("damaged") / "answers.jsonl"
    file = PaidFile(path, None)
    for number in range(3):
        file.keep(PaidLine(file.begin(), "key", number, text=f"answer {number}"))
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) - min(cut, len(whole))] + junk.replace(b"\n", b""))
    found = PaidFile(path, None)
    texts = [one.text for one in found.kept["key", False]]
    assert texts == [f"answer {number}" for number in range(len(texts))]
    found.keep(PaidLine(found.begin(), "key", 9, text="one more"))
    assert [one.text for one in PaidFile(path, None).kept["key", False]] == [*texts, "one more"]


@given(st.integers(0, 5), st.binary(min_size=1, max_size=8))
def test_a_damaged_line_costs_its_own_answer_and_reading_changes_nothing(tmp_path_factory, place, junk):
    path = tmp_path_factory.mktemp("damaged") / "answers.jsonl"
    file = PaidFile(path, None)
    for number in range(6):
        file.keep(PaidLine(number, "key", number, text=f"answer {number}"))
    lines = path.read_bytes().splitlines(keepends=True)
    lines[place] = junk.replace(b"\n", b"\r") + lines[place]
    path.write_bytes(content := b"".join([*lines, b'{"call":']))
    found = PaidFile(path, None)
    assert path.read_bytes() == content, "another process may be writing"
    kept = [f"answer {number}" for number in range(6) if number != place]
    assert [one.text for one in found.kept["key", False] if one.text != f"answer {place}"] == kept
    found.keep(PaidLine(found.begin(), "key", 9, text="one more"))
    assert [one.text for one in PaidFile(path, None).kept["key", False]][-1] == "one more"
    assert path.read_bytes().startswith(b"".join(lines)), "nothing that was kept is cut off"


def test_no_flipped_bit_changes_an_answer(tmp_path):
    path = tmp_path / "answers.jsonl"
    file = PaidFile(path, None)
    file.keep(PaidLine(file.begin(), "key", 7, text="bet", prompt=ASK))
    whole = path.read_bytes()
    for bit in range(8 * len(whole)):
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        found = PaidFile(path, None)
        assert [*found.by_seed] in ([], [("key", 7, False)])
        assert all(one.text == "bet" for one in found.by_seed.values())


@pytest.mark.parametrize("text", [CHAT_CONTROL_TOKENS[0], TERMINAL[0], HTML[0], "\ud800", ""])
def test_what_a_server_says_is_kept_as_it_is(text, tmp_path):
    path, api = tmp_path / "answers.jsonl", Api(text)
    first, _ = ask(api, path, [1])
    assert ask(api, path, [1])[0] == first == [text.replace("\ud800", "\ufffd")]
    assert api.calls == 1
