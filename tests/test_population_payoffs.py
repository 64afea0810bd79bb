import csv
import io
import json
import math
import random
import statistics
from itertools import permutations, product

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparring.population import PayoffTable
from sparring.population.group_payoffs import GroupPayoffs, constant_total, gain_over_mixture
from sparring.population.payoff import Payoff
from sparring.population.payoffs import NumberRanges

UIDS = st.sampled_from(["a", "b", "ckpt-7"])
REWARDS = st.sampled_from([-1.0, -0.5, 0.0, 0.25, 1.0])
GAMES = st.lists(
    st.tuples(
        st.integers(0, 40), st.tuples(UIDS, UIDS), st.tuples(REWARDS, REWARDS), st.sampled_from([None, 0, 1])
    )
)


def table_of(games) -> PayoffTable:
    table = PayoffTable()
    for number, seating, rewards, invalid in games:
        table.add(number, seating, rewards, invalid)
    return table


@given(st.lists(st.integers(0, 60)))
def test_ranges_hold_the_numbers_that_were_added(numbers):
    ranges, plain = NumberRanges(), set()
    for number in numbers:
        assert ranges.add(number) == (number not in plain)
        plain.add(number)
        assert {one for one in range(-1, 62) if one in ranges} == plain
    assert len(ranges) == len(plain)
    assert NumberRanges.from_state(json.loads(json.dumps(ranges.state()))).state() == ranges.state()


def test_numbers_in_a_row_are_one_range():
    ranges = NumberRanges()
    for number in [3, 1, 2, 7, 5, 6]:
        ranges.add(number)
    assert ranges.state() == [[1, 4], [5, 8]]


@given(GAMES, GAMES)
def test_a_game_never_counts_twice_also_after_a_restart(first, second):
    saved = table_of(first)
    resumed = PayoffTable()
    resumed.load_state_dict(json.loads(json.dumps(saved.state_dict())))
    assert resumed.state_dict() == saved.state_dict()
    for number, seating, rewards, invalid in [*first, *second]:
        resumed.add(number, seating, rewards, invalid)
    once = {}
    for number, *game in [*first, *second]:
        once.setdefault(number, game)
    for seating in {tuple(game[0]) for game in once.values()}:
        played = [game for game in once.values() if game[0] == seating]
        payoff = resumed.payoff(*seating)
        assert payoff.games == len(played)
        for seat in (0, 1):
            rewards = [game[1][seat] for game in played]
            assert payoff.mean(seat) == pytest.approx(statistics.fmean(rewards))
            assert payoff.wins[seat] == sum(game[1][seat] > game[1][1 - seat] for game in played)
            assert payoff.invalid[seat] == sum(game[2] == seat for game in played)
            if len(played) > 1:
                assert payoff.variance(seat) == pytest.approx(statistics.variance(rewards))
    assert sum(payoff.games for _, payoff in resumed.items()) == len(once)


def test_a_loaded_table_shares_nothing_with_the_state():
    table = table_of([(0, ("a", "b"), (1.0, -1.0), None)])
    state = table.state_dict()
    other = PayoffTable()
    other.load_state_dict(state)
    other.add(1, ("a", "b"), (1.0, -1.0))
    assert table.state_dict() == state
    assert table.payoff("a", "b").games == 1


def test_a_game_for_one_has_payoffs_too():
    table = PayoffTable()
    table.add(0, ("a",), (0.5,))
    table.append(("a",), (-0.25,))
    assert table.reward_range == (-0.25, 0.5)
    assert table.payoff("a").mean(0) == pytest.approx(0.125)


def test_a_seating_has_its_own_payoff_and_draws_invalid_moves_and_failures_are_counted():
    table = PayoffTable()
    table.add(0, ("a", "b", "c"), (2.0, -1.0, -1.0), invalid_seat=1)
    table.add(1, ("a", "b", "c"), (1.0, 1.0, -2.0))
    assert table.add_failure(2, ("a", "b", "c"))
    assert not table.add_failure(2, ("a", "b", "c"))
    assert not table.add(2, ("a", "b", "c"), (0.0, 0.0, 0.0))
    table.add(3, ("c", "b", "a"), (0.0, 0.0, 3.0))
    payoff = table.payoff("a", "b", "c")
    assert (payoff.games, payoff.failed, payoff.draws) == (2, 1, 1)
    assert (payoff.wins, payoff.invalid) == ([1, 0, 0], [0, 1, 0])
    assert [payoff.mean(seat) for seat in range(3)] == [1.5, 0.0, -1.5]
    assert table.reward_range == (-2.0, 3.0)
    assert table.payoff("b", "a", "c").games == 0
    assert table.members() == ["a", "b", "c"]
    assert 2 in table
    assert 4 not in table


@pytest.mark.parametrize("rewards", [(1.0,), (math.nan, 0.0), (math.inf, 0.0)])
def test_rewards_that_are_no_result_are_refused_and_the_game_is_not_counted(rewards):
    table = PayoffTable()
    with pytest.raises(ValueError, match="rewards"):
        table.add(0, ("a", "b"), rewards)
    assert 0 not in table


def test_the_matrix_gives_both_seats_the_same_weight():
    table = PayoffTable()
    for number, (seating, score) in enumerate(
        [(("a", "b"), 1.0), (("a", "b"), 0.0), (("a", "b"), 1.0), (("b", "a"), -1.0), (("b", "a"), 0.0)]
    ):
        table.add(number, seating, (score, -score))
    matrix = table.matrix(["a", "b", "c"])
    # In the first seat, a's rewards are 1, 0 and 1; in the second, 1 and 0.
    assert matrix.mean_MM[0, 1] == pytest.approx((2 / 3 + 1 / 2) / 2)
    assert matrix.mean_MM[1, 0] == pytest.approx(-(2 / 3 + 1 / 2) / 2)
    # Of each seat, one more reward of -1 and one of 1 count for the spread.
    spreads = statistics.variance([1, 0, 1, -1, 1]) / 3, statistics.variance([1, 0, -1, 1]) / 2
    assert matrix.error_MM[0, 1] == pytest.approx(math.sqrt(sum(spreads)) / 2)
    assert matrix.games_MM.tolist() == [[0, 5, 0], [5, 0, 0], [0, 0, 0]]
    assert [matrix.mean_MM[k, k] for k in range(3)] == [0, 0, 0]
    assert math.isnan(matrix.mean_MM[0, 2])
    assert math.isinf(matrix.error_MM[2, 0])


@given(GAMES)
def test_a_zero_sum_matrix_is_antisymmetric(games):
    table = table_of([(n, seating, (x, -x), None) for n, seating, (x, _), _ in games])
    mean_MM = table.matrix(["a", "b", "ckpt-7"]).mean_MM
    np.testing.assert_allclose(mean_MM, -mean_MM.T, atol=1e-12)
    assert np.diagonal(mean_MM) == pytest.approx(0)


def test_games_of_a_member_against_itself_are_counted_once():
    table = table_of([(0, ("a", "a"), (1.0, -1.0), None), (1, ("a", "a"), (0.0, 0.0), None)])
    matrix = table.matrix(["a"])
    assert matrix.games_MM.tolist() == [[2]]
    assert (matrix.mean_MM[0, 0], matrix.error_MM[0, 0]) == (0.0, 0.0), (
        "one seat's reward is the other's loss"
    )


def test_the_advantage_leaves_out_what_both_players_earn():
    table = table_of([(0, ("a", "b"), (3.0, 1.0), None)])
    assert table.matrix(["a", "b"]).advantage_MM.tolist() == [[0.0, 1.0], [-1.0, 0.0]]


def test_rows_and_csv_say_the_same():
    table = table_of([(0, ("a,b", "c"), (1.0, -1.0), None), (1, ("a,b", "c"), (0.0, 0.0), 1)])
    rows = table.rows()
    assert [(row["seat"], row["member"], row["mean"], row["invalid"]) for row in rows] == [
        (0, "a,b", 0.5, 0),
        (1, "c", -0.5, 1),
    ]
    read = list(csv.DictReader(io.StringIO(table.to_csv())))
    assert [(row["player_0"], row["player_1"], row["seat"]) for row in read] == [
        ("a,b", "c", "0"),
        ("a,b", "c", "1"),
    ]
    for row, line in zip(rows, read, strict=True):
        for name in ("games", "mean", "variance", "low", "high", "wins", "draws", "invalid", "failed"):
            assert float(line[name]) == row[name]


@given(st.lists(REWARDS, min_size=1, max_size=30))
def test_the_interval_counts_one_more_game_at_each_end_of_the_range_of_rewards(rewards):
    table = table_of([(n, ("a", "b"), (reward, -3.0), None) for n, reward in enumerate(rewards)])
    (row, _) = table.rows()
    spread = statistics.stdev([*rewards, -3.0, max(rewards)]) / math.sqrt(len(rewards))
    assert row["mean"] - row["low"] == pytest.approx(1.959964 * spread, rel=1e-5)
    assert row["high"] - row["mean"] == pytest.approx(1.959964 * spread, rel=1e-5)


def test_a_few_games_that_ended_alike_are_not_certain():
    few, many = (
        table_of([(n, ("a", "b"), (1.0, -1.0), None) for n in range(games)]).rows()[0] for games in (4, 400)
    )
    assert few["variance"] == many["variance"] == 0
    assert few["high"] - few["low"] > 1
    assert 0 < many["high"] - many["low"] < 0.02


def test_a_game_that_failed_says_nothing():
    table = PayoffTable()
    table.add_failure(0, ("a", "b"))
    row = table.rows()[0]
    assert (row["mean"], row["variance"], row["low"], row["high"]) == (None, None, None, None)


def test_the_gain_over_a_mixture_by_hand():
    games = []
    for number, (seating, rewards) in enumerate(
        [
            (("x", "a"), (1.0, -1.0)),
            (("x", "a"), (3.0, -3.0)),
            (("a", "x"), (0.0, 0.0)),
            (("a", "x"), (2.0, -2.0)),
            (("x", "b"), (1.0, -1.0)),
            (("x", "b"), (1.0, -1.0)),
            (("b", "x"), (-4.0, 4.0)),
            (("b", "x"), (-2.0, 2.0)),
        ]
    ):
        games.append((number, seating, rewards, None))
    table = table_of(games)
    # Against a it earns 2 and -1, on average 0.5; against b 1 and 3, on average 2.
    gain = gain_over_mixture(table, "x", {"a": 0.75, "b": 0.25})
    assert gain.mid == pytest.approx(2 * (0.75 * 0.5 + 0.25 * 2))
    seats = ((1, 3), (0, -2)), ((1, 1), (4, 2))
    variances = [[statistics.variance([*two, -4, 4]) / 2 for two in pair] for pair in seats]
    errors = [0.5 * math.sqrt(sum(pair)) for pair in variances]
    spread = 1.959964 * 2 * math.hypot(0.75 * errors[0], 0.25 * errors[1])
    assert gain.high - gain.mid == pytest.approx(spread, rel=1e-5)
    assert gain.mid - gain.low == pytest.approx(spread, rel=1e-5)


def test_what_both_players_earn_is_no_gain():
    games = [(number, ("x", "a") if number % 2 else ("a", "x"), (1.0, 1.0), None) for number in range(8)]
    assert gain_over_mixture(table_of(games), "x", {"a": 1.0}) == (0.0, 0.0, 0.0)


@pytest.mark.parametrize("seats", [2, 3])
@pytest.mark.parametrize("is_constant", [True, False])
def test_a_gain_is_that_over_independent_draws_in_every_seat(seats, is_constant):
    """Seats pay differently, and members are good in different ones."""
    generator, table, mixture = np.random.default_rng(seats), PayoffTable(), {"a": 0.5, "b": 0.2, "c": 0.3}
    paid = {one: generator.normal(size=seats) for one in product("abcx", repeat=seats)}
    if is_constant:
        paid = {one: rewards - rewards.mean() + 2.0 for one, rewards in paid.items()}
    for number, (seating, rewards) in enumerate(paid.items()):
        if not (is_constant and seats == 2 and seating[0] == seating[1]):  # nobody need meet itself
            for game in range(2):
                table.add(2 * number + game, seating, rewards.tolist(), deal=game)
    expected = 0.0
    for seat in range(seats):
        for drawn in product("abc", repeat=seats):
            chance = math.prod(mixture[one] for one in drawn)
            answered = (*drawn[:seat], "x", *drawn[seat + 1 :])
            expected += chance * (paid[answered][seat] - paid[drawn][seat])
    gain = gain_over_mixture(table, "x", mixture)
    assert gain.mid == pytest.approx(expected)
    assert gain.low < gain.mid < gain.high
    alone = gain_over_mixture(table, "x", {"a": 1.0, "b": 0.0})
    if seats == 2:
        ones = paid["x", "a"][0] + paid["a", "x"][1] - sum(paid["a", "a"])
        assert alone.mid == pytest.approx(ones)
    with pytest.raises(ValueError, match="did not meet"):
        gain_over_mixture(table, "y", mixture)


def test_without_a_constant_sum_a_mixture_that_did_not_meet_itself_is_answered_by_half_of_what_x_is_ahead():
    games = [
        (0, ("x", "a"), (-5.0, 3.0), 0),
        (1, ("a", "x"), (-1.0, 1.0), None),
        (2, ("x", "b"), (2.0, -2.0), None),
        (3, ("b", "x"), (0.0, 0.0), None),
    ]
    gain = gain_over_mixture(table_of(games), "x", {"a": 0.5, "b": 0.5})
    assert gain.mid == pytest.approx(0.5 * (-2 - 1) + 0.5 * (1 + 1))
    assert gain.low < gain.mid < gain.high


def test_payoffs_of_groups_are_means_over_all_orders_of_seats():
    table = PayoffTable()
    for number, seating in enumerate(sorted({*permutations("aab")})):
        rewards = [10.0 * seat + (one == "a") for seat, one in enumerate(seating)]
        table.add(number, seating, rewards, deal=0)
    found = GroupPayoffs.of(table, ["a", "b"])
    assert found.mean.shape == (2, 2, 2)
    assert found.mean[0, 0, 1] == found.mean[0, 1, 0] == pytest.approx(11.0)
    assert found.mean[1, 0, 0] == pytest.approx(10.0)
    assert found.games.tolist() == [[[0, 3], [3, 0]], [[3, 0], [0, 0]]]
    assert found.matrix.mean_MM[1, 0] == pytest.approx(10.0)
    assert not found.knows_copies


@pytest.mark.parametrize("is_zero_sum", [True, False])
def test_what_a_member_earns_against_itself_is_certain_only_where_it_is_zero(is_zero_sum):
    generator, table = np.random.default_rng(2), PayoffTable()
    for number in range(100):
        first = float(generator.normal())
        table.add(number, ("a", "a"), (first, -first if is_zero_sum else 2 * first))
    matrix = table.matrix(["a"])
    assert matrix.mean_MM[0, 0] == pytest.approx(sum(map(table.payoff("a", "a").mean, (0, 1))) / 2)
    errors = [table.payoff("a", "a").error(seat, table.reward_range) for seat in (0, 1)]
    assert matrix.error_MM[0, 0] == pytest.approx(0 if is_zero_sum else sum(errors) / 2)


def test_a_group_with_a_member_twice_has_the_error_of_its_rounds():
    generator, table, means = np.random.default_rng(1), PayoffTable(), []
    for deal in range(60):
        luck, noise = generator.normal(0.0, 5.0, 3), generator.normal()
        luck -= luck.mean()
        for order, seating in enumerate(sorted({*permutations("aab")})):
            rewards = [float(luck[seat] + (one == "a") * noise) for seat, one in enumerate(seating)]
            table.add(3 * deal + order, seating, rewards, deal=deal)
        means.append(noise)
    mean, error, games = table.beside("a", ("b", "a"))
    assert (mean, games) == (pytest.approx(np.mean(means)), 180)
    assert error == pytest.approx(np.std(means, ddof=1) / 60**0.5, rel=0.2)


def test_an_error_is_that_of_rounds_if_a_deal_is_played_in_both_orders_of_seats():
    """Cards are worth much more than who plays them, as in poker."""
    generator, table, rounds = np.random.default_rng(0), PayoffTable(), []
    for deal in range(200):
        luck, *noise = generator.normal(0.0, (5.0, 1.0, 1.0))
        first, second = luck + noise[0], -luck + noise[1]
        table.add(2 * deal, ("b", "a"), (first, -first), deal=deal)
        table.add(2 * deal + 1, ("a", "b"), (-second, second), deal=deal)
        rounds.append((first + second) / 2)
    matrix = table.matrix(["a", "b"])
    assert matrix.mean_MM[1, 0] == pytest.approx(np.mean(rounds))
    assert matrix.error_MM[1, 0] == pytest.approx(np.std(rounds, ddof=1) / 200**0.5, rel=0.2)
    assert matrix.error_MM[0, 1] == pytest.approx(matrix.error_MM[1, 0])
    score = table.score("b", ["a", "b"])
    assert score.high - score.mid == pytest.approx(1.96 * matrix.error_MM[1, 0], rel=1e-3)


def test_a_group_whose_orders_are_often_missing_has_the_error_of_separate_games():
    generator, table, plain = np.random.default_rng(0), PayoffTable(), PayoffTable()
    for deal in range(50):
        luck = generator.normal(0.0, 5.0)
        for order, seating in enumerate((("a", "b"), ("b", "a"))):
            if order == 0 or deal % 5:  # 40 of 50 rounds are complete, fewer than nine tenths of 45
                reward = luck + generator.normal()
                for one, known in ((table, deal), (plain, None)):
                    one.add(2 * deal + order, seating, (reward, -reward), deal=known)
    assert np.array_equal(table.matrix(["a", "b"]).error_MM, plain.matrix(["a", "b"]).error_MM)
    assert plain.matrix(["a", "b"]).error_MM[0, 1] > 0.4, "that of rounds is about a tenth"


def test_a_group_of_three_has_the_error_of_its_rounds():
    generator, table, means = np.random.default_rng(1), PayoffTable(), []
    for deal in range(40):
        luck = generator.normal(0.0, 5.0, 3)
        mine = []
        for order, seating in enumerate(permutations("abc")):
            rewards = [
                float(luck[seat] + (uid == "a") * generator.normal()) for seat, uid in enumerate(seating)
            ]
            table.add(6 * deal + order, seating, rewards, deal=deal)
            mine.append(rewards[seating.index("a")])
        means.append(np.mean(mine))
    score = table.score("a", "abc")
    assert score.mid == pytest.approx(np.mean(means))
    assert (score.high - score.mid) / 1.96 == pytest.approx(np.std(means, ddof=1) / 40**0.5, rel=0.3)


@pytest.mark.parametrize("offset", [0.0, 1e6, -1e9, 2.0**50])
def test_a_small_spread_beside_large_rewards_is_known(offset):
    rewards = [offset + one for one in (0.0, 1.0, -1.0, 1.0, 0.0, 1.0)]
    table = table_of([(number, ("a", "b"), (one, -one), None) for number, one in enumerate(rewards)])
    again = PayoffTable()
    again.load_state_dict(json.loads(json.dumps(table.state_dict())))
    for one in (table, again):
        (own, _) = one.rows()
        assert own["variance"] == pytest.approx(statistics.variance(one - offset for one in rewards))
        assert own["mean"] == pytest.approx(offset + 1 / 3, abs=0.1)
        played = one.payoff("a", "b")
        near = (offset - 1.0, offset + 1.0)
        assert played.deviation(0, near) == pytest.approx(statistics.stdev([0, 1, -1, 1, 0, 1, -1, 1]))


def test_a_payoff_of_an_older_version_goes_on():
    older = {"games": 2, "sums": [3.0], "squares": [5.0], "wins": [0], "draws": 2}
    older |= {"invalid": [0], "failed": 0}
    payoff = msgspec.convert(older, Payoff)
    payoff.add([6.0], None)
    assert (payoff.mean(0), payoff.variance(0)) == (3.0, pytest.approx(statistics.variance([1, 2, 6])))


@pytest.mark.parametrize(("seats", "deals"), [(2, 2), (2, 3), (2, 8), (3, 1), (3, 2), (3, 6)])
def test_intervals_of_a_few_deals_whose_luck_all_share_contain_the_mean(seats, deals):
    draw, names, contained = random.Random(1), [f"m{place}" for place in range(seats)], 0
    for trial in range(300):
        table = PayoffTable()
        for number, (deal, seating) in enumerate(product(range(deals), permutations(names))):
            luck = random.Random(f"{trial} {deal}").gauss(0, 1)
            rewards = [luck + draw.gauss(0, 1) for _ in seating]
            table.add(number, seating, rewards, None, deal)
        interval = table.score("m0", names)
        contained += interval.low <= 0 <= interval.high
    assert contained / 300 > 0.9


@given(st.lists(st.tuples(REWARDS, REWARDS), min_size=1, max_size=12))
def test_what_all_seats_earn_together_is_constant_only_if_it_is_in_every_game(rewards):
    table = table_of([(number, ("a", "b"), one, None) for number, one in enumerate(rewards)])
    again = PayoffTable()
    again.load_state_dict(json.loads(json.dumps(table.state_dict())))
    totals = {sum(one) for one in rewards}
    for one in (table, again):
        assert one.totals == (min(totals), max(totals))
        assert constant_total(one) == (min(totals) if len(totals) == 1 else None)
