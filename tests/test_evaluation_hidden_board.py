import random

import numpy as np
import pyspiel
import pytest

from evaluation_client import TabularClient, uniform
from kuhn_policies import random_policy
from matrices import first_of
from own_tries_game import NAME
from sparring.core import InputError
from sparring.envs.openspiel_game import information_states, load_game
from sparring.envs.templates import get_template
from sparring.evaluation import nash_conv
from sparring.evaluation.hidden_board import HiddenBoard, code_of, dark_hex, phantom_tic_tac_toe, tries_of
from sparring.evaluation.hidden_board_gains import gains, uniform_policy

PHANTOM = phantom_tic_tac_toe()
SMALL = [
    ("hex2x2", dark_hex(2, 2), ()),
    ("hex2x2", dark_hex(2, 2), (1, 1)),  # seat 1 is to move, and has tried
    ("phantom", PHANTOM, (0, 4, 4, 8, 0, 2, 3, 1)),
    ("phantom", PHANTOM, (0, 4, 4, 8, 0, 2, 3, 1, 7)),  # seat 1 is to move, and may win at once
    ("phantom", PHANTOM, (0, 4, 4, 8, 0, 2, 3)),
    ("phantom", PHANTOM, (4, 0, 8, 4, 2, 6, 7)),
    ("hex2x3", dark_hex(2, 3), ()),
]


def name_of(rules: str, start: tuple[int, ...]) -> str:
    return f"{NAME}(rules={rules},start={''.join(f'a{action}' for action in start)})"


def openspiel_state(env_id: str, history: list[int], start: tuple[int, ...]) -> pyspiel.State:
    state = load_game(env_id).new_initial_state()
    for action in history[len(start) :]:
        state.apply_action(action)
    return state


@pytest.mark.parametrize("small", first_of(SMALL, 4))
async def test_small_games_have_openspiels_information_states_and_nash_conv(small):
    rules, board_rules, start = small
    env_id, board = name_of(rules, start), HiddenBoard.build(board_rules, start)
    expected = {state.info_state: state for state in information_states(env_id)}
    for policy in (uniform, random_policy(3)):
        result = await nash_conv(TabularClient(policy), env_id, get_template("fewshot-chat"), model="hero")
        policies, found = [], set()
        for seat, states in enumerate(board.states):
            policy_SA = np.zeros((len(states), board_rules.cells))
            for place in range(len(states)):
                state = openspiel_state(env_id, board.history(seat, place), start)
                info_state = state.information_state_string(seat)
                assert state.current_player() == seat
                assert np.flatnonzero(states.legal_SA[place]).tolist() == state.legal_actions()
                found.add(info_state)
                policy_SA[place, state.legal_actions()] = list(result.policy[info_state].values())
            policies.append(policy_SA)
        assert found == set(expected)
        exact = gains(board, tuple(policies))
        assert exact.values == pytest.approx(result.values, abs=1e-9)
        assert exact.best_response_values == pytest.approx(result.best_response_values, abs=1e-9)
        assert exact.nash_conv == pytest.approx(result.nash_conv, abs=1e-9)


def test_random_games_of_phantom_tic_tac_toe_go_as_in_openspiel():
    """From a position of which all is listed: whose turn it is, what is known, how it ends."""
    start = (4, 0, 8, 4, 2)
    board, draw, returns = HiddenBoard.build(PHANTOM, start), random.Random(1), set()
    states = [{int(code): place for place, code in enumerate(one.code_S)} for one in board.states]
    for _ in range(300):
        state = load_game("phantom_ttt").new_initial_state()
        for action in start:
            state.apply_action(action)
        node, tries = 0, [list(one) for one in board.tries]
        while not state.is_terminal():
            seat = state.current_player()
            assert seat == board.placements.mover_N[node]
            place = states[seat][code_of(tries[seat])]
            legal = np.flatnonzero(board.states[seat].legal_SA[place]).tolist()
            assert legal == state.legal_actions()
            action = draw.choice(legal)
            state.apply_action(action)
            put = int(board.placements.child_NA[node, action])
            tries[seat].append((action, put < 0))
            node = node if put < 0 else put
        assert board.placements.ended_N[node]
        assert board.placements.payoff_N[node] == state.returns()[0]
        returns.add(state.returns()[0])
    assert returns == {1.0, -1.0, 0.0}


def test_uniform_play_of_dark_hex_2_is_beaten_by_its_first_player():
    board = HiddenBoard.build(dark_hex(2, 2))
    exact = gains(board, (uniform_policy(board.states[0]), uniform_policy(board.states[1])))
    assert exact.values == pytest.approx((0.0, 0.0), abs=1e-12)
    assert exact.best_response_values == pytest.approx((1.0, 0.25))
    assert exact.nash_conv == pytest.approx(1.25)


def test_tries_are_read_back_from_their_code_and_codes_are_sorted_depth_first():
    tries = [(4, False), (11, True), (0, False)]
    assert tries_of(code_of(tries)) == tries
    assert code_of([]) < code_of(tries[:1]) < code_of(tries[:2]) < code_of(tries) < code_of([(4, True)])


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (lambda policy_SA: policy_SA[1:], "seat 0 has an array of"),
        (lambda policy_SA: policy_SA / 2, "row 0 of seat 0 is no distribution"),
        (lambda policy_SA: policy_SA * np.nan, "row 0 of seat 0 is no distribution"),
        (lambda policy_SA: np.full_like(policy_SA, 0.25), "row 1 of seat 0 is no distribution"),
    ],
)
def test_arrays_that_are_no_policy_are_refused(damage, problem):
    board = HiddenBoard.build(dark_hex(2, 2))
    first, second = map(uniform_policy, board.states)
    with pytest.raises(InputError, match=problem):
        gains(board, (damage(first), second))


def test_a_start_must_be_possible_and_a_board_small_enough():
    with pytest.raises(InputError, match="seat 1 cannot try cell 4 "):
        HiddenBoard.build(PHANTOM, (4, 4, 4))
    with pytest.raises(InputError, match="the game is over after number 4 of the start"):
        HiddenBoard.build(PHANTOM, (0, 3, 1, 4, 2))
    with pytest.raises(InputError, match="seat 0 never moves after it"):
        HiddenBoard.build(PHANTOM, (0, 4, 4, 8, 0, 2, 3, 1, 5))
    with pytest.raises(InputError, match="a board of 4 x 4 has more than 12 cells"):
        dark_hex(4, 4)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rules", "sizes", "value", "best"),
    [
        # exp-a-spiel publishes the sizes, and for uniform play in single precision 0.333684, and gains of
        # 0.666318 and 1.166488: the same best responses.
        (dark_hex(3, 3), [3_720_850, 2_352_067], 1 / 3, (1.0, 0.832804)),
        (phantom_tic_tac_toe(), [3_683_314, 2_307_355], 0.296825, (0.953125, 0.624339)),
    ],
)
def test_the_whole_of_large_games(rules, sizes, value, best):
    board = HiddenBoard.build(rules)
    assert list(map(len, board.states)) == sizes
    exact = gains(board, (uniform_policy(board.states[0]), uniform_policy(board.states[1])))
    assert exact.values[0] == pytest.approx(value, abs=1e-6)
    assert exact.best_response_values == pytest.approx(best, abs=1e-6)
