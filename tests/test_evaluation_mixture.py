"""Mixtures of policies: one member for a whole game, and the policy that plays as the mixture does."""

import math
from collections import Counter

import pyspiel
import pytest
from open_spiel.python import policy as openspiel_policy
from open_spiel.python.algorithms.policy_aggregator import PolicyAggregator

from evaluation_client import TabularClient, first_move, legal_moves, uniform
from kuhn_policies import PythonPolicy, random_policy
from matrices import first_of
from sparring.core import AgentSpec, Arena
from sparring.envs.game_episode import GameEpisode
from sparring.envs.openspiel_game import information_states, load_game
from sparring.envs.templates import get_template
from sparring.evaluation import nash_conv, play_match
from sparring.evaluation.match import Mixture, drawn

TEMPLATE = get_template("fewshot-chat")
WEIGHTS = (0.2, 0.5, 0.3)
NAMES = ("a", "b", "c")
POLICIES = {name: random_policy(seed) for seed, name in enumerate(NAMES)}


def last_move(observation: str) -> dict[str, float]:
    """Always the last legal move."""
    return {legal_moves(observation)[-1]: 1.0}


async def measure(model, policies, env_id="kuhn_poker"):
    return await nash_conv(TabularClient(uniform, policies), env_id, TEMPLATE, model=model)


def test_members_are_drawn_as_often_as_their_weights_say_and_seats_draw_alone():
    mixture = Mixture(NAMES, WEIGHTS)
    counts = Counter((drawn(mixture, seed, 0), drawn(mixture, seed, 1)) for seed in range(9000))
    for first, share in zip(NAMES, WEIGHTS, strict=True):
        for second, other in zip(NAMES, WEIGHTS, strict=True):
            expected = 9000 * share * other
            assert abs(counts[first, second] - expected) < 4 * math.sqrt(expected)


async def test_a_member_makes_all_moves_of_its_game_and_the_same_seed_draws_the_same():
    mixture = Mixture(NAMES, WEIGHTS)
    other = Mixture(tuple(AgentSpec("model", name) for name in ("x", "y")), (1.0, 1.0))
    played = []
    for order in (0, 5):
        games = {}
        client = TabularClient(uniform, order=order)
        await play_match(
            Arena(client),
            GameEpisode("leduc_poker", 2, TEMPLATE),
            model=mixture,
            opponent=other,
            games=60,
            seed=3,
            on_rollout=lambda index, rollout, games=games: games.update({index: rollout.extras["turns"]}),
        )
        played.append({index: [(turn["pid"], turn["model"]) for turn in games[index]] for index in range(60)})
    assert played[0] == played[1]
    models = Counter()
    for index, turns in played[0].items():
        mine = {model for pid, model in turns if pid == index % 2}
        theirs = {model for pid, model in turns if pid != index % 2}
        assert len(mine) == 1
        assert len(theirs) <= 1
        models.update(mine | theirs)
    assert set(models) == {*NAMES, "x", "y"}


@pytest.mark.parametrize("env_id", first_of(["kuhn_poker", "kuhn_poker(players=3)", "leduc_poker"], 2))
async def test_the_policy_of_a_mixture_is_that_of_openspiel(env_id):
    game = load_game(env_id)
    members = [PythonPolicy(env_id, POLICIES[name]) for name in NAMES]
    seats = game.num_players()
    weights = [list(WEIGHTS)] * seats
    aggregated = PolicyAggregator(game).aggregate([*range(seats)], [members] * seats, weights)
    result = await measure(Mixture(NAMES, WEIGHTS), POLICIES, env_id)
    states = information_states(env_id)
    assert len(result.policy) == len(states)
    for state in states:
        expected = aggregated.policy[state.pid][state.info_state]
        for action, name in zip(state.actions, state.legal_actions, strict=True):
            assert result.policy[state.info_state][name] == pytest.approx(expected[action])
    tabular = openspiel_policy.tabular_policy_from_callable(game, aggregated.action_probabilities)
    assert result.nash_conv == pytest.approx(
        pyspiel.nash_conv(game, openspiel_policy.python_policy_to_pyspiel_policy(tabular))
    )


async def test_values_of_a_mixture_are_the_averages_over_its_members():
    result = await measure(Mixture(NAMES, WEIGHTS), POLICIES)
    values = 0.0
    for first, share in zip(NAMES, WEIGHTS, strict=True):
        for second, other in zip(NAMES, WEIGHTS, strict=True):
            pair = await measure([first, second], POLICIES)
            values += share * other * pair.values[0]
    assert result.values[0] == pytest.approx(values)


async def test_a_mixture_of_pure_policies_is_weighted_by_what_reaches_a_state():
    """Who always passes never comes to the third move; there the mixture plays as who may come there."""
    result = await measure(Mixture(("a", "b"), (0.9, 0.1)), {"a": last_move, "b": uniform})
    assert result.policy["0"] == {"check": pytest.approx(0.05), "bet": pytest.approx(0.95)}
    assert result.policy["0pb"] == {"fold": pytest.approx(0.5), "call": pytest.approx(0.5)}


async def test_where_no_member_comes_the_mixture_plays_as_its_members_by_weight():
    def bets(observation):
        return {"bet": 1.0} if "bet" in legal_moves(observation) else uniform(observation)

    result = await measure(Mixture(("a", "b"), (0.9, 0.1)), {"a": last_move, "b": bets})
    assert result.policy["0pb"] == {"fold": pytest.approx(0.05), "call": pytest.approx(0.95)}


async def test_a_member_that_is_named_twice_has_both_weights():
    policies = {"a": uniform, "b": first_move}
    twice = await measure(Mixture(("a", "b", "a"), (0.3, 0.4, 0.3)), policies)
    once = await measure(Mixture(("a", "b"), (0.6, 0.4)), policies)
    assert twice.policy["0"]["check"] == pytest.approx(0.6 * 0.5 + 0.4)
    assert twice.policy.keys() == once.policy.keys()
    for state, chances in once.policy.items():
        assert twice.policy[state] == pytest.approx(chances)
    assert twice.nash_conv == pytest.approx(once.nash_conv)
    assert twice.legal_mass == pytest.approx(once.legal_mass)


async def test_the_mass_of_legal_answers_is_the_average_by_weight():
    def half(observation):
        return {move: chance / 2 for move, chance in uniform(observation).items()}

    result = await measure(Mixture(("a", "b"), (3.0, 1.0)), {"a": uniform, "b": half})
    assert result.legal_mass == pytest.approx(0.875)
    assert result.model == "mixture"
