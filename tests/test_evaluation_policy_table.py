import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluation_client import TabularClient
from sparring.core import InputError, SparringError
from sparring.core.errors import DamagedState
from sparring.envs.openspiel_game import game_at
from sparring.envs.templates import get_template
from sparring.evaluation.board_policy import (
    AnswersInOrder,
    board_rules,
    fill_table,
    policy_of,
    rows_in_order,
)
from sparring.evaluation.hidden_board import HiddenBoard
from sparring.evaluation.hidden_board_gains import gains
from sparring.evaluation.policy_table import PolicyTable, TableHeader, read_table

TEMPLATE = get_template("fewshot-chat")
START = (0, 4, 4, 8, 0, 2, 3)
HEADER = TableHeader("phantom_ttt", "fewshot-chat", "hero", {"model": "ab" * 32}, "float32", 10, 3, 4)
LOGPROBS_RA = np.log(np.random.default_rng(0).random((10, 3))).astype(np.float32)
LOGPROBS_RA[3, 1] = -np.inf


def write(path, rows: int = 10) -> bytes:
    with PolicyTable(path, HEADER) as table:
        while table.done < rows:
            table.append(LOGPROBS_RA[table.next_rows])
    return path.read_bytes()


def test_a_table_is_read_back(tmp_path):
    write(tmp_path / "table")
    header, logprobs_RA = read_table(tmp_path / "table")
    assert header == HEADER
    np.testing.assert_array_equal(logprobs_RA, LOGPROBS_RA)


@given(st.data())
def test_whatever_a_kill_leaves_is_cut_back_to_whole_blocks_and_completed(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("tables") / "table"
    whole = write(path)
    line = whole.index(b"\n") + 1
    left = data.draw(st.integers(line, len(whole)))
    path.write_bytes(whole[:left])
    with PolicyTable(path, HEADER) as table:
        blocks = (left - line) // (4 * 3 * 4 + 32)
        assert table.done == (10 if left == len(whole) else 4 * blocks)
    assert write(path) == whole


def test_every_changed_byte_is_noticed(tmp_path):
    path = tmp_path / "table"
    whole = write(path)
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 32]) + whole[place + 1 :])
        with pytest.raises(DamagedState):
            read_table(path)
    path.write_bytes(whole + b"\0")
    with pytest.raises(DamagedState, match="its end"):
        read_table(path)


def test_blocks_have_their_places(tmp_path):
    path = tmp_path / "table"
    whole, size = write(path), 4 * 3 * 4 + 32
    line = whole.index(b"\n") + 1
    first, second = whole[line : line + size], whole[line + size : line + 2 * size]
    path.write_bytes(whole[:line] + second + first + whole[line + 2 * size :])
    for read in (read_table, lambda path: PolicyTable(path, HEADER)):
        with pytest.raises(DamagedState, match="block 0 is damaged"):
            read(path)


def test_a_damaged_last_block_is_written_again(tmp_path):
    path = tmp_path / "table"
    whole = write(path)
    path.write_bytes(whole[:-1] + b"?")
    with PolicyTable(path, HEADER) as table:
        assert list(table.next_rows) == [8, 9]
    assert write(path) == whole


def test_a_table_about_something_else_one_in_use_and_one_that_is_not_complete_are_refused(tmp_path):
    path = tmp_path / "table"
    write(path, 8)
    with pytest.raises(InputError, match="it has 8 of 10 rows"):
        read_table(path)
    with pytest.raises(InputError, match="there is no such table"):
        read_table(tmp_path / "other")
    other = TableHeader("phantom_ttt", "fewshot-chat", "hero", {"model": "cd" * 32}, "float32", 10, 3, 4)
    with pytest.raises(InputError, match="it is about another model, game or template"):
        PolicyTable(path, other)
    with PolicyTable(path, HEADER), pytest.raises(InputError, match="another process writes it"):
        PolicyTable(path, HEADER)


def by_prompt(observation: str) -> dict[str, float]:
    """A policy that depends on all tries, whose legal answers have less than 1."""
    weights = {str(cell): 1 + len(observation) * cell % 7 for cell in range(9)}
    return {cell: weight / sum(weights.values()) for cell, weight in weights.items()}


def table_header(board: HiddenBoard) -> TableHeader:
    rows = sum(map(len, board.states))
    return TableHeader("phantom_ttt", TEMPLATE.name, "hero", {}, "float32", rows, 9, 64, START)


def asking(client, board) -> AnswersInOrder:
    return AnswersInOrder(client, board, "phantom_ttt", TEMPLATE, ("hero", "hero"))


async def test_a_stopped_model_goes_on_and_its_table_says_what_it_does_in_each_state(tmp_path):
    class Failing(TabularClient):
        async def score(self, messages, completions, *, model=None):
            if len(self.calls) > 150:
                raise SparringError("out of memory")
            return await super().score(messages, completions, model=model)

    board = HiddenBoard.build(board_rules("phantom_ttt"), START)
    for name, first in (("stopped", Failing(by_prompt)), ("whole", TabularClient(by_prompt))):
        with PolicyTable(tmp_path / name, table_header(board)) as table:
            try:
                await fill_table(table, asking(first, board))
            except SparringError:
                assert table.done == 128
    with PolicyTable(tmp_path / "stopped", table_header(board)) as table:
        later = TabularClient(by_prompt)
        await fill_table(table, asking(later, board))
    assert len(later.calls) == table_header(board).rows - 128
    assert (tmp_path / "stopped").read_bytes() == (tmp_path / "whole").read_bytes()

    seat_R, state_R = rows_in_order(board)
    policy = policy_of(board, read_table(tmp_path / "whole")[1])
    masses = []
    for seat, state in zip(seat_R, state_R, strict=True):
        game = game_at("phantom_ttt", tuple(board.history(seat, state)))
        assert game.current_pid == seat
        chances = by_prompt(game.observation(seat))
        mass = sum(chances[move] for move in game.legal_actions())
        masses.append(mass)
        for cell in range(9):
            expected = chances[str(cell)] / mass if str(cell) in game.legal_actions() else 0.0
            assert policy.policies[seat][state, cell] == pytest.approx(expected, abs=1e-6)
    assert policy.legal_mass == pytest.approx(np.mean(masses), abs=1e-6)
    assert policy.min_legal_mass == pytest.approx(min(masses), abs=1e-6)
    assert gains(board, policy.policies).nash_conv > 0


async def test_neighbours_in_order_share_their_tries(tmp_path):
    board = HiddenBoard.build(board_rules("phantom_ttt"), START)
    client = TabularClient(by_prompt)
    asked = asking(client, board)
    for row in range(table_header(board).rows):
        await asked.block(range(row, row + 1))
    tries = [messages[-1]["content"] for _, messages in client.calls]
    for row, (before, after) in enumerate(pairwise(tries)):
        if asked.seat_R[row] == asked.seat_R[row + 1]:
            assert before.startswith(after.rpartition(",")[0])


async def test_each_seat_has_its_model():
    board = HiddenBoard.build(board_rules("phantom_ttt"), START)
    client, last = TabularClient(by_prompt), table_header(board).rows - 1
    asked = AnswersInOrder(client, board, "phantom_ttt", TEMPLATE, ("first", "second"))
    for row in (0, last):
        await asked.block(range(row, row + 1))
    assert [model for model, _ in client.calls] == ["first", "second"]


async def test_a_model_without_probabilities_is_an_error():
    class Silent(TabularClient):
        async def score(self, messages, completions, *, model=None):
            return [math.nan] * len(completions)

    board = HiddenBoard.build(board_rules("phantom_ttt"), START)
    with pytest.raises(SparringError, match="the model gave no probabilities in row 0"):
        await asking(Silent(by_prompt), board).block(range(1))


@pytest.mark.parametrize("env_id", ["kuhn_poker", "phantom_ttt(obstype=reveal-numturns)"])
def test_other_games_are_no_hidden_boards(env_id):
    with pytest.raises(InputError, match="is not measured as a hidden board"):
        board_rules(env_id)
