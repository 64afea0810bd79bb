"""TextArena games turn by turn: exact observations, seeds of the draws, moves by family, invalid moves."""

import pytest

from sparring.core import EpisodeError
from sparring.envs.catalog import make_game

"""A seed that is longer than the 32 bits which TextArena and numpy accept."""


def test_an_observation_leaves_out_the_rules_and_nothing_else():
    game = make_game("LiarsDice-v0-train", 2, 0)
    assert game.rules(1).startswith("You are Player 1 in an 2-player Liar's Dice game.\nRules:\n")
    assert game.rules(1).endswith("The last remaining player wins.")
    dealt = game.state.observations[1][1][1].strip()
    assert dealt.startswith(
        "New round - Remaining dice: \tPlayer 0: 5; \tPlayer 1: 5\nYour current Dice are: "
    )
    game.apply("[bid: 1, 2]")
    assert game.observation(1) == f"{dealt}\n Player 0 bids 1 of face 2."
    assert game.view(1) == game.brief(1) == game.observation(1)


def test_the_board_is_all_that_is_shown_even_after_an_invalid_move_that_is_forgiven():
    game = make_game("TicTacToe-v0-train", 2, 0, error_allowance=1)
    board = "0 1 2\n3 4 5\n6 7 8\nAvailable Moves: [0], [1], [2], [3], [4], [5], [6], [7], [8]"
    for _ in range(2):
        assert game.brief(0) == f"Current Board:\n{board}"
        assert game.view(0) == game.observation(0)
        game.apply("[99]")


def test_a_player_who_made_an_invalid_move_is_reported_even_if_the_move_was_forgiven():
    game = make_game("LiarsDice-v0-train", 2, 0, error_allowance=1)
    assert not game.apply("[nonsense]")
    assert game.apply("[bid: 1, 1]")
    assert game.apply("[bid: 2, 2]")
    assert game.apply("[bid: 3, 3]")
    game.truncate()
    info = {"truncated": True, "reason": "the turn limit was reached"}
    assert game.game_info() == {
        0: {"role": "Player 0", "turn_count": 1, "invalid_move": True, **info},
        1: {"role": "Player 1", "turn_count": 2, "invalid_move": False, **info},
    }


def test_a_turn_of_a_player_who_does_not_exist_is_an_episode_error():
    game = make_game("PigDice-v0-train", 2, 0)
    game.state.num_players = 3
    game.state.observations[2], game.state.game_info[2] = [], {"turn_count": 0}
    assert game.apply("[hold]")
    with pytest.raises(EpisodeError) as caught:
        game.apply("[hold]")
    assert str(caught.value) == "PigDice-v0-train gave the turn to player 2 of 2"


COLUMNS = [f"[col {column}]" for column in range(7)]


@pytest.mark.parametrize(
    ("env_id", "moves", "legal"),
    [
        ("ConnectFour-v0-train", ["[col 0]"] * 5, COLUMNS),
        ("ConnectFour-v0-train", ["[col 0]"] * 6, COLUMNS[1:]),
        ("IteratedRockPaperScissors-v0-train", [], ["[rock]", "[paper]", "[scissors]"]),
        ("KuhnPoker-v0-train", [], ["[check]", "[bet]"]),
        ("KuhnPoker-v0-train", ["[check]", "[bet]"], ["[fold]", "[call]"]),
        ("Nim-v0-train", ["[0 2]", "[1 4]", "[2 3]"], ["[0 1]", "[2 1]", "[2 2]"]),
        ("PigDice-v0-train", [], ["[roll]", "[hold]"]),
        ("SimpleTak-v0-train", [f"[{cell}]" for cell in range(12)], ["[12]", "[13]", "[14]", "[15]"]),
        ("TicTacToe-v0-train", ["[4]", "[0]", "[8]"], ["[1]", "[2]", "[3]", "[5]", "[6]", "[7]"]),
        (
            "WildTicTacToe-v0-train",
            ["[X 4]", "[O 0]", "[X 1]", "[O 2]", "[X 6]", "[O 3]"],
            ["[X 5]", "[O 5]", "[X 7]", "[O 7]", "[X 8]", "[O 8]"],
        ),
    ],
)
def test_the_legal_moves_are_exactly_these_in_the_spelling_of_the_prompt(env_id, moves, legal):
    game = make_game(env_id, 2, 0)
    for move in moves:
        assert game.apply(move)
    assert game.legal_actions() == legal


def test_a_player_of_othello_without_a_move_may_only_skip():
    game = make_game("Othello-v0-tiny-train", 2, 0)
    for move in ("[0, 1]", "[0, 2]", "[2, 3]", "[0, 0]"):
        assert game.apply(move)
    pid = game.current_pid
    assert game.legal_actions() == ["[skip]"]
    assert game.apply("[skip]")
    assert game.current_pid != pid


def test_rules_that_are_quoted_later_in_an_observation_stay():
    game = make_game("PigDice-v0-train", 2, 0)
    without_rules = game.observation(0)
    prompt = game.state.observations[1].pop(0)
    game.state.observations[1].append(prompt)
    game.apply("[hold]")
    assert game.rules(1) == prompt[1].strip()
    assert game.observation(1) == without_rules
