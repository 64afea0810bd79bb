"""OpenSpiel games."""

import random
import subprocess
import sys

import pytest

from sparring.core import EpisodeError, InputError
from sparring.envs.catalog import make_game
from sparring.envs.openspiel_game import OpenSpielGame, game_at, information_states, load_game
from sparring.envs.templates import get_template


def play(game, seed):
    draw = random.Random(seed)
    moves = []
    while not game.done:
        moves.append(draw.choice(game.legal_actions()))
        assert game.apply(moves[-1])
    return moves


def test_kuhn_poker_has_its_own_wording():
    game = game_at("kuhn_poker", (2, 0))
    assert game.observation(0) == "Moves so far: none. Legal moves: check, bet. Your card: K."
    assert game.apply("check")
    assert game.observation(1) == "Moves so far: they check. Legal moves: check, bet. Your card: J."
    assert game.apply("bet")
    assert game.observation(0) == "Moves so far: you check, they bet. Legal moves: fold, call. Your card: K."
    assert game.apply("call")
    assert game.rewards() == {0: 2.0, 1: -2.0}


def test_kuhn_poker_of_three_names_the_players_and_four_cards():
    game = game_at("kuhn_poker(players=3)", (0, 3, 1, 0, 1))
    assert game.num_players == 3
    assert game.observation(2).startswith("Moves so far: player 0 check, player 1 bet.")
    assert game.observation(2).endswith("Your card: J.")
    assert "T, J, Q, K" in game.rules(2)


def test_kuhn_prompts_share_everything_before_the_position():
    prompts = [
        get_template("fewshot-chat").messages(game_at("kuhn_poker", state.history), state.pid)
        for state in information_states("kuhn_poker")
    ]
    assert len(prompts) == 12
    assert all(prompt[:-1] == prompts[0][:-1] for prompt in prompts)
    assert len({prompt[-1]["content"] for prompt in prompts}) == 12


def test_the_same_seed_deals_the_same_cards_and_other_seeds_other_cards():
    deals = [tuple(OpenSpielGame("kuhn_poker", seed).state.history()) for seed in range(60)]
    again = [tuple(OpenSpielGame("kuhn_poker", seed).state.history()) for seed in range(60)]
    assert deals == again
    assert len(set(deals)) == 6


def test_chance_in_mid_game_follows_from_the_seed():
    def cards(seed):
        game = OpenSpielGame("leduc_poker", seed)
        for move in ("call", "call"):
            game.apply(move)
        return tuple(game.state.history())

    assert cards(5) == cards(5)
    assert len({cards(seed) for seed in range(40)}) > 20


def test_leduc_poker_has_its_own_wording():
    game = game_at("leduc_poker", (2, 0, 2, 1, 5))
    assert game.observation(0) == (
        "Round 1: raise call. Round 2: none. Legal moves: call, raise. Public card: K. Your card: Q."
    )


def test_leduc_poker_of_three_has_a_fourth_rank():
    game = game_at("leduc_poker(players=3)", (7, 0, 2))
    assert "Cards T, J, Q, K, two of each" in game.rules(0)
    assert game.observation(0).endswith("Your card: K.")


def test_leduc_poker_whose_suits_make_no_difference_numbers_ranks():
    assert game_at("leduc_poker(suit_isomorphism=true)", (2, 1)).observation(0).endswith("Your card: K.")


def test_tic_tac_toe_shows_free_cells_by_number():
    game = OpenSpielGame("tic_tac_toe", 0)
    game.apply("4")
    assert game.observation(1) == "0 1 2\n3 x 5\n6 7 8"


def test_nim_names_a_pile_and_stones_and_reads_the_same_from_both_seats():
    game = OpenSpielGame("nim(pile_sizes=1;2;3)", 0)
    assert game.rules(0) == game.rules(1)
    assert "last stone loses" in game.rules(0)
    assert game.observation(0) == "Piles: 1 2 3. Legal moves: 1:1, 2:1, 3:1, 2:2, 3:2, 3:3."
    assert game.apply("3:2")
    assert game.observation(1) == game.observation(0) == "Piles: 1 2 1. Legal moves: 1:1, 2:1, 3:1, 2:2."
    for move in ("2:2", "1:1", "3:1"):
        assert game.apply(move)
    assert game.rewards() == {0: 1.0, 1: -1.0}


def test_nim_says_if_the_last_stone_wins():
    assert "last stone wins" in OpenSpielGame("nim(is_misere=false)", 0).rules(0)


def test_a_move_does_not_begin_with_the_number_of_its_player():
    game = OpenSpielGame("turn_based_simultaneous_game(game=goofspiel(num_cards=3,imp_info=True))", 0)
    assert game.legal_actions() == ["Bid: 1", "Bid: 2", "Bid: 3"]
    assert game.apply("Bid: 2")
    assert game.legal_actions() == ["Bid: 1", "Bid: 2", "Bid: 3"]
    assert game.apply("Bid: 3")
    assert game.legal_actions() == ["Bid: 1", "Bid: 3"]


def test_an_illegal_move_is_rejected_and_changes_nothing():
    game = game_at("kuhn_poker", (2, 0))
    assert not game.apply("call")
    assert not game.apply("")
    assert game.observation(0).startswith("Moves so far: none.")


def test_forfeiting_is_never_better_than_the_worst_outcome():
    game = OpenSpielGame("kuhn_poker", 0)
    game.forfeit(1, "nonsense")
    assert game.done
    assert game.rewards() == {0: 2.0, 1: -2.0}
    assert game.game_info()[1]["invalid_move"]
    assert not game.game_info()[0]["invalid_move"]


def test_an_unfinished_game_has_no_rewards():
    with pytest.raises(EpisodeError, match="not over"):
        OpenSpielGame("kuhn_poker", 0).rewards()


@pytest.mark.parametrize(
    "env_id",
    [
        "kuhn_poker",
        "leduc_poker",
        "tic_tac_toe",
        "connect_four",
        "liars_dice",
        "hive",
        "battleship",
        "backgammon",
        "negotiation",
        "pig",
        "catch",
        "2048",
        "turn_based_simultaneous_game(game=goofspiel())",
    ],
)
def test_moves_have_distinct_names_that_every_template_reads_back(env_id):
    players = OpenSpielGame(env_id, 1).num_players
    game = make_game(env_id, players, 1)
    draw = random.Random(0)
    for _ in range(25):
        if game.done:
            break
        legal = game.legal_actions()
        assert len(set(legal)) == len(legal)
        assert game.observation(game.current_pid)
        for template in map(get_template, ("fewshot-chat", "default")):
            assert all(template.extract(template.answer(move)) == (move, True) for move in legal)
        assert game.apply(draw.choice(legal))


def test_a_whole_game_is_zero_sum():
    for seed in range(20):
        game = OpenSpielGame("leduc_poker", seed)
        play(game, seed)
        assert sum(game.rewards().values()) == 0


@pytest.mark.parametrize(
    ("env_id", "count", "told_apart"),
    [("kuhn_poker", 12, 12), ("kuhn_poker(players=3)", 48, 48), ("leduc_poker", 936, 288)],
)
def test_information_states_are_complete_and_distinct_except_for_suits(env_id, count, told_apart):
    states = information_states(env_id)
    assert len(states) == count
    assert len({(state.pid, state.observation) for state in states}) == told_apart
    assert all(len(state.legal_actions) == len(state.actions) for state in states)


def test_information_states_agree_with_the_game_at_their_history():
    for state in information_states("kuhn_poker"):
        game = game_at("kuhn_poker", state.history)
        assert game.current_pid == state.pid
        assert game.state.information_state_string(state.pid) == state.info_state
        assert game.observation(state.pid) == state.observation
        assert tuple(game.legal_actions()) == state.legal_actions


def test_games_with_too_many_information_states_are_rejected():
    with pytest.raises(InputError, match="more than 5,000 information states or 50,000 positions"):
        information_states("liars_dice", 5000, 50_000)
    with pytest.raises(InputError, match="more than 50,000 information states"):
        information_states("tic_tac_toe")


def test_a_rejected_game_prints_nothing_besides_its_error(capfd):
    with pytest.raises(InputError, match=r"rejects 'kuhn_poker\(players=31\)': num_players_ = 31"):
        load_game("kuhn_poker(players=31)")
    assert capfd.readouterr() == ("", "")


def test_games_are_loaded_without_a_standard_error():
    code = "from sparring.envs.openspiel_game import load_game; print(load_game('kuhn_poker'))"
    command = f'exec "{sys.executable}" -c "{code}" 2>&-'
    found = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True)
    assert found.stdout == "kuhn_poker()\n"
