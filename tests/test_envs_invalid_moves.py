"""What an invalid move that ends a game pays, in every OpenSpiel game that can be played here."""

import random

import pyspiel
import pytest

from sparring.core import EpisodeError
from sparring.envs.catalog import list_environments, make_game
from sparring.envs.openspiel_game import load_game

LISTED = [env.env_id for env in list_environments() if env.library == "openspiel" and env.playable]
NOT_LOADABLE = ("nfg_game", "normal_form_extensive_game", "repeated_game")
TURN_BASED = [
    f"turn_based_simultaneous_game(game={kind.short_name}())"
    for kind in pyspiel.registered_games()
    if kind.dynamics == kind.Dynamics.SIMULTANEOUS and kind.short_name not in NOT_LOADABLE
]
WITH_PARAMETERS = [
    "kuhn_poker(players=3)",
    "leduc_poker(players=3)",
    "misere(game=kuhn_poker())",
    "battleship(loss_multiplier=2.0)",
    "hanabi(players=3)",
    "turn_based_simultaneous_game(game=goofspiel(players=3,returns_type=win_loss))",
    "turn_based_simultaneous_game(game=goofspiel(num_cards=4,returns_type=total_points))",
]
SLOW = ("bridge", "bridge_uncontested_bidding")
"""Games whose results take seconds; they are compared with OpenSpiel's bounds only."""
LATE = (*SLOW, "colored_trails", "yacht")
"""Games that are tested slowly."""


def played(env_id: str, seed: int) -> dict[int, float] | None:
    """Return the result of a game of random legal moves, or ``None`` if it does not end soon."""
    if env_id in SLOW:
        return None
    rng = random.Random(seed)
    game = make_game(env_id, load_game(env_id).num_players(), seed)
    for _ in range(200):
        if game.done:
            return game.rewards()
        assert game.apply(rng.choice(game.legal_actions()))
    return None


def forfeited(env_id: str, pid: int) -> list[float]:
    """Return what an invalid move of a seat pays, in order of the seats."""
    players = load_game(env_id).num_players()
    game = make_game(env_id, players, 0)
    game.forfeit(pid, "nonsense")
    assert game.invalid_rewards(pid) == [game.rewards()[seat] for seat in range(players)]
    return game.invalid_rewards(pid)


@pytest.mark.parametrize(
    "env_id",
    [
        pytest.param(env_id, marks=[pytest.mark.slow] if env_id in LATE else [])
        for env_id in (*LISTED, *TURN_BASED, *WITH_PARAMETERS)
    ],
)
def test_an_invalid_move_costs_its_player_most_and_pays_nobody_more_than_a_legal_game(env_id):
    game = load_game(env_id)
    kind, players = game.get_type(), game.num_players()
    worst, best = game.min_utility(), game.max_utility()
    results = [found for seed in range(2) if (found := played(env_id, seed)) is not None]
    for pid in {0, players - 1}:
        rewards = forfeited(env_id, pid)
        others = [reward for seat, reward in enumerate(rewards) if seat != pid]
        assert rewards[pid] == worst <= min((min(one.values()) for one in results), default=best)
        assert all(worst <= reward <= best for reward in others)
        if kind.utility in (kind.Utility.ZERO_SUM, kind.Utility.CONSTANT_SUM):
            assert sum(rewards) == pytest.approx(game.utility_sum())
            assert len(set(others)) == 1
        elif kind.utility == kind.Utility.IDENTICAL:
            assert others == [worst] * (players - 1)
        else:
            assert all(reward > worst for reward in others), "nobody else is punished"
            assert all(reward == 0.0 or worst >= 0.0 for reward in others)
    for one in results:
        if kind.utility == kind.Utility.IDENTICAL:
            assert len(set(one.values())) == 1
        if kind.utility == kind.Utility.ZERO_SUM:
            assert sum(one.values()) == pytest.approx(0.0)


@pytest.mark.parametrize(
    ("env_id", "pid", "rewards"),
    [
        ("kuhn_poker", 1, [2.0, -2.0]),
        ("leduc_poker", 0, [-13.0, 13.0]),
        ("tic_tac_toe", 0, [-1.0, 1.0]),
        ("kuhn_poker(players=3)", 1, [1.0, -2.0, 1.0]),
        ("turn_based_simultaneous_game(game=matrix_coordination())", 0, [0.0, 0.0]),
        ("tiny_bridge_2p", 0, [-40.0, -40.0]),
        ("tiny_hanabi", 1, [0.0, 0.0]),
        ("bargaining", 0, [0.0, 5.0]),
        ("trade_comm", 1, [0.5, 0.0]),
        ("hearts", 2, [18.0, 18.0, 0.0, 18.0]),
        ("negotiation", 1, [0.0, -150.0]),
        ("crazy_eights", 0, [-544.0, 0.0, 0.0, 0.0, 0.0]),
        ("solitaire", 0, [0.0]),
    ],
)
def test_what_an_invalid_move_pays_by_hand(env_id, pid, rewards):
    assert forfeited(env_id, pid) == rewards


COOPERATIVE = """
from sparring.envs.game import Game

class Pair(Game):
    current_pid = 0
    def __init__(self, env_id, num_players, seed): super().__init__(env_id, num_players)
    def rules(self, pid): return "Say 1."
    def observation(self, pid): return "Now."
    def legal_actions(self): return ["1"]
    def apply(self, action): return True
    def _finished(self): return False
    def _own_rewards(self): return {0: 1.0, 1: 1.0}

class Together(Pair):
    def _invalid_rewards(self, pid): return {1: -5, 0: -5}

class Forgets(Pair):
    def _invalid_rewards(self, pid): return {pid: -5.0}

class Words(Pair):
    def _invalid_rewards(self, pid): return {0: -1.0, 1: "nothing"}

class Nothing(Pair):
    def _invalid_rewards(self, pid): pass
"""


def test_a_game_of_ones_own_says_what_an_invalid_move_pays(tmp_path):
    file = tmp_path / "pairs.py"
    file.write_text(COOPERATIVE)
    assert make_game(f"{file}:Pair", 2, 0).invalid_rewards(1) == [1.0, -1.0]
    game = make_game(f"{file}:Together", 2, 0)
    game.forfeit(1, "nonsense")
    assert (game.invalid_rewards(0), game.rewards()) == ([-5.0, -5.0], {0: -5.0, 1: -5.0})


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("Forgets", "gave no reward to player 0"),
        ("Words", "not a finite number"),
        ("Nothing", r"Nothing\._invalid_rewards returned None, not a dict"),
    ],
)
def test_an_invalid_move_that_pays_no_number_fails_the_game_in_one_line(tmp_path, name, problem):
    file = tmp_path / "pairs.py"
    file.write_text(COOPERATIVE)
    with pytest.raises(EpisodeError, match=problem):
        make_game(f"{file}:{name}", 2, 0).forfeit(1, "nonsense")
    with pytest.raises(EpisodeError, match=problem):
        make_game(f"{file}:{name}", 2, 0).invalid_rewards(1)
