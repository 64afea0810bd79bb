"""Games of one's own that pay on the way: what is paid arrives, as numbers that are checked."""

import pytest

from sparring.core import EpisodeError
from sparring.envs.catalog import make_game

COINS = '''
from sparring.envs.game import Game


class Coins(Game):
    """Players take turns to take a coin, worth its number; a few are dropped."""

    def __init__(self, env_id, num_players, seed):
        super().__init__(env_id, num_players)
        self.turn, self.new, self.total = 0, {{}}, {{0: 0, 1: 0}}

    @property
    def current_pid(self):
        return self.turn % 2

    def rules(self, pid):
        return "Say take."

    def observation(self, pid):
        return f"Coin {{self.turn}}."

    def legal_actions(self):
        return ["take", "leave"]

    def apply(self, action):
        self.new = {{self.current_pid: {paid}}}
        self.total[self.current_pid] += self.turn + 1
        self.turn += 1
        return True

    def earned(self):
        new, self.new = self.new, {{}}
        return new

    def _finished(self):
        return self.turn == 6

    def _own_rewards(self):
        return self.total
'''


@pytest.fixture
def coins(tmp_path):
    def written(paid):
        (tmp_path / "coins.py").write_text(COINS.format(paid=paid))
        return f"{tmp_path / 'coins.py'}:Coins"

    return written


@pytest.mark.parametrize(
    "kind", ["int", "float", "__import__('numpy').float32", "__import__('fractions').Fraction"]
)
def test_what_a_game_pays_is_a_float(kind, coins):
    game = make_game(coins(f"{kind}(self.turn + 1)"), 2, 0)
    game.apply("take")
    paid = game.earned()
    assert paid == {0: 1.0}
    assert type(paid[0]) is float
    assert game.earned() == {}


@pytest.mark.parametrize(
    ("paid", "problem"),
    [
        ("float('nan')", "Coins.earned for player 0 gave nan, which is not a finite number"),
        ("'much'", "Coins.earned for player 0 gave 'much', which is not a finite number"),
        ("1, 2: 1", "Coins.earned pays 2, no player of 0 to 1"),
    ],
)
def test_what_is_no_payment_is_an_error_of_the_game(paid, problem, coins):
    game = make_game(coins(paid), 2, 0)
    game.apply("take")
    with pytest.raises(EpisodeError, match=problem):
        game.earned()
