import math

import pytest
import trueskill
from hypothesis import given, settings
from hypothesis import strategies as st

from sparring.population import TrueSkillRatings, ranks_of

ENV = trueskill.TrueSkill(beta=4.0)
RATINGS = st.tuples(st.floats(-20, 70), st.floats(0.5, 8.333))


def close(ratings, expected):
    assert [value for rating in ratings for value in rating] == pytest.approx(
        [value for rating in expected for value in (rating.mu, rating.sigma)]
    )


def test_equal_rewards_share_a_rank():
    assert ranks_of([0.5, 2.0, 0.5, -1.0]) == [1, 0, 1, 2]


@settings(deadline=None)
@given(RATINGS, RATINGS, st.sampled_from([(1.0, -1.0), (-2.0, 2.0), (0.0, 0.0)]))
def test_two_players_are_rated_as_trueskill_rates_them(first, second, rewards):
    a, b = ENV.create_rating(*first), ENV.create_rating(*second)
    rated = TrueSkillRatings().rate([first, second], list(rewards))
    try:
        if rewards[0] < rewards[1]:
            new_b, new_a = trueskill.rate_1vs1(b, a, env=ENV)
        else:
            new_a, new_b = trueskill.rate_1vs1(a, b, drawn=rewards[0] == rewards[1], env=ENV)
    except FloatingPointError:
        assert rated == [first, second]
    else:
        close(rated, [new_a, new_b])


def test_many_players_are_rated_by_rank_with_ties():
    ratings = [(25.0, 8.0), (30.0, 2.0), (20.0, 5.0), (25.0, 3.0)]
    expected = ENV.rate([(ENV.create_rating(*r),) for r in ratings], ranks=[1, 0, 1, 3])
    close(
        TrueSkillRatings().rate(ratings, [0.0, 3.0, 0.0, -3.0]),
        [group[0] for group in expected],
    )


@settings(deadline=None, max_examples=200)
@given(
    st.lists(
        st.tuples(st.floats(-1e6, 1e6), st.floats(1e-3, 1e3), st.sampled_from([-1.0, 0.0, 1.0])),
        min_size=2,
        max_size=4,
    )
)
def test_no_game_however_unlikely_breaks_a_rating(players):
    rated = TrueSkillRatings().rate([(mu, sigma) for mu, sigma, _ in players], [r for *_, r in players])
    assert all(math.isfinite(mu) and math.isfinite(sigma) and sigma > 0 for mu, sigma in rated)


def test_a_result_beyond_floating_point_leaves_the_ratings_as_they_were():
    ratings = [(1000.0, 0.5), (0.0, 0.5)]
    assert TrueSkillRatings().rate(ratings, [-1.0, 1.0]) == ratings


@given(RATINGS, RATINGS)
def test_quality_is_trueskills(first, second):
    expected = trueskill.quality_1vs1(ENV.create_rating(*first), ENV.create_rating(*second), env=ENV)
    assert TrueSkillRatings().quality(first, second) == pytest.approx(expected)


def test_a_new_checkpoint_inherits_the_mean_and_twice_the_deviation_up_to_the_default():
    ratings = TrueSkillRatings()
    assert ratings.inherited((31.0, 2.0)) == (31.0, 4.0)
    assert ratings.inherited((31.0, 5.0)) == (31.0, ratings.default[1])


def test_every_setting_reaches_trueskill():
    settings_of_env = {"mu": 10.0, "sigma": 3.0, "beta": 2.0, "tau": 0.5, "draw_probability": 0.4}
    ratings, env = TrueSkillRatings(**settings_of_env), trueskill.TrueSkill(**settings_of_env)
    assert ratings.default == (10.0, 3.0)
    expected = trueskill.rate_1vs1(env.create_rating(), env.create_rating(), drawn=True, env=env)
    close(ratings.rate([ratings.default] * 2, [0.0, 0.0]), expected)
    first, second = (12.0, 1.0), (9.0, 2.0)
    expected = trueskill.rate_1vs1(env.create_rating(*first), env.create_rating(*second), env=env)
    close(ratings.rate([first, second], [1.0, -1.0]), expected)
