"""The policy and its frozen copies: each rating belongs to one model, and retired copies stay retired."""

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparring.core import InputError
from sparring.population import POLICY_UID, ModelPool

MODES = ["fixed", "mirror", "lagged", "random", "match-quality", "ts-dist", "exploration"]
RATED_MODES = ["match-quality", "ts-dist"]


def make_pool(mode="random", checkpoints=1, max_active_lora=3, **options):
    pool = ModelPool(mode, max_active_lora, **options)
    pool.add_policy()
    pool.add_fixed("x")
    for iteration in range(checkpoints):
        pool.add_checkpoint(f"adapters/{iteration}", iteration)
    return pool


def ratings(pool):
    return {model.uid: model.rating for model in pool.opponents()}


def win(pool, uid, games=20):
    for _ in range(games):
        pool.push_game_outcome(uid, "fixed-x", 1.0, ["a", "b"], "Kuhn")


def drawn(pool, count=400):
    rng = random.Random(11)
    return {pool.sample(POLICY_UID, rng) for _ in range(count)}


def test_games_of_the_policy_do_not_move_its_copy_nor_the_copys_games_the_policy():
    pool = make_pool()
    before = ratings(pool)["ckpt-0"]
    win(pool, POLICY_UID)
    assert ratings(pool)["ckpt-0"] == before
    policy = ratings(pool)[POLICY_UID]
    assert policy[0] > before[0]
    win(pool, "ckpt-0", 1)
    assert ratings(pool)[POLICY_UID] == policy
    assert ratings(pool)["ckpt-0"][0] > before[0]


def test_a_copy_starts_from_the_policys_rating_when_it_is_frozen():
    pool = make_pool()
    for reward in [1.0, -1.0] * 20:
        pool.push_game_outcome(POLICY_UID, "fixed-x", reward, ["a", "b"], "Kuhn")
    mu, sigma = ratings(pool)[POLICY_UID]
    pool.add_checkpoint("adapters/10", 10)
    assert ratings(pool)["ckpt-10"] == (mu, 2 * sigma)
    assert ratings(pool)[POLICY_UID] == (mu, sigma), "the policy continues from its own"
    assert pool.exploration.summary("ckpt-10") == pool.exploration.summary(POLICY_UID) != {}


@pytest.mark.parametrize("mode", RATED_MODES)
def test_an_untrained_copy_is_not_drawn_as_an_equal_of_the_trained_policy(mode):
    pool = make_pool(mode, max_active_lora=9)
    for _ in range(60):
        pool.push_game_outcome(POLICY_UID, "ckpt-0", 1.0, [], "Kuhn")
    pool.add_checkpoint("adapters/10", 10)
    rng = random.Random(5)
    draws = [pool.sample(POLICY_UID, rng) for _ in range(1000)]
    assert draws.count("ckpt-10") > 2 * draws.count("ckpt-0")


def test_the_average_is_a_separate_member_that_is_never_drawn():
    pool = make_pool("random")
    pool.add_policy("average")
    win(pool, "average")
    assert ratings(pool)["average"][0] > ratings(pool)[POLICY_UID][0]
    assert drawn(pool) == {"fixed-x", "ckpt-0"}
    assert pool.ckpt_path("average") == (None, "policy")
    assert pool.snapshot()["models"]["average"]["active"] is False


@pytest.mark.parametrize(
    ("mode", "met"),
    [
        ("mirror", {POLICY_UID}),
        ("fixed", {"fixed-x"}),
        ("lagged", {"ckpt-0", "ckpt-1"}),
        ("random", {"fixed-x", "ckpt-0", "ckpt-1", "ckpt-2"}),
        ("match-quality", {"fixed-x", "ckpt-0", "ckpt-1", "ckpt-2"}),
        ("ts-dist", {"fixed-x", "ckpt-0", "ckpt-1", "ckpt-2"}),
        ("exploration", {"fixed-x", "ckpt-0", "ckpt-1", "ckpt-2"}),
    ],
)
def test_the_opponents_of_the_policy_follow_the_sample_mode(mode, met):
    pool = make_pool(mode, checkpoints=3)
    assert drawn(pool) == met
    assert pool.current_uid() == "ckpt-2"


@pytest.mark.parametrize("mode", ["mirror", "lagged", "random", "match-quality", "ts-dist", "exploration"])
def test_a_policy_without_opponents_plays_itself(mode):
    pool = ModelPool(mode, 3)
    pool.add_policy()
    assert pool.sample(POLICY_UID) == POLICY_UID


def test_registering_the_policy_twice_is_refused():
    with pytest.raises(InputError, match="default: the model is already in the pool"):
        make_pool().add_policy()


def test_a_state_that_rated_policy_and_copy_as_one_is_refused_in_a_line():
    state = make_pool().state_dict()
    del state["format"]
    with pytest.raises(InputError, match="ratings were saved by another version of sparring") as caught:
        make_pool().load_state_dict(state)
    assert "\n" not in str(caught.value)


# Retirement


@pytest.mark.parametrize("mode", RATED_MODES)
def test_a_retired_checkpoint_is_never_drawn_again_however_close_its_rating(mode):
    pool = make_pool(mode, checkpoints=4, max_active_lora=3)
    assert pool.kept_checkpoints() == ["ckpt-1", "ckpt-2", "ckpt-3"]
    retired = next(model for model in pool.opponents() if model.uid == "ckpt-0")
    assert (retired.active, retired.retired) == (False, 3)
    for model in pool.opponents():
        model.rating = (25.0 if model.uid in ("ckpt-0", POLICY_UID) else 5.0, 2.0)
    pool.add_checkpoint("adapters/4", 4)
    assert "ckpt-0" not in drawn(pool) | set(pool.kept_checkpoints())


def test_a_checkpoint_that_is_too_young_for_its_range_waits_for_its_turn():
    pool = make_pool("lagged", checkpoints=8, max_active_lora=3, lag_range=(4, 6))
    assert pool.active_checkpoints() == ["ckpt-2", "ckpt-3", "ckpt-7"]
    assert pool.kept_checkpoints() == ["ckpt-2", "ckpt-3", "ckpt-4", "ckpt-5", "ckpt-6", "ckpt-7"]
    pool.add_checkpoint("adapters/8", 8)
    assert pool.active_checkpoints() == ["ckpt-3", "ckpt-4", "ckpt-8"]
    assert drawn(pool) == {"ckpt-3", "ckpt-4"}


@given(
    mode=st.sampled_from(MODES),
    most=st.integers(1, 6),
    low=st.integers(0, 5),
    high=st.integers(0, 5),
    games=st.lists(st.tuples(st.integers(0, 20), st.sampled_from([-1.0, 0.0, 1.0])), max_size=40),
)
def test_few_checkpoints_are_kept_however_many_join_and_none_comes_back(mode, most, low, high, games):
    pool = make_pool(mode, 0, most, lag_range=(low, low + high))
    gone = set()
    for iteration in range(60):
        pool.add_checkpoint(f"adapters/{iteration}", iteration)
        for number, reward in games[iteration % 7 :: 7]:
            kept = pool.kept_checkpoints()
            pool.push_game_outcome(POLICY_UID, kept[number % len(kept)], reward, ["a"], "Kuhn")
        kept, active = set(pool.kept_checkpoints()), set(pool.active_checkpoints())
        assert len(active) <= most
        assert len(kept) <= most + (low if mode == "lagged" else 0)
        assert active | {uid for uid in drawn(pool, 5) if uid.startswith("ckpt-")} <= kept
        assert not gone & kept
        gone = {f"ckpt-{number}" for number in range(iteration + 1)} - kept
    restored = ModelPool(mode, most, lag_range=(low, low + high))
    restored.load_state_dict(json.loads(json.dumps(pool.state_dict())))
    assert restored.kept_checkpoints() == pool.kept_checkpoints()
