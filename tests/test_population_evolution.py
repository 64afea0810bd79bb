"""Which players of a league are replaced, and by children of whom."""

import math
import random
import statistics

import pytest

from sparring.config.league import FEWEST_COMPARED, EvolutionSettings, LeagueSettings
from sparring.core import InputError
from sparring.population import ModelPool
from sparring.population.evolution import compare, replaced, select
from sparring.population.league import League

SETTINGS = EvolutionSettings(every=5, noise=0.1)
MAIN = {"role": "main"}


def earned(mean, games=100, seed=0, spread=1.0):
    rng = random.Random(seed)
    return {f"game {number}": rng.gauss(mean, spread) for number in range(games)}


def group(**means):
    return {player: earned(mean, seed=place) for place, (player, mean) in enumerate(means.items())}


def test_the_worst_player_is_replaced_by_a_child_of_the_best_and_another_that_is_better():
    found = select([group(a=0.0, b=9.0, c=-9.0, d=3.0)], SETTINGS, 1)
    (child,) = found.children
    assert (child.player, child.parents[0], child.noise) == ("c", "b", 0.1)
    assert child.parents[1] in ("a", "d")
    assert replaced(found.figures) == {"c": [*child.parents]}
    children = [select([group(a=0.0, b=9.0, c=-9.0, d=3.0)], SETTINGS, n).children[0] for n in range(20)]
    assert {child.parents[1] for child in children} == {"a", "d"}


def test_of_two_players_the_worse_becomes_a_copy_of_the_other_with_noise():
    (child,) = select([group(a=0.0, b=2.0)], SETTINGS, 1).children
    assert (child.player, child.parents) == ("a", ("b",))


def test_a_player_that_may_be_as_good_is_no_parent():
    rewards = group(a=-5.0, b=-5.0, c=5.0)
    for seed in range(10):
        (child,) = select([rewards], SETTINGS, seed).children
        assert child.parents == ("c",)


def test_nobody_is_replaced_where_the_difference_is_within_its_interval():
    found = select([group(a=0.0, b=0.05, c=0.1)], SETTINGS, 1)
    assert found.children == []
    assert replaced(found.figures) == {}
    assert found.figures["a/measure_low"] < found.figures["a/measure"] < found.figures["a/measure_high"]


def test_equal_players_are_seldom_replaced_however_many_there_are():
    chosen = 0
    for trial in range(300):
        rewards = {str(player): earned(0.0, 40, seed=1000 * trial + player) for player in range(8)}
        chosen += bool(compare(rewards)[1])
    assert chosen <= 0.05 * 300 + 12, "three standard deviations"


def test_players_are_compared_on_the_same_deals():
    """Between deals rewards spread far more than players differ on one."""
    deals = earned(0.0, spread=100.0)
    rewards = {"a": deals, "b": {game: value + 1 + 0.1 * (value > 0) for game, value in deals.items()}}
    assert compare(rewards) == ("a", ["b"])


def test_games_that_somebody_did_not_finish_do_not_count():
    rewards = {"a": earned(0.0, FEWEST_COMPARED, spread=0.1), "b": earned(5.0, FEWEST_COMPARED, 1, 0.1)}
    assert compare(rewards) == ("a", ["b"])
    del rewards["b"]["game 3"]
    assert compare(rewards) == ("a", []), "too few are left"


def test_players_without_a_common_game_are_compared_as_independent_samples():
    first, second = earned(0.0, 40), earned(1.0, 50, seed=1)
    rewards = {"a": first, "b": {f"{game} of 50": value for game, value in second.items()}}
    assert compare(rewards) == ("a", ["b"])
    mean, error = statistics.fmean(second.values()), statistics.stdev(second.values()) / 50**0.5
    error = math.hypot(error, statistics.stdev(first.values()) / 40**0.5)
    for spreads, better in ((1.9, []), (2.0, ["b"])):
        moved = mean - statistics.fmean(first.values()) - spreads * error
        assert compare(rewards | {"a": {g: v + moved for g, v in first.items()}}) == ("a", better)


def test_every_group_loses_its_own_worst_and_the_same_seed_gives_the_same_children():
    groups = [group(a=0.0, b=5.0), group(c=5.0, d=0.0)]
    found = select(groups, SETTINGS, 4)
    assert [child.player for child in found.children] == ["a", "d"]
    assert found == select(groups, SETTINGS, 4)
    assert found.children[0].seed != select(groups, SETTINGS, 5).children[0].seed


def league(players, **rule):
    pool = ModelPool("pfsp", max_active_lora=4)
    for name in players:
        pool.add_policy(name)
    settings = LeagueSettings.model_validate({"players": players, **rule})
    return League(settings.seated([{0: "", 1: ""}]), pool, 3)


def test_players_of_one_role_and_the_same_seats_are_rivals_every_few_updates():
    players = {
        "a": {**MAIN, "seats": [0, 1]},
        "b": {**MAIN, "seats": [1, 0]},
        "first": {**MAIN, "seats": [0]},
        "one": {"role": "main_exploiter"},
        "two": {"role": "main_exploiter"},
        "other": {"role": "league_exploiter"},
    }
    evolving = league(players, evolution={"every": 5})
    assert evolving.rivals([], 10) == [["a", "b"], ["one", "two"]]
    assert evolving.rivals([], 11) == []
    assert evolving.rivals(["one"], 10) == [["a", "b"]], "it starts again"
    assert league(players).rivals([], 10) == []


def test_only_those_who_may_be_replaced_or_start_again_need_their_beginnings():
    players = {"a": MAIN, "b": MAIN, "one": {"role": "main_exploiter"}}
    assert league(players).settings.may_start_again == ["one"]
    assert league(players, evolution={}).settings.may_start_again == ["a", "b", "one"]


def test_players_of_whom_no_two_have_the_same_seats_cannot_be_compared():
    settings = LeagueSettings.model_validate({"players": {"a": MAIN, "b": MAIN}, "evolution": {}})
    settings.check_seats([("kuhn", {0: "a", 1: "a"})])
    with pytest.raises(InputError, match="no two have the same role"):
        settings.check_seats([("kuhn", {0: "a", 1: "b"})])
