"""How often moves keep the value of a position, against positions whose values are known."""

import pytest

from sparring.core import InputError
from sparring.envs.catalog import make_game
from sparring.envs.openspiel_game import OpenSpielGame
from sparring.envs.scripted import make_player
from sparring.evaluation import kept_value
from sparring.evaluation.kept_value import solved_game


def turns(*moves):
    """Turns of two players one after the other; a move of ``None`` is invalid."""
    return [
        {"pid": number % 2, "action": move or "?", "invalid": move is None}
        for number, move in enumerate(moves)
    ]


def cells(*actions):
    """The names of OpenSpiel's moves in tic_tac_toe, in the order in which they are played."""
    game, names = OpenSpielGame("tic_tac_toe", seed=0), []
    for action in actions:
        names.append(game.legal_actions()[game.state.legal_actions().index(action)])
        assert game.apply(names[-1])
    return names


def test_a_blunder_does_not_keep_the_value():
    # x opens in a corner. Only the centre draws; o answers beside it instead, and x lets o off.
    game = cells(0, 1, 8)
    second = kept_value("tic_tac_toe", [(1, turns(*game))])
    assert (second.positions, second.kept, second.tested, second.tested_kept) == (1, 0, 1, 0)
    first = kept_value("tic_tac_toe", [(0, turns(*game))])
    assert (first.positions, first.tested) == (2, 1), "every opening draws, so none is a test"
    assert first.kept == 1 + first.tested_kept


def test_an_invalid_move_keeps_nothing_and_leaves_the_position():
    corner = cells(0)
    answered = [*turns(*corner, None), {"pid": 1, "action": cells(0, 4)[1], "invalid": False}]
    result = kept_value("tic_tac_toe", [(1, answered)])
    assert (result.positions, result.kept, result.distinct) == (2, 1, 1)
    assert result.share == pytest.approx((0.0945, 0.5, 0.9055), abs=1e-4)


def test_textarenas_board_is_openspiels():
    game = turns("[0]", "[1]", "[8]")
    assert kept_value("TicTacToe-v0-train", [(1, game)]).kept == 0
    assert kept_value("TicTacToe-v0-train", [(1, turns("[0]", "[4]"))]).kept == 1


def played(env_id, seed):
    """The turns of a game of a random player, who begins in every other one, against a perfect one."""
    game, found = make_game(env_id, 2, seed), []
    players = [make_player(name, env_id, seed) for name in ("random", "optimal")]
    while not game.done:
        pid = game.current_pid
        move = players[(pid + seed) % 2].act(game, len(found))
        found.append({"pid": pid, "action": move, "invalid": False})
        assert game.apply(move)
    return found


@pytest.mark.parametrize(
    "env_id", ["tic_tac_toe", "nim", "connect_four(rows=4,columns=4,x_in_row=3)", "TicTacToe-v0-train"]
)
def test_a_perfect_player_always_keeps_the_value_and_a_random_one_does_not(env_id):
    games = [(seed % 2, played(env_id, seed)) for seed in range(20)]
    random = kept_value(env_id, games)
    perfect = kept_value(env_id, [(1 - seat, one) for seat, one in games])
    assert perfect.kept == perfect.positions > 0
    assert random.kept < random.positions
    assert random.positions - random.kept == random.tested - random.tested_kept


@pytest.mark.parametrize("env_id", ["kuhn_poker", "ConnectFour-v0-train", "backgammon", "chess", "pig"])
def test_games_that_minimax_does_not_solve_have_no_such_measure(env_id):
    assert solved_game(env_id) is None
    with pytest.raises(InputError, match="is not solved by minimax"):
        kept_value(env_id, [])


@pytest.mark.slow  # test_evaluation_nash_conv rejects games that are too large
def test_a_game_of_too_many_positions_says_so():
    with pytest.raises(InputError, match="it has too many positions"):
        kept_value("connect_four", [(0, turns(_first_move("connect_four")))])


def _first_move(env_id):
    return OpenSpielGame(env_id, seed=0).legal_actions()[0]
