"""The games of a tournament: who plays whom, how often, and where a budget goes."""

import math
from collections import Counter
from itertools import combinations, permutations, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparring.core import InputError
from sparring.evaluation.schedule import GAMES_PER_CHOICE, GameSchedule, worth
from sparring.population import PayoffTable


def test_a_game_for_more_seats_than_their_orders_can_be_played_in_is_refused():
    uids = [f"m{number}" for number in range(8)]
    assert GameSchedule(uids, 5040, None, 0, players=7).game(0, 5039).seating == tuple(reversed(uids[:7]))
    with pytest.raises(InputError, match="8 seats have 40,320 orders"):
        GameSchedule(uids, 2, None, 0, players=8)


def test_a_budget_goes_to_the_pairs_whose_order_is_open():
    schedule, table = GameSchedule(["a", "b", "c"], 20, 60 + 2 * GAMES_PER_CHOICE, 0), PayoffTable()
    counts: dict[frozenset[str], int] = {}
    sizes = []
    for batch in schedule.batches(table):
        sizes.append(len(batch))
        for game in batch:
            pair = frozenset(game.seating)
            counts[pair] = counts.get(pair, 0) + 1
            # a always beats c; a and b are even, and so are b and c, since they exchange seats.
            certain = pair == {"a", "c"}
            reward = 1.0 if certain or game.index % 4 in (0, 3) else -1.0
            reward = -reward if certain and game.seating[0] == "c" else reward
            table.add(game.number, game.seating, (reward, -reward))
    assert sizes == [60, GAMES_PER_CHOICE, GAMES_PER_CHOICE]
    assert counts[frozenset("ac")] < counts[frozenset("ab")] / 2
    assert sum(counts.values()) == schedule.total
    assert abs(counts[frozenset("ab")] - counts[frozenset("bc")]) <= 60


def test_a_settled_order_takes_no_games_from_an_open_one_however_wide_its_interval_is():
    schedule, table = GameSchedule(["x", "y", "weak"], 20, 2000, 0), PayoffTable()
    generator, counts = np.random.default_rng(0), Counter()
    for batch in schedule.batches(table):
        for game in batch:
            counts[frozenset(game.seating)] += 1
            ahead = {"x": 0.0, "y": 0.0, "weak": -12.0}
            gap = ahead[game.seating[0]] - ahead[game.seating[1]]
            reward = generator.normal(gap, 6.0 if gap else 1.0)
            table.add(game.number, game.seating, (reward, -reward))
    assert counts[frozenset("xy")] > 0.9 * (2000 - 40)


def test_the_worth_of_a_game_is_the_expected_loss_of_the_wrong_choice():
    generator = np.random.default_rng(0)
    for gap, deviation, games in ((0.0, 2.0, 16), (0.4, 2.0, 16), (-0.4, 2.0, 16), (1.0, 3.0, 9)):
        true = generator.normal(abs(gap), deviation / games**0.5, 400_000)
        assert worth(gap, deviation, games)[0] == pytest.approx(np.maximum(0, -true).mean(), rel=0.02)


def test_a_pair_whose_first_games_ended_alike_is_played_again():
    schedule, table = GameSchedule(["a", "b", "c"], 4, 12 + 6 * GAMES_PER_CHOICE, 0), PayoffTable()
    again = set()
    for number, batch in enumerate(schedule.batches(table)):
        again |= {frozenset(game.seating) for game in batch if number}
        for game in batch:
            # Only b against c ever ends otherwise.
            reward = 1.0 if {*game.seating} != {"b", "c"} or game.number % 3 else -1.0
            table.add(game.number, game.seating, (reward, -reward))
    assert again == {frozenset("ab"), frozenset("ac"), frozenset("bc")}


@given(st.integers(3, 5), st.integers(1, 30), st.integers(0, 5), st.sampled_from((2, 3)))
def test_every_group_plays_the_same_deals_in_every_order_of_seats(members, games, seed, players):
    uids = [f"m{number}" for number in range(members)]
    (batch,) = GameSchedule(uids, games, None, seed, players).batches(PayoffTable())
    rounds = -(-games // math.factorial(players))
    by_seating = {}
    for game in batch:
        by_seating.setdefault(game.seating, []).append(game.seed)
    assert by_seating.keys() == {*permutations(uids, players)}
    for seating, seeds in by_seating.items():
        assert len({*seeds}) == rounds
        assert {*seeds} == {*by_seating[tuple(sorted(seating))]}
    assert len({game.seed for game in batch}) == rounds * math.comb(members, players)
    assert len({game.number for game in batch}) == len(batch)
    more = {
        game
        for batch in GameSchedule([*uids, "x"], games, None, seed, players).batches(PayoffTable())
        for game in batch
    }
    assert {*batch} <= more


@given(st.integers(1, 4), st.integers(1, 30), st.sampled_from((2, 3)))
def test_a_member_may_have_several_seats_in_every_different_order(members, games, players):
    uids = [f"m{number}" for number in range(members)]
    (batch,) = GameSchedule(uids, games, None, 0, players, repeats=True).batches(PayoffTable())
    assert {game.seating for game in batch} == {*product(uids, repeat=players)}
    by_group = Counter(tuple(sorted(game.seating)) for game in batch)
    assert {*by_group.values()} == {math.ceil(games / math.factorial(players)) * math.factorial(players)}
    for group in by_group:
        seatings = {game.seating for game in batch if tuple(sorted(game.seating)) == group}
        deals = [{game.seed for game in batch if game.seating == one} for one in seatings]
        assert all(one == deals[0] for one in deals)
    (more,) = GameSchedule([*uids, "x"], games, None, 0, players, repeats=True).batches(PayoffTable())
    assert {*batch} <= {*more}


def test_a_budget_for_groups_is_spent_in_whole_rounds():
    schedule, table = GameSchedule(["a", "b", "c", "d"], 6, 24 + 100, 0, players=3), PayoffTable()
    seatings = Counter()
    for batch in schedule.batches(table):
        for game in batch:
            # d decides nothing, so groups with it are as uncertain as the rest.
            table.add(game.number, game.seating, (1.0, 0.0, -1.0))
            seatings[game.seating] += 1
    assert sum(seatings.values()) == schedule.total == 120
    for group in combinations("abcd", 3):
        assert len({seatings[seating] for seating in permutations(group)}) == 1


def test_a_budget_is_spread_over_pairs_whose_games_all_ended_alike():
    schedule, table = GameSchedule(["a", "b", "c"], 20, 600, 0), PayoffTable()
    counts = Counter()
    for batch in schedule.batches(table):
        for game in batch:
            counts[frozenset(game.seating)] += 1
            table.add(game.number, game.seating, (0.0, 0.0))
    assert [*counts.values()] == [200, 200, 200]
