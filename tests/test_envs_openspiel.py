"""OpenSpiel games."""

import random
import subprocess
import sys

import pytest

from sparring.core import EpisodeError, InputError
from sparring.envs.catalog import make_game
from sparring.envs.openspiel_game import OpenSpielGame, game_at, information_states, load_game
from sparring.envs.templates import get_template


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


def test_a_move_does_not_begin_with_the_number_of_its_player():
    game = OpenSpielGame("turn_based_simultaneous_game(game=matrix_rps())", 0)
    assert game.legal_actions() == ["Rock", "Paper", "Scissors"]
    assert game.apply("Rock")
    assert game.legal_actions() == ["Rock", "Paper", "Scissors"]


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


GOOFSPIEL = [
    ("num_cards=4,imp_info=True,points_order=descending", 162),
    ("num_cards=3,imp_info=True,points_order=random", 90),
    ("num_cards=3,points_order=ascending", 20),
    ("num_cards=3,players=3,points_order=descending,egocentric=True,imp_info=True", 30),
]
"""Parameters of goofspiel, and how many information states it has with them."""


@pytest.mark.parametrize(
    ("env_id", "count", "told_apart"),
    [
        ("kuhn_poker", 12, 12),
        ("kuhn_poker(players=3)", 48, 48),
        ("leduc_poker", 936, 288),
        ("liars_dice(dice_sides=3)", 192, 192),
        ("liars_dice(dice_sides=3,bidding_rule=reset-quantity)", 192, 192),
        *((f"turn_based_simultaneous_game(game=goofspiel({own}))", n, n) for own, n in GOOFSPIEL),
    ],
)
def test_information_states_are_complete_and_distinct_except_for_suits(env_id, count, told_apart):
    states = information_states(env_id)
    assert len(states) == count
    assert len({(state.pid, state.observation) for state in states}) == told_apart
    assert all(len(state.legal_actions) == len(state.actions) for state in states)


def test_games_with_too_many_information_states_are_rejected():
    with pytest.raises(InputError, match="more than 5,000 information states or 50,000 positions"):
        information_states("liars_dice", 5000, 50_000)
    with pytest.raises(InputError, match="more than 50,000 information states"):
        information_states("tic_tac_toe")


def test_a_rejected_game_prints_nothing_besides_its_error(capfd):
    with pytest.raises(InputError, match=r"rejects 'kuhn_poker\(players=31\)': it is for 2 to 10 players"):
        load_game("kuhn_poker(players=31)")
    assert capfd.readouterr() == ("", "")


def test_games_are_loaded_without_a_standard_error():
    code = "from sparring.envs.openspiel_game import load_game; print(load_game('kuhn_poker'))"
    command = f'exec "{sys.executable}" -c "{code}" 2>&-'
    found = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True)
    assert found.stdout == "kuhn_poker()\n"


def test_words_follow_the_parameters_of_a_game():
    for is_misere, last in (("false", "wins"), ("true", "loses")):
        assert f"last stone {last}" in OpenSpielGame(f"nim(is_misere={is_misere})", 0).rules(0)
    same_suits = game_at("leduc_poker(suit_isomorphism=true)", (2, 1))
    assert same_suits.observation(0).endswith("Your card: K.")


PAY_ON_THE_WAY = ["hanabi(players=2,colors=2,ranks=2,hand_size=3)", "deep_sea", "cliff_walking", "2048"]
PAY_AT_THE_END = ["kuhn_poker", "tic_tac_toe"]


def played(env_id, seed, ends=lambda game: None):
    """What the players of a game earned after each random move, and its rewards."""
    game, rng = OpenSpielGame(env_id, seed), random.Random(seed)
    earned = [game.earned()]
    while not game.done:
        game.apply(rng.choice(game.legal_actions()))
        if len(earned) > 3:
            ends(game)
        earned.append(game.earned())
    return earned, game.rewards()


@pytest.mark.parametrize("env_id", PAY_ON_THE_WAY)
def test_what_a_game_pays_on_the_way_adds_up_to_its_rewards(env_id):
    paid_before = 0
    for seed in range(12):
        for ends in (lambda game: None, lambda game: game.done or game.forfeit(0, "nonsense")):
            earned, rewards = played(env_id, seed, ends)
            paid_before += any(any(one.values()) for one in earned[:-1])
            assert {pid: sum(one[pid] for one in earned) for pid in rewards} == pytest.approx(rewards)
    assert paid_before > 0


@pytest.mark.parametrize("env_id", PAY_AT_THE_END)
def test_a_game_that_pays_at_its_end_pays_nothing_on_the_way(env_id):
    earned, _ = played(env_id, 0)
    assert not any(earned)
