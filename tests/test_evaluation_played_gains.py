"""Exact gains of best responses where a policy's invalid answers lose, beside OpenSpiel's and by hand."""

import random
from itertools import product

import pytest

from sparring.envs.openspiel_game import information_states, load_game
from sparring.evaluation.played_gains import GameAsPlayed

ROCK_PAPER_SCISSORS = "turn_based_simultaneous_game(game=matrix_rps())"


def random_policy(env_id: str, seed: int, legal: float | None = None) -> dict:
    """Random chances, and random probabilities of legal answers unless one is given for all."""
    rng = random.Random(seed)
    policy = {}
    for state in information_states(env_id):
        weights = [rng.random() for _ in state.actions]
        chances = {action: one / sum(weights) for action, one in zip(state.actions, weights, strict=True)}
        policy[state.info_state] = (chances, rng.uniform(0.5, 1.0) if legal is None else legal)
    return policy


def test_invalid_answers_lose_by_hand():
    """Uniform play is unbeatable, but a tenth of its answers loses at once."""
    policy = {
        one.info_state: (dict.fromkeys(one.actions, 1 / 3), 0.9)
        for one in information_states(ROCK_PAPER_SCISSORS)
    }
    value = -0.1 + 0.9 * 0.1  # of the first seat, which answers first
    assert GameAsPlayed(load_game(ROCK_PAPER_SCISSORS), policy).gains() == pytest.approx(
        [0.9 * 0 + 0.1 - value, 0.1 + value]
    )


@pytest.mark.parametrize("seed", range(5))
def test_the_best_of_all_plans_gains_as_much(seed):
    """In Kuhn poker, each of the 64 plans of a seat can be tried."""
    played = GameAsPlayed(load_game("kuhn_poker"), random_policy("kuhn_poker", seed))

    def earned(state, seat: int, plan: dict[str, int] | None) -> float:
        if state.is_terminal():
            return state.returns()[seat]
        if plan is not None and state.current_player() == seat:
            return earned(state.child(plan[state.information_state_string()]), seat, plan)
        actions, invalid = played.answers(state)
        after = {0: -2.0, 1: 2.0} if state.current_player() == 0 else {0: 2.0, 1: -2.0}
        value = invalid * after[seat] if invalid else 0.0
        return value + sum(chance * earned(state.child(action), seat, plan) for action, chance in actions)

    root, expected = played.game.new_initial_state(), []
    for seat in (0, 1):
        names = [one.info_state for one in information_states("kuhn_poker") if one.pid == seat]
        plans = (dict(zip(names, actions, strict=True)) for actions in product((0, 1), repeat=6))
        best = max(earned(root, seat, plan) for plan in plans)
        expected.append(best - earned(root, seat, None))
    assert played.gains() == pytest.approx(expected)
