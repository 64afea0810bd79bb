import json
import math
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
import trueskill
from hypothesis import given
from hypothesis import strategies as st

from sparring.population import PayoffTable, meta_strategies
from sparring.population.meta_strategies import ResampledShare
from sparring.population.payoffs import PayoffMatrix
from sparring.population.rankings import beats, cycles, dominated, rank
from sparring.population.ratings import Results, bradley_terry
from tournaments import few_resamples  # noqa: F401 - a fixture

ARENA_RANK = json.loads((Path(__file__).parent / "arena_rank.json").read_text())
SCORES = {"model_a": 1.0, "model_b": -1.0, "tie": 0.0}


@pytest.fixture
def all_resamples(monkeypatch) -> None:
    """Ranges are what is tested."""
    monkeypatch.setattr(meta_strategies, "RESAMPLES", 60)


def table_of(games) -> PayoffTable:
    """Return the payoffs of games, each as its two members and the first one's reward."""
    table = PayoffTable()
    for number, (first, second, reward) in enumerate(games):
        table.add(number, (first, second), (reward, -reward))
    return table


def pair(first: str, second: str, wins: int, losses: int) -> list[tuple[str, str, float]]:
    """Return games of which the first member wins so many in each seat."""
    won = [(first, second, 1.0), (second, first, -1.0)]
    lost = [(first, second, -1.0), (second, first, 1.0)]
    return won * wins + lost * losses


def ranked(games, members):
    return rank(table_of(games), members, [((a, b), (reward, -reward)) for a, b, reward in games])


@pytest.fixture(scope="module")
def close():
    """Rankings of two members of which one wins 6 of 11 games, with all resamples: ranges are tested."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(meta_strategies, "RESAMPLES", 60)
        return ranked(pair("a", "b", 6, 5), ["a", "b"])


def matrix_of(mean_MM, error=0.01) -> PayoffMatrix:
    mean_MM = np.array(mean_MM, dtype=float)
    size = len(mean_MM)
    error_MM = np.full((size, size), error) - np.eye(size) * error
    return PayoffMatrix(tuple("abcdefgh"[:size]), mean_MM, error_MM, np.full((size, size), 100))


@pytest.mark.parametrize("recorded", ARENA_RANK)
def test_bradley_terry_and_its_intervals_are_those_of_arena_rank(recorded):
    # tests/record_arena_rank.py recorded them.
    games = [(a, b, SCORES[won]) for a, b, won, count in recorded["games"] for _ in range(count)]
    rated = bradley_terry(Results.of(table_of(games), recorded["members"]))
    for name in ("low", "mid", "high"):
        found = [getattr(interval, name) for interval in rated]
        assert found == pytest.approx(recorded[name], abs=0.02)


def test_two_members_differ_by_the_logarithm_of_their_odds():
    first, second = bradley_terry(Results.of(table_of(pair("a", "b", 30, 10)), ["a", "b"]))
    assert first.mid - second.mid == pytest.approx(400 * math.log10(3))
    assert first.mid + second.mid == pytest.approx(2000)


def test_a_draw_counts_as_half_a_win():
    drawn = [("a", "b", 0.0)] * 20 + pair("a", "b", 10, 0)
    halves = pair("a", "b", 15, 5)
    for one, other in zip(
        bradley_terry(Results.of(table_of(drawn), ["a", "b"])),
        bradley_terry(Results.of(table_of(halves), ["a", "b"])),
        strict=True,
    ):
        assert one.mid == pytest.approx(other.mid)
        assert one.high - one.low < other.high - other.low


def test_a_member_that_wins_every_game_gets_a_finite_rating():
    games = pair("a", "b", 10, 0) + pair("b", "c", 5, 5) + pair("a", "c", 10, 0)
    rated = bradley_terry(Results.of(table_of(games), ["a", "b", "c"]))
    assert rated[0].mid > rated[1].mid
    assert all(math.isfinite(bound) for interval in rated for bound in interval)
    # One more game of each pair, drawn: a scores 20.5 of 21 against each.
    assert rated[0].mid - rated[1].mid == pytest.approx(400 * math.log10(20.5 / 0.5), abs=1e-6)


@given(st.permutations(["a", "b", "c"]))
def test_the_order_of_members_changes_no_rating(members):
    games = pair("a", "b", 4, 2) + pair("b", "c", 5, 3) + pair("c", "a", 2, 4)
    expected = dict(zip("abc", bradley_terry(Results.of(table_of(games), list("abc"))), strict=True))
    found = dict(zip(members, bradley_terry(Results.of(table_of(games), members)), strict=True))
    for uid in members:
        assert found[uid] == pytest.approx(expected[uid])


def test_who_beats_whom_needs_more_than_noise():
    matrix = matrix_of([[0, 0.5, 0.01], [-0.5, 0, math.nan], [-0.01, math.nan, 0]])
    assert beats(matrix).tolist() == [[False, True, False], [False, False, False], [False, False, False]]


def test_a_member_is_dominated_if_another_is_as_good_everywhere_and_better_somewhere():
    matrix = matrix_of([[0, 0.2, 0.5], [-0.2, 0, 0.5], [-0.5, -0.5, 0]])
    assert dominated(matrix) == {"b": "a", "c": "a"}


def test_a_member_that_is_better_anywhere_is_not_dominated():
    # b loses against a, and beats c by more than a does.
    assert dominated(matrix_of([[0, 0.2, 0.3], [-0.2, 0, 0.5], [-0.3, -0.5, 0]])) == {"c": "a"}


def chicken() -> PayoffTable:
    """A hawk earns 1 and a dove -1 in each of 40 games, in either order of seats. Neither met itself."""
    table = PayoffTable()
    for number in range(40):
        first, second = ("hawk", "dove") if number % 2 else ("dove", "hawk")
        table.add(number, (first, second), (1.0, -1.0) if number % 2 else (-1.0, 1.0))
    return table


@pytest.mark.parametrize("hawks_reward", [1.0, -1.0, 3.0])
def test_without_a_zero_sum_nobody_is_dominated_by_what_was_not_played(hawks_reward):
    table = chicken()
    assert dominated(table.matrix(["hawk", "dove"])) == {"dove": "hawk"}
    table.add(40, ("hawk", "dove"), (hawks_reward, 5.0))
    matrix = table.matrix(["hawk", "dove"])
    assert not matrix.is_zero_sum
    assert dominated(matrix) == {}


def test_without_a_zero_sum_nobody_is_known_to_earn_nothing_against_itself():
    table = chicken()
    assert table.matrix(["hawk", "dove"]).known_MM.all()
    known = {one.uid: one.nash_score for one in rank(table, ["hawk", "dove"], []).members}
    assert known["hawk"].mid == pytest.approx(0, abs=1e-6)
    table.add(40, ("hawk", "dove"), (2.0, 1.0))
    found = {one.uid: one for one in rank(table, ["hawk", "dove"], []).members}
    assert found["hawk"].nash.share == pytest.approx(1)
    assert found["hawk"].nash_score is None
    assert found["dove"].nash_score.mid < 0
    for number in range(41, 61):
        table.add(number, ("hawk", "hawk"), (-2.0, -2.0))
    found = {one.uid: one for one in rank(table, ["hawk", "dove"], []).members}
    assert found["hawk"].nash_score.mid == pytest.approx(-2)


def test_without_a_zero_sum_members_are_compared_against_the_others():
    table, number = PayoffTable(), 0
    for pair, rewards in (
        (("good", "x"), (1.0, 0.0)),
        (("bad", "x"), (0.0, 0.0)),
        (("good", "bad"), (1.0, 1.0)),
    ):
        for turn in range(40):
            sides = (pair, rewards) if turn % 2 else (pair[::-1], rewards[::-1])
            table.add(number, *sides)
            number += 1
    assert dominated(table.matrix(["good", "bad", "x"])) == {"bad": "good", "x": "good"}


def test_a_difference_within_noise_dominates_nobody():
    assert dominated(matrix_of([[0, 0.02], [-0.02, 0]], error=0.1)) == {}


def test_nobody_beats_or_dominates_anybody_in_a_few_games_that_ended_alike():
    games = pair("a", "b", 9, 0) + pair("c", "d", 10, 0)
    matrix = table_of(games).matrix(["a", "b"])
    assert matrix.mean_MM[0, 1] == 1
    assert not beats(matrix).any()
    assert dominated(matrix) == {}
    matrix = table_of(games).matrix(["c", "d"])
    assert beats(matrix).tolist() == [[False, True], [False, False]]
    assert dominated(matrix) == {"d": "c"}


def test_a_difference_against_a_third_in_few_games_dominates_nobody():
    matrix = matrix_of([[0, 0, 0.5], [0, 0, -0.5], [-0.5, 0.5, 0]])
    assert dominated(matrix)["b"] == "a"
    matrix.games_MM[1, 2] = matrix.games_MM[2, 1] = 19
    assert "b" not in dominated(matrix)


def test_a_pair_that_did_not_meet_is_not_dominated():
    matrix = matrix_of([[0, 0.5, math.nan], [-0.5, 0, 0.5], [math.nan, -0.5, 0]])
    assert dominated(matrix) == {}


def test_a_chain_has_no_cycle_and_rock_paper_scissors_is_one():
    assert cycles(("a", "b", "c"), np.triu(np.ones((3, 3), dtype=bool), 1)) == []
    circle = np.array([[0, 1, 0], [0, 0, 1], [1, 0, 0]], dtype=bool)
    assert cycles(("a", "b", "c"), circle) == [({"a", "b", "c"}, ["a", "b", "c"])]


def test_the_shortest_cycle_of_each_group_is_found():
    beats_MM = np.zeros((8, 8), dtype=bool)
    for winner, loser in [(0, 1), (1, 2), (2, 3), (3, 0), (2, 0), (4, 5), (5, 6), (6, 4), (0, 4), (7, 0)]:
        beats_MM[winner, loser] = True
    found = cycles(tuple("abcdefgh"), beats_MM)
    assert found == [({"a", "b", "c", "d"}, ["a", "b", "c"]), ({"e", "f", "g"}, ["e", "f", "g"])]


def test_rankings_of_a_cycle_below_a_best_member():
    games = (
        pair("rock", "scissors", 40, 5)
        + pair("scissors", "paper", 40, 5)
        + pair("paper", "rock", 40, 5)
        + [one for loser in ("rock", "paper", "scissors") for one in pair("king", loser, 40, 5)]
    )
    rankings = ranked(games, ["rock", "paper", "scissors", "king"])
    king, *others = rankings.members
    assert king.uid == "king"
    assert king.nash == pytest.approx((1, 1, 1), abs=1e-4)
    assert king.alpharank == pytest.approx((1, 1, 1), abs=1e-4)
    assert king.score.mid == pytest.approx(35 / 45)
    assert king.score.low < king.score.mid < king.score.high
    assert king.bradley_terry.low > max(one.bradley_terry.high for one in others)
    assert king.dominated_by is None
    assert king.games == 3 * 90
    assert {one.dominated_by for one in others} == {"king"}
    for one in others:
        assert one.nash_score.mid == pytest.approx(-35 / 45, abs=1e-3)
    assert [(cycle.group, cycle.shortest) for cycle in rankings.cycles] == [
        (("rock", "paper", "scissors"), ("rock", "scissors", "paper"))
    ]
    assert json.loads(json.dumps(rankings.to_dict(), allow_nan=False))["members"][0]["uid"] == "king"


def test_the_shares_of_members_that_few_games_tell_apart_have_wide_resampled_ranges(all_resamples, close):
    few, many = (
        {one.uid: one for one in rankings.members}
        for rankings in (close, ranked(pair("a", "b", 600, 400), ["a", "b"]))
    )
    assert few["a"].nash == pytest.approx(ResampledShare(1, low=0, high=1), abs=1e-4)
    assert few["b"].alpharank == pytest.approx(ResampledShare(0, low=0, high=1), abs=1e-4)
    assert many["a"].nash == pytest.approx(ResampledShare(1, low=1, high=1), abs=1e-4)
    assert many["b"].alpharank == pytest.approx(ResampledShare(0, low=0, high=0), abs=1e-4)


def test_the_files_call_the_spread_of_resampled_solutions_what_it_is(close):
    rankings = json.loads(json.dumps(close.to_dict(), allow_nan=False))
    assert rankings["resamples"] == 60
    best = rankings["members"][0]
    for name in ("nash", "alpharank"):
        assert best[name] == {
            "share": pytest.approx(1, abs=1e-4),
            "resampled_range": pytest.approx([0, 1], abs=1e-4),
        }
    for name in ("score", "bradley_terry"):
        low, mid, high = best[name]
        assert low < mid < high


def test_one_game_in_each_seat_bounds_no_share(all_resamples):
    by_uid = {one.uid: one for one in ranked(pair("a", "b", 1, 0), ["a", "b"]).members}
    assert by_uid["a"].nash == pytest.approx(ResampledShare(1, low=0, high=1), abs=1e-4)
    assert json.loads(json.dumps(by_uid["a"].nash, allow_nan=False))


def test_the_expected_score_gives_every_opponent_the_same_weight():
    rankings = ranked(pair("a", "b", 10, 0) + pair("a", "c", 0, 100), ["a", "b", "c"])
    by_uid = {one.uid: one for one in rankings.members}
    assert by_uid["a"].score.mid == 0
    assert by_uid["b"].score.mid == -1
    assert by_uid["b"].nash is None
    assert by_uid["b"].alpharank is None


def test_the_interval_of_the_expected_score_is_that_of_a_mean_over_opponents():
    games = pair("a", "b", 30, 10) + pair("a", "c", 10, 30) + pair("a", "d", 25, 15)
    members = ["a", "b", "c", "d"]
    errors = table_of(games).matrix(members).error_MM[0, 1:]
    (score,) = [one.score for one in ranked(games, members).members if one.uid == "a"]
    expected = 1.959964 * math.sqrt(sum(error**2 for error in errors)) / 3
    assert score.high - score.mid == pytest.approx(expected, rel=1e-5)
    assert score.mid - score.low == pytest.approx(expected, rel=1e-5)


def test_a_member_without_a_finished_game_has_no_score():
    by_uid = {one.uid: one for one in ranked(pair("a", "b", 2, 1), ["a", "b", "c"]).members}
    assert by_uid["c"].score is None
    assert by_uid["c"].games == 0


def test_in_a_game_for_three_every_seat_beside_others_has_the_same_weight():
    table = PayoffTable()
    games = [
        (("a", "b", "c"), (2.0, -1.0, -1.0)),
        (("a", "b", "c"), (2.0, -1.0, -1.0)),
        (("a", "b", "c"), (2.0, -1.0, -1.0)),
        (("b", "a", "c"), (1.0, 0.0, -1.0)),
        (("a", "a", "a"), (-9.0, -9.0, 18.0)),
        (("a", "b", "x"), (-9.0, -9.0, 18.0)),
    ]
    for number, game in enumerate(games):
        table.add(number, *game, invalid_seat=2)
    rankings = rank(table, ["a", "b", "c"], games)
    assert rankings.matrix is None
    assert rankings.seats == ("0", "1", "2")
    assert [one.uid for one in rankings.members] == ["a", "b", "c"]
    assert [one.score.mid for one in rankings.members] == [1.0, 0.0, -1.0]
    assert [one.games for one in rankings.members] == [4, 4, 4]
    assert [one.invalid for one in rankings.members] == [0, 0, 4]
    assert rankings.members[0].trueskill > rankings.members[2].trueskill
    json.dumps(rankings.to_dict(), allow_nan=False)
    table.add(len(games), ("a", "a", "b"), (0.0, 4.0, -4.0))
    by_uid = {one.uid: one for one in rank(table, ["a", "b", "c"], games).members}
    assert by_uid["a"].score.mid == (2 + 0 + 0 + 4) / 4
    assert [one.mid for one in by_uid["a"].by_seat[:2]] == [(2 + 0) / 2, (0 + 4) / 2]
    assert by_uid["a"].by_seat[2] is None


def test_a_member_has_a_mean_reward_in_each_role_with_the_error_of_its_games():
    generator, table, games = np.random.default_rng(0), PayoffTable(), []
    for deal in range(200):
        luck = generator.normal(0.0, 5.0)
        for first, second in permutations("ab"):
            games.append(((first, second), (3.0 + luck + (first == "a"), -3.0 - luck)))
            table.add(len(games), *games[-1], deal=deal)
    rankings = rank(table, ["a", "b"], games, ("Buyer", "Seller"))
    best = rankings.members[0]
    assert best.uid == "a"
    for seat, one in enumerate(best.by_seat):
        mine = [rewards[seat] for seating, rewards in games if seating[seat] == "a"]
        assert one.mid == pytest.approx(np.mean(mine))
        assert (one.high - one.mid) / 1.96 == pytest.approx(np.std(mine) / 200**0.5, rel=0.1)
    assert best.score.high - best.score.low < 0.2 < best.by_seat[0].high - best.by_seat[0].low
    read = json.loads(json.dumps(rankings.to_dict()))
    assert read["seats"] == ["Buyer", "Seller"]
    assert read["members"][0]["by_seat"][1] == list(best.by_seat[1])


def test_trueskill_rates_the_games_in_their_order():
    system = trueskill.TrueSkill(beta=4.0)
    a, b = system.create_rating(), system.create_rating()
    games = [("a", "b", 1.0), ("b", "a", 0.0), ("a", "b", -1.0), ("a", "b", 1.0)]
    for first, _, reward in games:
        won = reward if first == "a" else -reward
        if won < 0:
            b, a = trueskill.rate_1vs1(b, a, env=system)
        else:
            a, b = trueskill.rate_1vs1(a, b, drawn=won == 0, env=system)
    by_uid = {one.uid: one for one in ranked(games, ["a", "b"]).members}
    assert by_uid["a"].trueskill == pytest.approx((a.mu, a.sigma))
    assert by_uid["b"].trueskill == pytest.approx((b.mu, b.sigma))


def test_games_ended_by_a_members_own_invalid_move_are_counted():
    table = PayoffTable()
    table.add(0, ("a", "b"), (-1.0, 1.0), invalid_seat=0)
    table.add(1, ("b", "a"), (1.0, -1.0), invalid_seat=1)
    table.add(2, ("b", "a"), (-1.0, 1.0), invalid_seat=0)
    by_uid = {one.uid: one for one in rank(table, ["a", "b"], []).members}
    assert (by_uid["a"].invalid, by_uid["b"].invalid) == (2, 1)
