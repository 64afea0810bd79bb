import importlib.util
from functools import partial
from itertools import combinations_with_replacement, permutations

import numpy as np
import pyspiel
import pytest
from open_spiel.python.algorithms import projected_replicator_dynamics
from open_spiel.python.algorithms.nash_averaging import nash_averaging
from open_spiel.python.egt import alpharank

from matrices import first_of
from sparring.core import InputError
from sparring.population.meta_strategies import META_STRATEGIES, meta_strategy, nash_of_columns

ROCK_PAPER_SCISSORS = np.array([[0.0, -1.0, 1.0], [1.0, 0.0, -1.0], [-1.0, 1.0, 0.0]])


def random_game(seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    members = rng.integers(2, 9)
    payoffs = rng.normal(size=(members, members)) * 10 ** rng.uniform(-1.5, 1)
    return payoffs - payoffs.T


@pytest.mark.parametrize("seed", first_of(range(100), 12))
def test_nash_and_alpharank_are_openspiels_on_random_games(seed):
    payoffs_MM = random_game(seed)
    nash_M = meta_strategy("nash", payoffs_MM)
    expected, _ = nash_averaging(pyspiel.create_matrix_game(payoffs_MM, -payoffs_MM))
    np.testing.assert_allclose(nash_M, expected[:, 0], atol=1e-7)
    assert (nash_M @ payoffs_MM).min() >= -1e-5 * np.abs(payoffs_MM).max()
    np.testing.assert_allclose(
        meta_strategy("alpharank", payoffs_MM), alpharank.sweep_pi_vs_epsilon([payoffs_MM]), atol=1e-12
    )


def test_a_matrix_on_which_the_solver_gives_up_is_solved_in_another_unit():
    draw, place = np.random.default_rng(5), np.arange(20)
    strength = 0.0375 * (place[:, None] - place[None, :])
    circle = 0.36 * np.array([0, 1, -1])[(place[:, None] - place[None, :]) % 3]
    for _ in range(505):
        payoffs_MM = np.triu(strength + circle + draw.normal(size=(20, 20)) * 0.14, 1)
    payoffs_MM = payoffs_MM - payoffs_MM.T
    assert (meta_strategy("nash", payoffs_MM) @ payoffs_MM).min() >= -1e-4


@pytest.mark.parametrize("seed", range(3))
def test_the_equilibrium_of_columns_is_their_share_in_the_symmetric_game_of_pairs(seed):
    rng = np.random.default_rng(seed)
    rows, columns = rng.integers(1, 5, size=2)
    payoffs_RC = rng.normal(size=(rows, columns)) if seed else rng.integers(-1, 2, size=(rows, columns)) * 1.0
    payoffs_RCRC = payoffs_RC[:, None, None, :] - payoffs_RC.T[None, :, :, None]
    pairs = meta_strategy("nash", payoffs_RCRC.reshape(rows * columns, rows * columns))
    shares_C = pairs.reshape(rows, columns).sum(axis=0)
    np.testing.assert_allclose(nash_of_columns(payoffs_RC), shares_C, atol=1e-3)


@pytest.mark.parametrize("unit", [1e-6, 1e-3, 1.0, 1e5])
def test_the_equilibrium_of_many_rows_and_columns_is_one_in_every_unit(unit):
    payoffs_RC = np.random.default_rng(0).normal(size=(32, 24))
    columns_C, rows_R = nash_of_columns(unit * payoffs_RC), nash_of_columns(-unit * payoffs_RC.T)
    assert (payoffs_RC @ columns_C).max() <= (rows_R @ payoffs_RC).min() + 1e-4


def test_projected_replicator_dynamics_are_openspiels(monkeypatch):
    """Of which 300 iterations tell the same as its 100,000."""
    few = partial(projected_replicator_dynamics.projected_replicator_dynamics, prd_iterations=300)
    monkeypatch.setattr(projected_replicator_dynamics, "projected_replicator_dynamics", few)
    payoffs_MM = random_game(3)
    expected = few([payoffs_MM, -payoffs_MM])[0]
    np.testing.assert_allclose(meta_strategy("prd", payoffs_MM), expected, atol=1e-12)


def symmetric_game(seats: int, members: int) -> np.ndarray:
    rng, payoffs = np.random.default_rng(0), np.zeros((members,) * seats)
    for own in range(members):
        for others in combinations_with_replacement(range(members), seats - 1):
            value = rng.normal()
            for order in {*permutations(others)}:
                payoffs[own, *order] = value
    return payoffs


def test_three_seats_are_solved_as_openspiel_solves_three_populations(monkeypatch):
    few = partial(projected_replicator_dynamics.projected_replicator_dynamics, prd_iterations=300)
    monkeypatch.setattr(projected_replicator_dynamics, "projected_replicator_dynamics", few)
    payoffs = symmetric_game(3, 3)
    tables = [payoffs, payoffs.transpose(1, 0, 2), payoffs.transpose(1, 2, 0)]
    for seat, expected in enumerate(few(tables)):
        np.testing.assert_allclose(meta_strategy("prd", payoffs), expected, atol=1e-12, err_msg=str(seat))
    profiles = alpharank.sweep_pi_vs_epsilon(tables).reshape(3, 3, 3)
    np.testing.assert_allclose(meta_strategy("alpharank", payoffs), profiles.sum(axis=(0, 1)), atol=1e-6)
    assert meta_strategy("uniform", payoffs).tolist() == [1 / 3] * 3
    with pytest.raises(ValueError, match="two seats"):
        meta_strategy("nash", payoffs)


def test_replicator_dynamics_find_the_equilibrium_of_hawks_and_doves(monkeypatch):
    """It is not zero-sum: what a hawk earns more than a dove does not tell how often both are played."""
    few = partial(projected_replicator_dynamics.projected_replicator_dynamics, prd_iterations=300)
    monkeypatch.setattr(projected_replicator_dynamics, "projected_replicator_dynamics", few)
    payoffs_MM = np.array([[-1.0, 2.0], [0.0, 1.0]])
    np.testing.assert_allclose(meta_strategy("prd", payoffs_MM), [0.5, 0.5], atol=1e-3)


@pytest.mark.parametrize("name", ["nash", "alpharank", "uniform"])
def test_rock_paper_scissors_is_mixed_evenly(name):
    np.testing.assert_allclose(meta_strategy(name, ROCK_PAPER_SCISSORS), np.full(3, 1 / 3), atol=1e-5)


def test_the_equilibrium_of_maximum_entropy_shares_among_copies():
    copies = np.array([0, 0, 1, 2])
    weights_M = meta_strategy("nash", ROCK_PAPER_SCISSORS[np.ix_(copies, copies)])
    np.testing.assert_allclose(weights_M, [1 / 6, 1 / 6, 1 / 3, 1 / 3], atol=1e-4)


@pytest.mark.parametrize("name", ["nash", "alpharank"])
def test_a_member_that_beats_all_others_has_all_weight(name):
    weights_M = meta_strategy(name, np.array([[0.0, 0.1, 1.0], [-0.1, 0.0, 0.5], [-1.0, -0.5, 0.0]]))
    np.testing.assert_allclose(weights_M, [1, 0, 0], atol=1e-5)


def test_what_both_players_earn_changes_nothing():
    np.testing.assert_allclose(meta_strategy("nash", ROCK_PAPER_SCISSORS + 5), np.full(3, 1 / 3), atol=1e-5)


@pytest.mark.parametrize("name", META_STRATEGIES)
def test_a_single_member_has_all_weight(name):
    assert meta_strategy(name, np.zeros((1, 1))).tolist() == [1.0]


@pytest.mark.parametrize("name", META_STRATEGIES)
def test_a_pair_that_did_not_meet_is_not_a_draw(name):
    with pytest.raises(ValueError, match="every pair"):
        meta_strategy(name, np.array([[0.0, np.nan], [np.nan, 0.0]]))


def test_a_missing_package_is_named_with_its_extra(monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "cvxpy" else find(name))
    with pytest.raises(InputError, match=r"cvxpy is not installed.*pip install 'sparring\[populations\]'"):
        meta_strategy("nash", ROCK_PAPER_SCISSORS)
    assert meta_strategy("uniform", ROCK_PAPER_SCISSORS).tolist() == pytest.approx([1 / 3] * 3)
