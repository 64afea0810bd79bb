"""Reward transforms as configurations describe them."""

import pytest

from sparring.config import load_config
from sparring.core import InputError
from sparring.run.rewards import composed_transforms


def test_rewards_are_divided_by_half_the_range_of_their_own_game():
    games = ("kuhn_poker", "leduc_poker", "tic_tac_toe", "kuhn_poker(players=3)", "TicTacToe-v0-train")
    envs = ", ".join(f'{{id = "{game}", num_players = {3 if "3" in game else 2}}}' for game in games)
    config = load_config("quickstart", {"envs": f"[{envs}]", "rewards.final": '[{type = "game_range"}]'})
    transform = composed_transforms(config)[0]
    assert transform is not None
    found = [transform({1: -2.0}, game)[1] for game in games]
    # Three players of Kuhn poker pay -2 to 4.
    assert found == pytest.approx([-1.0, -2 / 13, -2.0, -2 / 3, -2.0])


def test_a_program_has_no_range_of_rewards():
    with pytest.raises(InputError, match="game_range is for games"):
        load_config("proposer-solver", {"rewards.final": '[{type = "game_range"}]'})
