"""Prioritised opponents: weights by hand, drawn as often as they say, by results of real games."""

import hashlib
import json
import random
from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors import CHI_SQUARE_999, Playing, assert_drawn_as
from sparring.config import Config
from sparring.core import MockInferenceClient
from sparring.population import ModelPool, SamplingRule
from sparring.population.opponent_choice import pfsp_weights
from sparring.population.results import RecentResults
from sparring.run.assembly import build_pool, fixed_members


def make_pool(mode, fixed=(), most=4, **rule):
    pool = ModelPool(mode, most, rule=SamplingRule(**rule), seed=4)
    pool.add_policy()
    for name in fixed:
        pool.add_fixed(name)
    return pool


def play(pool, uid, results):
    """The policy plays a member: w, d or l, in order."""
    for result in results:
        reward = {"w": 1.0, "d": 0.0, "l": -1.0}[result]
        pool.push_result(["default", uid], [reward, -reward], "kuhn", [])


# Modes that were there before

DRAWN_BEFORE = {
    "mirror": "62ff159edf99c373",
    "fixed": "ba7e1d959a88bf82",
    "lagged": "87d1be98954b4c31",
    "random": "8cd90bc60ed21cfe",
    "match-quality": "4c8d859cdfd403cf",
    "ts-dist": "6141abafacf7efbd",
    "exploration": "400d5651f035f603",
}
"""Hashes of draws by mode, from before there was prioritised play."""


@pytest.mark.parametrize("mode", DRAWN_BEFORE)
def test_other_modes_draw_what_they_drew_before_there_was_prioritised_play(mode):
    pool = ModelPool(mode, 3, lag_range=(1, 2), seed=4)
    pool.add_policy()
    for name in "xy":
        pool.add_fixed(name)
    rng, draws = random.Random(9), []
    pool.add_checkpoint(None, 0)
    for iteration in range(1, 7):
        for _ in range(12):
            draws.append(pool.sample("default", rng))
            reward = rng.choice([1.0, -1.0, 0.0])
            actions = [rng.choice("abc"), rng.choice("ab")]
            pool.push_result(["default", draws[-1]], [reward, -reward], "kuhn", actions)
        draws.append(pool.sample("default"))
        pool.add_checkpoint(f"a/{iteration}", iteration)
    assert hashlib.sha256(" ".join(draws).encode()).hexdigest()[:16] == DRAWN_BEFORE[mode]


# The past, and mirror games


def test_the_past_is_drawn_uniformly_from_its_first_copy_to_its_latest():
    pool = make_pool("historical", ["x"])
    for iteration in range(0, 40, 10):
        pool.add_checkpoint(None if iteration == 0 else f"a/{iteration}", iteration)
    assert_drawn_as(pool, dict.fromkeys(["ckpt-0", "ckpt-10", "ckpt-20", "ckpt-30"], 0.25))


def test_the_policy_plays_itself_until_it_has_a_past():
    pool = make_pool("historical")
    assert pool.sample("default") == "default"


@given(st.integers(3, 12), st.integers(1, 150))
def test_copies_stay_spread_over_the_whole_run(most, copies):
    pool = make_pool("historical", most=most)
    for iteration in range(copies):
        pool.add_checkpoint(f"a/{iteration}", iteration)
    kept = [int(uid.removeprefix("ckpt-")) for uid in pool.active_checkpoints()]
    assert len(kept) == min(most, copies)
    assert (kept[0], kept[-1]) == (0, copies - 1)
    gaps = [later - earlier for earlier, later in pairwise(kept)]
    assert max(gaps[:-1], default=1) <= 2 * min(gaps[:-1], default=1)
    assert max(gaps, default=1) == max(gaps[:-1], default=1), "the latest is no further away"


def test_which_copies_stay_by_hand():
    pool = make_pool("historical", most=4)
    kept = []
    for iteration in range(0, 90, 10):
        pool.add_checkpoint(f"a/{iteration}", iteration)
        kept.append([int(uid.removeprefix("ckpt-")) for uid in pool.active_checkpoints()])
    assert kept[3:] == [
        [0, 10, 20, 30],
        [0, 20, 30, 40],
        [0, 20, 40, 50],
        [0, 20, 40, 60],
        [0, 40, 60, 70],
        [0, 40, 60, 80],
    ]


@pytest.mark.parametrize("mode", ["historical", "pfsp", "random"])
async def test_a_share_of_the_games_is_played_and_trained_as_in_mirror(mode):
    collector = Playing(MockInferenceClient(["[check]"]), mode=mode, rule=SamplingRule(0.35))
    jobs = [collector.scheduler.next_train_job() for _ in range(4000)]
    mirror = [job for job in jobs if job.uids == ("default", "default")]
    others = [job for job in jobs if set(job.uids) == {"default", "ckpt-0"}]
    assert len(mirror) + len(others) == 4000
    assert (len(mirror) - 1400) ** 2 / (4000 * 0.35 * 0.65) < CHI_SQUARE_999[1]
    assert {len(job.spec.trained_pids) for job in mirror} == {2}
    assert {len(job.spec.trained_pids) for job in others} == {1}
    figures = collector.pool.figures()
    assert figures["default"]["drawn"] == len(mirror)
    assert figures["ckpt-0"]["drawn"] == len(others)


# Prioritised fictitious self-play


@pytest.mark.parametrize(
    ("form", "weights"),
    [
        ("hard", [0.81, 0.25, 0.04]),
        ("variance", [0.09, 0.25, 0.16]),
        ("linear", [0.5, 0.5, 0.2]),
    ],
)
def test_weights_of_prioritised_play_by_hand(form, weights):
    expected = [weight / sum(weights) for weight in weights]
    assert pfsp_weights([0.1, 0.5, 0.8], form) == pytest.approx(expected)


@pytest.mark.parametrize("form", ["hard", "variance", "linear"])
def test_a_learner_that_beats_everybody_draws_uniformly(form):
    assert pfsp_weights([1.0, 1.0, 1.0, 1.0], form) == [0.25] * 4


def test_an_unrated_candidate_has_the_largest_weight_of_the_others():
    assert pfsp_weights([0.1, None, 0.8], "hard") == pytest.approx([81 / 166, 81 / 166, 4 / 166])
    assert pfsp_weights([0.9, None, 0.5], "variance") == pytest.approx([9 / 59, 25 / 59, 25 / 59])
    assert pfsp_weights([None, None], "linear") == [0.5, 0.5]


def test_win_rates_are_smoothed_and_old_games_fade():
    recent = RecentResults()
    for number in range(10):
        assert recent.win_rate(["me"], "other") is None, "it is unrated until its tenth game"
        recent.add_game("me", {"me": float(number == 0), "other": float(number != 0) / 2})
    games = sum(0.99**age for age in range(10))
    assert recent.win_rate(["me"], "other") == pytest.approx((0.99**9 + 1) / (games + 2))
    recent.add_game("me", {"me": 0.0, "other": 0.0})
    assert recent.win_rate(["me"], "other") == pytest.approx((0.99**10 + 0.5 + 1) / (0.99 * games + 1 + 2))
    for _ in range(1000):
        recent.add_game("me", {"me": 1.0, "other": 0.0})
    assert recent.win_rate(["me"], "other") == pytest.approx(101 / 102, abs=1e-3)
    for _ in range(1000):
        recent.add_game("me", {"me": 0.0, "other": 1.0})
    assert recent.win_rate(["me"], "other") == pytest.approx(1 / 102, abs=1e-3)


@pytest.mark.parametrize("form", ["hard", "variance", "linear"])
def test_opponents_are_drawn_by_the_smoothed_win_rate_against_each(form):
    pool = make_pool("pfsp", ["easy", "even", "hard"], pfsp=form)
    play(pool, "fixed-easy", "w" * 20)
    play(pool, "fixed-even", "wl" * 5 + "d" * 10)
    play(pool, "fixed-hard", "l" * 20)
    games = sum(0.99**age for age in range(20))
    even = sum(0.99**age * (0.5 if age < 10 else age % 2) for age in range(20))
    rates = [(games + 1) / (games + 2), (even + 1) / (games + 2), 1 / (games + 2)]
    shares = pfsp_weights(rates, form)
    assert_drawn_as(pool, dict(zip(["fixed-easy", "fixed-even", "fixed-hard"], shares, strict=True)))


def test_each_policy_draws_by_its_own_results():
    pool = ModelPool("pfsp", 4, seed=4)
    for policy in ("first", "second"):
        pool.add_policy(policy)
    for name in ("x", "y"):
        pool.add_fixed(name)
    for reward, policy, uid in 40 * [
        (1.0, "first", "fixed-x"),
        (-1.0, "first", "fixed-y"),
        (-1.0, "second", "fixed-x"),
        (1.0, "second", "fixed-y"),
    ]:
        pool.push_result([policy, uid], [reward, -reward], "kuhn", [])
    for policy, hard in (("first", "fixed-y"), ("second", "fixed-x")):
        drawn = Counter(pool.sample(policy) for _ in range(200))
        assert drawn[hard] > 190, f"{policy} loses to {hard} only"


def test_an_opponent_is_unrated_until_its_tenth_game():
    pool = make_pool("pfsp", ["easy", "new"])
    play(pool, "fixed-easy", "w" * 50)
    play(pool, "fixed-new", "w" * 9)
    assert_drawn_as(pool, {"fixed-easy": 0.5, "fixed-new": 0.5})
    play(pool, "fixed-new", "w")
    (easy, new) = (pool.recent.win_rate(["default"], f"fixed-{name}") for name in ("easy", "new"))
    total = (1 - easy) ** 2 + (1 - new) ** 2
    assert_drawn_as(pool, {"fixed-easy": (1 - easy) ** 2 / total, "fixed-new": (1 - new) ** 2 / total})


async def test_the_results_of_real_games_change_who_is_drawn():
    """In a public pool nobody passed results on: every win rate stayed at 0.5, and draws were uniform."""

    def answer(messages, seed, model):
        facing_a_bet = "fold" in messages[-1]["content"]
        if model == "folder":
            return "fold" if facing_a_bet else "check"
        return "call" if facing_a_bet else "bet"

    async def complete(messages, *args, **options):
        reply = MockInferenceClient([answer(messages, options["seed"], options["model"])])
        return await reply.complete(messages, *args, **options)

    client = MockInferenceClient(["check"])
    client.complete = complete
    collector = Playing(client, games=150, mode="pfsp", fixed=["folder", "caller"])

    def drawn(played):
        return Counter(one.job.meta.opponent_uid for one in played)

    first = drawn(await collector.collect())
    assert min(first["ckpt-0"], first["fixed-folder"], first["fixed-caller"]) > 15
    later = drawn(await collector.collect())
    assert later["fixed-folder"] < 10, "the policy, which always bets, never loses to who folds"
    assert min(later["fixed-caller"], later["ckpt-0"]) > 40


def test_the_hardest_copies_and_the_latest_stay_active():
    pool = make_pool("pfsp", most=3)
    for iteration in range(3):
        pool.add_checkpoint(f"a/{iteration}", iteration)
    play(pool, "ckpt-0", "l" * 20)
    play(pool, "ckpt-1", "w" * 20)
    play(pool, "ckpt-2", "wl" * 10)
    pool.add_checkpoint("a/3", 3)
    assert pool.active_checkpoints() == ["ckpt-0", "ckpt-2", "ckpt-3"]
    play(pool, "ckpt-0", "w" * 40)
    pool.add_checkpoint("a/4", 4)
    assert pool.active_checkpoints() == ["ckpt-2", "ckpt-3", "ckpt-4"], "ckpt-3 is unrated, so as hard as any"
    assert pool.matches.record("default", "ckpt-0").games == 60, "results of who retired are kept"
    assert pool.recent.win_rate(["default"], "ckpt-1") > 0.9


def test_the_copies_of_one_policy_stay_active_that_are_hard_for_the_other():
    pool = ModelPool("pfsp", 2)
    for policy in ("first", "second"):
        pool.add_policy(policy)
    for iteration in range(2):
        pool.add_checkpoint(f"a/{iteration}", iteration, "second")
    for reward, uid in [(-1.0, "second-ckpt-0"), (1.0, "second-ckpt-1")] * 20:
        pool.push_result(["first", uid], [reward, -reward], "kuhn", [])
    pool.add_checkpoint("a/2", 2, "second")
    assert pool.active_checkpoints() == ["second-ckpt-0", "second-ckpt-2"]


def test_a_forgotten_copy_leaves_no_win_rate():
    pool = make_pool("pfsp")
    pool.add_checkpoint("a/1", 1)
    play(pool, "ckpt-1", "w" * 20)
    pool.forget_after(0)
    pool.add_checkpoint("b/1", 1)
    assert pool.recent.win_rate(["default"], "ckpt-1") is None


def test_a_restored_pool_draws_by_the_same_win_rates():
    pool = make_pool("pfsp", ["x", "y", "z"])
    for name, results in {"x": "wwl" * 9, "y": "wd" * 9, "z": "l" * 9}.items():
        play(pool, f"fixed-{name}", results)
    pool.count_drawn(["fixed-x"])
    again = make_pool("pfsp")
    again.load_state_dict(json.loads(json.dumps(pool.state_dict())))
    assert again.figures() == pool.figures()
    assert again.figures()["fixed-x"]["drawn"] == 1
    for _ in range(3):
        draws = [pool.sample("default") for _ in range(30)]
        assert [again.sample("default") for _ in range(30)] == draws
        for one in (pool, again):
            play(one, "fixed-z", "wlw")
    assert again.state_dict() == pool.state_dict()


# Fixed models with weights


def test_fixed_models_are_drawn_in_proportion_to_their_weights():
    weights = {"a": 1.0, "b": 3.0, "c": 0.0}
    assert_drawn_as(make_pool("fixed", "abc", weights=weights), {"fixed-a": 0.25, "fixed-b": 0.75})


def test_weights_belong_to_names_and_members_for_evaluation_have_none():
    config = Config.model_validate(
        {
            "envs": [{"id": "kuhn_poker"}],
            "population": {
                "sample_mode": "fixed",
                "fixed_opponents": ["optimal", "random"],
                "weights": [1, 2.0],
            },
            "evaluation": {"opponents": ["base", "random"]},
        }
    )
    pool = build_pool(config, ["default"])
    for one in fixed_members(config):
        pool.add_fixed(one.name, kind=one.kind, active=one.active)
    assert_drawn_as(pool.pool, {"fixed-optimal": 1 / 3, "fixed-random": 2 / 3})
