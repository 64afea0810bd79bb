"""Optimal play: which games can be solved, and exactly what the solutions are."""

import pytest

from sparring.core import InputError
from sparring.envs import openspiel_game, solver
from sparring.envs.openspiel_game import game_at, information_states
from sparring.envs.solver import Equilibrium, Minimax, check_solvable, solve


@pytest.mark.parametrize(
    ("env_id", "line"),
    [
        ("kuhn_poker(players=3)", "it is not a two-player zero-sum game"),
        ("tiny_hanabi", "it is not a two-player zero-sum game"),
        ("chess", "its games can be too long"),
    ],
)
def test_a_game_without_an_optimal_player_says_why_and_what_to_use(env_id, line):
    with pytest.raises(InputError) as caught:
        check_solvable(env_id)
    assert str(caught.value) == (
        f"opponent: no optimal player for {env_id}: {line}. Use random as the opponent"
    )


def test_a_game_of_chance_or_hidden_information_is_solved_by_its_information_states():
    assert isinstance(solve("kuhn_poker"), Equilibrium)
    assert isinstance(solve("nim"), Minimax)
    with pytest.raises(InputError, match="pig has no information states"):
        solve("pig")
    with pytest.raises(InputError, match="phantom_ttt has more than 5,000 information states"):
        solve("phantom_ttt")


def test_minimax_is_uniform_among_equally_good_moves():
    openings = Minimax("tic_tac_toe").policy(game_at("tic_tac_toe", ()).state)
    assert openings == dict.fromkeys(range(9), 1 / 9)
    # Both have two in a row: x x . over o o . over . . .
    for_x, for_o = game_at("tic_tac_toe", (0, 3, 1, 4)), game_at("tic_tac_toe", (0, 3, 1, 4, 8))
    assert Minimax("tic_tac_toe").policy(for_x.state) == {2: 1.0}
    assert Minimax("tic_tac_toe").policy(for_o.state) == {2: 0.5, 5: 0.5}  # a fork wins as well
    # The second player answers a corner: only the centre draws.
    corner = game_at("tic_tac_toe", (0,))
    assert Minimax("tic_tac_toe").policy(corner.state) == {4: 1.0}


def test_a_search_of_more_positions_than_the_limit_is_given_up(monkeypatch):
    # Two cells are free: the search needs the positions after each of them.
    state = game_at("tic_tac_toe", (0, 1, 2, 4, 3, 5, 7)).state
    monkeypatch.setattr(solver, "MAX_POSITIONS", 2)
    assert Minimax("tic_tac_toe").policy(state) == {6: 1.0}
    monkeypatch.setattr(solver, "MAX_POSITIONS", 1)
    with pytest.raises(InputError) as caught:
        Minimax("tic_tac_toe").policy(state)
    assert str(caught.value) == (
        "opponent: no optimal player for tic_tac_toe: it has too many positions. Use random as the opponent"
    )


def test_listing_positions_has_a_time_limit(monkeypatch):
    monkeypatch.setattr(openspiel_game, "MAX_SECONDS", -1.0)
    with pytest.raises(InputError, match="kuhn_poker has too many positions to list in"):
        information_states("kuhn_poker")
