"""Reference pools: fixed strengths, payoffs that ship, and ratings that further members do not move."""

from itertools import permutations

import numpy as np
import pyspiel
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from make_reference_pools import GAMES, make_pool
from sparring.core import InputError
from sparring.envs.openspiel_game import game_at
from sparring.envs.scripted import OPTIMAL_SHARES, make_player
from sparring.evaluation.exact_payoffs import exact_payoff, policy_of
from sparring.evaluation.nash_conv import nash_conv_of_table, states_of
from sparring.evaluation.reference import reference_pool, reference_pools
from sparring.evaluation.schedule import GameSchedule
from sparring.population.ratings import anchored_rating, ratings_of_shares

IN_ORDER = ("optimal", *OPTIMAL_SHARES, "random")
"""The strongest first."""


def openspiel_policy(name, env_id):
    chances = zip(states_of(env_id), policy_of(env_id, make_player(name, env_id, 0)), strict=True)
    return pyspiel.TabularPolicy(
        {state.info_state: list(zip(state.actions, one, strict=True)) for state, one in chances}
    )


@pytest.mark.parametrize("env_id", reference_pools())
def test_a_script_nearer_to_optimal_play_has_a_higher_rating(env_id):
    pool = reference_pool(env_id)
    rated = dict(zip(pool.members, pool.ratings, strict=True))
    found = [rated[name] for name in IN_ORDER if name in rated]
    assert found == sorted(found, reverse=True)
    assert rated["random"] == 1000
    assert len({*found}) == len(found)


@pytest.mark.parametrize("env_id", ["kuhn_poker", "liars_dice(dice_sides=3)"])
def test_a_script_nearer_to_optimal_play_is_less_exploitable(env_id):
    players = [make_player(name, env_id, 0) for name in IN_ORDER]
    found = [nash_conv_of_table(env_id, policy_of(env_id, one)) for one in players]
    assert found == sorted(found)
    assert found[0] < 0.01 < found[1]


def test_a_weakened_player_decides_at_each_move_anew():
    table = game_at("tic_tac_toe", (0, 3, 1, 4))  # the cell 2 wins
    chances = make_player("optimal-75", "tic_tac_toe", 0).chances(table)
    found = dict(
        zip(table.state.legal_actions(), (chances[one] for one in table.legal_actions()), strict=True)
    )
    assert found == pytest.approx({2: 0.75 + 0.25 / 5, 5: 0.05, 6: 0.05, 7: 0.05, 8: 0.05})


@pytest.mark.parametrize(
    "pair", [("random", "optimal"), ("optimal-50", "always-call"), ("always-first", "random")]
)
def test_exact_payoffs_are_those_of_openspiel(pair):
    players = [make_player(name, "kuhn_poker", 0) for name in pair]
    policies = [openspiel_policy(name, "kuhn_poker") for name in pair]
    root = pyspiel.load_game("kuhn_poker").new_initial_state()
    expected = pyspiel.expected_returns(root, policies, -1, True)
    assert exact_payoff("kuhn_poker", players) == pytest.approx(expected, abs=1e-9)


def assert_is_what_ships(env_id):
    """CFR+ rounds elsewhere as it likes."""
    made, ships = make_pool(env_id), reference_pool(env_id)
    assert made.members == ships.members
    for name in ("mean", "error", "ratings"):
        assert np.allclose(
            getattr(made, name), getattr(ships, name), atol=1e-2 if name == "ratings" else 1e-4
        )


def test_the_pool_that_ships_is_what_its_members_are():
    assert_is_what_ships("kuhn_poker")
    assert [*reference_pools()] == [*GAMES]


@pytest.mark.slow
@pytest.mark.parametrize("env_id", GAMES)
def test_every_pool_that_ships_is_what_its_members_are(env_id):
    assert_is_what_ships(env_id)


def test_a_game_without_a_pool_names_those_with_one():
    with pytest.raises(InputError, match=r"chess has no reference pool\. Games with one: kuhn_poker, "):
        reference_pool("chess")


@given(st.floats(500, 1500), st.lists(st.floats(700, 1300), min_size=2, max_size=9))
def test_a_member_that_scores_as_a_rating_expects_has_that_rating(rating, ratings):
    ratings_N = np.array([1000.0, *ratings])
    share_N = 1 / (1 + 10 ** ((ratings_N - rating) / 400))
    found = anchored_rating(share_N, np.full(len(ratings_N), 0.01), ratings_N)
    assert found.mid == pytest.approx(rating, abs=1e-6)
    assert found.low < found.mid < found.high
    share_MM = 1 / (1 + 10 ** ((ratings_N - ratings_N[:, None]) / 400))
    assert ratings_of_shares(share_MM) == pytest.approx(ratings_N, abs=1e-4)


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_a_member_that_lost_or_won_everything_has_a_finite_rating(share):
    ratings_N = np.array([1000.0, 1100.0, 1200.0])
    found = anchored_rating(np.full(3, share), np.full(3, 0.01), ratings_N)
    assert 100 < abs(found.mid - 1100) < 2000


@settings(max_examples=10, deadline=None)
@given(st.data())
def test_further_members_do_not_move_an_anchored_rating(data):
    pool = reference_pool("kuhn_poker")

    def rating(members):
        schedule = GameSchedule(members, 4, None, 0)
        games = [schedule.game(group, index) for group in range(len(schedule.groups)) for index in range(4)]
        played = [(game, [won[game.seating, game.deal], -won[game.seating, game.deal]]) for game in games]
        return pool.rate("mine", data.draw(st.permutations(played)))

    everybody = [*pool.members, "mine", "other"]
    won = {
        (seating, deal): data.draw(st.sampled_from([-2, -1, 1, 2]))
        for seating in permutations(everybody, 2)
        for deal in range(2)
    }
    alone = rating([*pool.members, "mine"])
    assert rating(["mine", "other", *pool.members])[1] == pytest.approx(alone.mid, abs=1e-9)
    assert rating([*pool.members, "other", "mine"]) == pytest.approx(alone, abs=1e-9)
