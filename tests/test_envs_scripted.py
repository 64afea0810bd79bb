"""Scripted players."""

from collections import Counter

import pyspiel
import pytest

from sparring.core import InputError
from sparring.envs.catalog import make_game
from sparring.envs.openspiel_game import game_at, information_states
from sparring.envs.scripted import make_player
from sparring.envs.solver import solve


def play(env_id, names, seed):
    game = make_game(env_id, len(names), seed)
    players = [make_player(name, env_id, seed) for name in names]
    turn = 0
    while not game.done:
        assert game.apply(players[game.current_pid].act(game, 1000 * seed + turn))
        turn += 1
    return game.rewards()


@pytest.mark.parametrize("env_id", ["tic_tac_toe", "TicTacToe-v0-train"])
def test_the_optimal_player_never_loses_tic_tac_toe(env_id):
    rewards = [play(env_id, ("optimal", "random"), seed)[0] for seed in range(40)]
    rewards += [play(env_id, ("random", "optimal"), seed)[1] for seed in range(40)]
    assert min(rewards) >= 0
    assert sum(rewards) > 40


def test_the_kuhn_equilibrium_cannot_be_exploited():
    solution = solve("kuhn_poker")
    table = {
        decision.info_state: list(solution.policy(game_at("kuhn_poker", decision.history).state).items())
        for decision in information_states("kuhn_poker")
    }
    game = pyspiel.load_game("kuhn_poker")
    assert 0 <= pyspiel.nash_conv(game, pyspiel.TabularPolicy(table)) < 0.01


def test_the_kuhn_equilibrium_does_what_every_equilibrium_does():
    player = make_player("optimal", "kuhn_poker", 0)
    facing_bet_with_king = game_at("kuhn_poker", (0, 2, 1))
    facing_bet_with_jack = game_at("kuhn_poker", (1, 0, 1))
    opening_with_queen = game_at("kuhn_poker", (1, 0))
    for game, move in (
        (facing_bet_with_king, "call"),
        (facing_bet_with_jack, "fold"),
        (opening_with_queen, "check"),
    ):
        moves = Counter(player.act(game, seed) for seed in range(200))
        assert moves[move] > 190


def test_the_random_player_is_uniform_and_repeatable():
    game = make_game("KuhnPoker-v0-train", 2, 0)
    player = make_player("random", "KuhnPoker-v0-train", 7)
    moves = [player.act(game, seed) for seed in range(1000)]
    assert moves == [make_player("random", "KuhnPoker-v0-train", 7).act(game, seed) for seed in range(1000)]
    assert moves != [make_player("random", "KuhnPoker-v0-train", 8).act(game, seed) for seed in range(1000)]
    assert 440 < Counter(moves)["[bet]"] < 560


@pytest.mark.parametrize(
    ("name", "env_id", "line"),
    [
        ("best", "kuhn_poker", "no scripted player 'best'"),
        ("random", "SimpleNegotiation-v0-train", "does not list its legal moves"),
        ("optimal", "ConnectFour-v0-train", "no optimal player for ConnectFour-v0-train"),
        ("optimal", "kuhn_poker(players=3)", "not a two-player zero-sum game"),
        ("optimal", "liars_dice", "more than 5,000"),
        ("optimal", "chess", "too long"),
    ],
)
def test_impossible_players_are_rejected(name, env_id, line):
    with pytest.raises(InputError, match=line):
        make_player(name, env_id, 0)
