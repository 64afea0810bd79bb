"""Mode meta-nash: frozen members play each other, and opponents are drawn from the equilibrium."""

import json
import random
from collections import Counter
from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors import FlakyClient, Playing, assert_drawn_as
from sparring.core import MockInferenceClient
from sparring.population import ModelPool, SamplingRule
from sparring.population.meta_strategies import meta_strategy, nash_of_columns
from sparring.population.payoff_games import PayoffGames

BEATS = {("rock", "scissors"), ("scissors", "paper"), ("paper", "rock")}


def played(games, results):
    """Play all that waits: ``results(first, second)`` is what the first seat earns."""
    for game in games.take():
        reward = float(results(game.first, game.second))
        games.add(game.number, [game.first, game.second], [reward, -reward])
    return games


def rock_paper_scissors(first, second):
    return ((first, second) in BEATS) - ((second, first) in BEATS)


def make_games(*uids, per_pair=4):
    games = PayoffGames(per_pair)
    for place, uid in enumerate(uids):
        games.join(uid, uids[:place])
    return games


def make_pool(most=3, fixed=(), per_pair=4):
    pool = ModelPool("meta-nash", most, rule=SamplingRule(payoff_games=per_pair), seed=4)
    pool.add_policy()
    for name in fixed:
        pool.add_fixed(name)
    return pool


def lower_number_wins(first, second):
    """The copy with the lower number wins."""
    one, other = (int(uid.removeprefix("ckpt-")) for uid in (first, second))
    return 1 if one < other else -1


def test_each_pair_plays_in_both_orders_of_seats():
    games = make_games("a", "b", "c", per_pair=6)
    pairs = Counter((game.first, game.second) for game in games.waiting)
    assert pairs == dict.fromkeys([("b", "a"), ("a", "b"), ("c", "a"), ("a", "c"), ("c", "b"), ("b", "c")], 3)
    assert [game.number for game in games.waiting] == list(range(18))


def test_an_odd_number_of_games_is_rounded_up_so_that_seats_are_balanced():
    games = make_games("a", "b", per_pair=5)
    assert Counter((game.first, game.second) for game in games.waiting) == {("b", "a"): 3, ("a", "b"): 3}


def test_the_mixture_is_the_equilibrium_of_what_was_played():
    games = played(make_games("rock", "paper", "scissors"), rock_paper_scissors)
    assert games.mixture(["rock", "paper", "scissors"]) == pytest.approx([1 / 3] * 3, abs=1e-4)
    assert games.mixture(["rock", "paper"]) == pytest.approx([0, 1], abs=1e-4)


def test_a_pair_that_has_not_played_counts_as_a_draw_and_is_counted():
    games = make_games("rock", "paper", "new")
    for game in games.take():
        if "new" not in (game.first, game.second):
            reward = float(rock_paper_scissors(game.first, game.second))
            games.add(game.number, [game.first, game.second], [reward, -reward])
    assert games.unplayed_pairs(["rock", "paper", "new"]) == 2
    rock, paper, new = games.mixture(["rock", "paper", "new"])
    assert rock == pytest.approx(0, abs=1e-4)
    assert paper == pytest.approx(new, abs=1e-3), "the most even mixture of those that nobody beats"


def test_new_results_change_the_mixture_and_a_game_counts_once():
    games = make_games("a", "b", per_pair=2)
    first, second = games.take()
    games.add(first.number, [first.first, first.second], [1.0, -1.0])
    assert games.mixture(["a", "b"])[1] > 0.99, "b won from the first seat"
    for _ in range(2):
        games.add(second.number, [second.first, second.second], [1.0, -1.0])
    assert games.mixture(["a", "b"]) == pytest.approx([0.5, 0.5], abs=1e-4), "a won from there as well"


def test_games_of_who_left_are_not_played_and_what_they_earned_is_kept():
    games = played(make_games("a", "b"), lambda first, second: first == "a")
    games.join("c", ["a", "b"])
    games.drop(["a"])
    assert {uid for game in games.waiting for uid in (game.first, game.second)} == {"b", "c"}
    assert games.table.payoff("a", "b").games == 2
    games.forget(["b"])
    assert games.waiting == []
    assert games.table.payoff("a", "b").games == 0
    assert games.mixture(["a", "b"]) == pytest.approx([0.5, 0.5], abs=1e-4)


def test_a_new_member_plays_the_active_ones_only():
    pool = make_pool(most=2, fixed=["x"])
    pool.add_fixed("judge", active=False)
    for iteration in range(3):
        pool.add_checkpoint(f"a/{iteration}", iteration)
    pairs = {frozenset((one.first, one.second)) for one in pool.payoffs.waiting}
    retired = {one.uid for one in pool.opponents() if one.retired is not None}
    assert retired == {"ckpt-0"}
    assert pairs == {frozenset(pair) for pair in combinations(["fixed-x", "ckpt-1", "ckpt-2"], 2)}
    assert pool.unplayed_pairs() == 3


def test_other_modes_play_no_games_between_frozen_members():
    pool = ModelPool("pfsp", 3)
    for iteration in range(3):
        pool.add_checkpoint(f"a/{iteration}", iteration)
    assert pool.payoffs.waiting == []
    assert pool.unplayed_pairs() == 0


def test_opponents_are_drawn_from_the_equilibrium():
    """Rock earns 2 against scissors, so the equilibrium is a quarter rock and scissors and half paper."""
    pool = make_pool(fixed=["rock", "paper", "scissors"])
    names = {f"fixed-{name}": name for name in ("rock", "paper", "scissors")}

    def reward(first, second):
        pair = (names[first], names[second])
        return rock_paper_scissors(*pair) * (2 if set(pair) == {"rock", "scissors"} else 1)

    played(pool.payoffs, reward)
    assert_drawn_as(pool, {"fixed-rock": 0.25, "fixed-paper": 0.5, "fixed-scissors": 0.25})


def test_the_copies_with_the_highest_probability_and_the_latest_stay_active():
    pool = make_pool(most=2)
    for iteration in range(4):
        pool.add_checkpoint(f"a/{iteration}", iteration)
        played(pool.payoffs, lower_number_wins)
    assert pool.active_checkpoints() == ["ckpt-0", "ckpt-3"], "ckpt-0 beats everybody"
    assert pool.payoffs.table.payoff("ckpt-1", "ckpt-0").games == 2, "payoffs of who retired are kept"


def test_a_restored_pool_draws_the_same_and_plays_the_games_that_are_left():
    pool = make_pool(fixed=["x", "y"])
    played(pool.payoffs, lambda first, second: first == "fixed-y")
    pool.add_checkpoint(None, 0)
    again = make_pool()
    again.load_state_dict(json.loads(json.dumps(pool.state_dict())))
    for _ in range(2):
        assert [again.sample("default") for _ in range(30)] == [pool.sample("default") for _ in range(30)]
        for one in (pool, again):
            played(one.payoffs, lambda first, second: len(first) - len(second))
        assert again.state_dict() == pool.state_dict()


# Real games


def answer(messages, seed, model):
    facing_a_bet = "fold" in messages[-1]["content"]
    if model == "folder":
        return "fold" if facing_a_bet else "check"
    if model == "caller":
        return "call" if facing_a_bet else "bet"
    return (("fold", "call") if facing_a_bet else ("check", "bet"))[seed % 2]


class ByModel(FlakyClient):
    """Answers as the model does, after a time that depends on the seed."""

    async def complete(self, messages, *args, **options):
        await super().complete(messages, *args, **options)
        reply = MockInferenceClient([answer(messages, options["seed"], options["model"])])
        return await reply.complete(messages, *args, **options)


def nash_collector(client=None, **options):
    rule = SamplingRule(payoff_games=20)
    client = client or ByModel()
    options = {"games": 0} | options
    return Playing(client, mode="meta-nash", fixed=["folder", "caller"], rule=rule, **options)


async def test_frozen_members_play_each_other_and_nobody_learns_from_it():
    collector = nash_collector()
    games = await collector.collect()
    assert len(games) == 60
    assert all(one.job.spec.trained_pids == [] and one.job.name.startswith("payoff-") for one in games)
    assert collector.ingest.size() == 0
    accounts = collector.accounts
    assert (accounts["payoff_started"], accounts["payoff_finished"], accounts["started"]) == (60, 60, 0)
    table = collector.pool.payoffs.table
    assert table.payoff("fixed-caller", "fixed-folder").games == 10
    assert table.payoff("fixed-folder", "fixed-caller").games == 10
    assert collector.pool.unplayed_pairs() == 0
    assert table.payoff("fixed-caller", "fixed-folder").mean(0) == 1.0, "who always bets wins from who folds"
    assert await collector.collect() == []


class TheFolderBabbles(ByModel):
    """``folder`` makes no legal move."""

    async def complete(self, messages, *args, **options):
        if options["model"] == "folder":
            return await MockInferenceClient(["what?"]).complete(messages, *args, **options)
        return await super().complete(messages, *args, **options)


async def test_games_that_an_invalid_move_ended_are_counted_for_who_made_it():
    collector = nash_collector(TheFolderBabbles())
    await collector.collect()
    invalid = Counter()
    for row in collector.pool.payoffs.table.rows():
        invalid[row["member"]] += row["invalid"]
    # 20 games with each of the two others, and every game has a turn of each player.
    assert invalid["fixed-folder"] == 40
    assert sum(invalid.values()) == invalid["fixed-folder"]


async def test_who_is_drawn_follows_from_the_games_between_frozen_members():
    collector = nash_collector(games=50)
    before = Counter(collector.pool.sample("default") for _ in range(300))
    assert min(before.values()) > 60, "nobody has played"
    assert len(before) == 3
    played = [one for one in await collector.collect() if one.job.is_training]
    drawn = Counter(one.job.meta.opponent_uid for one in played)
    assert drawn["fixed-folder"] == 0
    assert drawn["fixed-caller"] > 10


async def test_payoffs_are_the_same_whatever_finishes_first():
    few, many = nash_collector(concurrency=2), nash_collector(concurrency=60)
    for collector in (few, many):
        await collector.collect()
    assert few.pool.state_dict() == many.pool.state_dict()


async def test_payoff_games_that_fail_are_counted_and_not_tried_for_ever():
    client = ByModel(fails=lambda call: True)
    collector = nash_collector(client, retries=0)
    games = await collector.collect()
    assert collector.accounts["payoff_failed"] == 60 == len(games)
    assert collector.pool.payoffs.waiting == []
    assert collector.pool.unplayed_pairs() == 3
    assert collector.pool.payoffs.table.payoff("fixed-caller", "fixed-folder").failed == 10


def test_with_a_policy_for_each_seat_the_game_is_of_one_seats_members_against_the_others():
    """Matching pennies: the hider's copies win where both chose the same side, once twice as much."""
    rule = SamplingRule(payoff_games=2, sides=("hider", "seeker"))
    pool = ModelPool("meta-nash", 3, rule=rule, seed=4)
    for policy in ("hider", "seeker"):
        pool.add_policy(policy)
    for update in (0, 1):
        for policy in ("hider", "seeker"):
            pool.add_checkpoint(None, update, policy)
    games = pool.payoffs.take()
    orders = {(one.first, one.second) for one in games}
    assert orders == {(f"hider-ckpt-{h}", f"seeker-ckpt-{s}") for h in (0, 1) for s in (0, 1)}
    assert len(games) == 2 * 4
    won = {("hider-ckpt-0", "seeker-ckpt-0"): 2.0, ("hider-ckpt-1", "seeker-ckpt-1"): 1.0}
    for one in games:
        reward = won.get((one.first, one.second), -1.0)
        pool.payoffs.add(one.number, (one.first, one.second), [reward, -reward])
    rng, draws = random.Random(1), 4000
    drawn = Counter(pool.sample("hider", rng, "seeker") for _ in range(draws))
    assert drawn["seeker-ckpt-0"] / draws == pytest.approx(0.4, abs=0.03), "2p - (1 - p) = -p + (1 - p)"
    drawn = Counter(pool.sample("seeker", rng, "hider") for _ in range(draws))
    assert drawn["hider-ckpt-0"] / draws == pytest.approx(0.4, abs=0.03)


@given(data=st.data(), fixed=st.integers(1, 3), copies=st.tuples(st.integers(1, 2), st.integers(1, 2)))
def test_with_a_policy_for_each_seat_who_may_have_both_is_weighed_by_what_each_seat_earns(
    data, fixed, copies
):
    """The seats differ, so an order of two members says nothing of the other one."""
    rule = SamplingRule(payoff_games=2, sides=("first", "second"))
    pool = ModelPool("meta-nash", 4, rule=rule)
    may_sit = []
    for policy, number in zip(rule.sides, copies, strict=True):
        pool.add_policy(policy)
        may_sit.append([pool.add_checkpoint(None, update, policy) for update in range(number)])
    for name in "abc"[:fixed]:
        uid = pool.add_fixed(name)
        may_sit = [[*uids, uid] for uids in may_sit]
    orders = list(product(*may_sit))
    assert pool.unplayed_pairs() == len({frozenset(order) for order in orders})
    earned = {order: data.draw(st.integers(-3, 3)) for order in orders}
    games = pool.payoffs.take()
    assert Counter((one.first, one.second) for one in games).keys() == earned.keys()
    for one in games:
        reward = float(earned[one.first, one.second])
        pool.payoffs.add(one.number, (one.first, one.second), [reward, -reward])
    assert pool.unplayed_pairs() == 0
    firsts, seconds = may_sit
    payoffs_RC = np.array([[earned[first, second] for second in seconds] for first in firsts], dtype=float)
    for seat, matrix_RC in enumerate((-payoffs_RC.T, payoffs_RC)):
        mixture = pool.payoffs.mixture(may_sit[seat], may_sit[1 - seat], seat)
        assert mixture == pytest.approx(list(nash_of_columns(matrix_RC)), abs=1e-3)
        drawn = Counter(pool.sample(rule.sides[1 - seat], None, rule.sides[seat]) for _ in range(40))
        assert {*drawn} <= {uid for uid, weight in zip(may_sit[seat], mixture, strict=True) if weight}


@given(st.lists(st.integers(-30, 30), min_size=1, max_size=8), st.sampled_from([0.1, 0.3, 1e-3, 7.7]))
def test_members_that_earn_the_same_are_drawn_alike_whatever_their_rewards_round_to(rewards, unit):
    """0.1 + 0.1 + 0.1 - 0.3 is 2.8e-17, but no member is better for it."""
    games = PayoffGames(2 * len(rewards) + 2)
    table, even = games.table, [*rewards, -sum(rewards)]
    for first, second in (("a", "b"), ("b", "a")):
        for reward in even:
            table.append((first, second), (reward * unit, -reward * unit))
    assert games.mixture(["a", "b"]) == [0.5, 0.5]
    for strategy in ("nash", "alpharank"):
        assert list(meta_strategy(strategy, table.matrix(["a", "b"]).mean_MM)) == pytest.approx(
            [0.5, 0.5], abs=1e-6
        )
    assert games.mixture(["a", "b"], ["a", "b"], seat=1) == [0.5, 0.5]
