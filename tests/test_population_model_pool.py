import json
import random
from collections import Counter

import pytest
import trueskill
from hypothesis import given
from hypothesis import strategies as st

from sparring.core import InputError, SparringError
from sparring.population import ModelPool
from sparring.population.opponent_choice import distance_weights, proportional_weights

MODES = ["mirror", "fixed", "lagged", "random", "match-quality", "ts-dist", "exploration"]
MODES += ["historical", "pfsp", "meta-nash"]


def make_pool(mode="mirror", checkpoints=1, max_active_lora=3, fixed=(), **options):
    pool = ModelPool(mode, max_active_lora, **options)
    for name in fixed:
        pool.add_fixed(name)
    for iteration in range(checkpoints):
        pool.add_checkpoint(f"adapters/{iteration}", iteration)
    return pool


def set_ratings(pool, **means):
    for model in pool.opponents():
        name = model.uid.replace("-", "_")
        if name in means:
            model.rating = (means[name], 2.0)


def drawn(pool, uid_me, count=4000):
    rng = random.Random(11)
    return Counter(pool.sample(uid_me, rng) for _ in range(count))


def assert_shares(counts, **expected):
    total = sum(counts.values())
    assert {uid.replace("-", "_") for uid in counts} == set(expected)
    for uid, count in counts.items():
        assert count / total == pytest.approx(expected[uid.replace("-", "_")], abs=0.025)


# Members


def test_uids_paths_and_the_current_checkpoint():
    pool = ModelPool("mirror", 3)
    assert pool.current_uid() is None
    assert pool.add_checkpoint(None, -1) == "ckpt--1"
    assert pool.add_checkpoint("adapters/4", 4) == "ckpt-4"
    assert pool.add_fixed("random", kind="script") == "fixed-random"
    assert pool.add_fixed("gemini") == "fixed-gemini"
    assert pool.current_uid() == pool.latest_ckpt() == "ckpt-4"
    assert pool.ckpt_path("ckpt--1") == (None, "checkpoint")
    assert pool.ckpt_path("ckpt-4") == ("adapters/4", "checkpoint")
    assert pool.ckpt_path("fixed-random") == ("random", "script")
    assert pool.ckpt_path("fixed-gemini") == ("gemini", "fixed")
    assert pool.ckpt_path("ckpt-9") is None


def test_a_new_checkpoint_inherits_its_predecessors_rating_and_exploration():
    pool = make_pool(checkpoints=1, fixed=["x"])
    for reward in [1, -1] * 20:
        pool.push_game_outcome("ckpt-0", "fixed-x", reward, ["a", "b"], "Kuhn")
    mu, sigma = pool.opponents()[1].rating
    assert sigma < 25 / 6
    pool.add_checkpoint(None, 1)
    assert pool.opponents()[2].rating == (mu, 2 * sigma)
    assert pool.exploration.summary("ckpt-1") == pool.exploration.summary("ckpt-0")
    for iteration in range(2, 6):
        pool.add_checkpoint(None, iteration)
    assert pool.opponents()[-1].rating == (mu, pytest.approx(25 / 3))


def test_fixed_models_start_at_their_prior_mean():
    pool = ModelPool("fixed", 1)
    pool.add_fixed("strong", prior_mu=40)
    assert pool.opponents()[0].rating == (40.0, pytest.approx(25 / 3))


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        (("softmax", 3), "sample_mode"),
        (("mirror", 0), "max_active_lora"),
        (("lagged", 3, None, (5, 2)), "lag_range"),
        (("lagged", 3, None, (-1, 2)), "lag_range"),
    ],
)
def test_bad_construction_is_rejected(arguments, field):
    with pytest.raises(InputError, match=field):
        ModelPool(*arguments)


def test_an_unknown_mode_is_answered_with_all_modes():
    with pytest.raises(InputError, match="'softmax' is unknown. Choose one of: " + ", ".join(MODES)):
        ModelPool("softmax", 3)


def test_registering_twice_or_under_the_reserved_name_is_refused():
    pool = make_pool(fixed=["x"])
    with pytest.raises(InputError, match="ckpt-0: the model is already in the pool"):
        pool.add_checkpoint(None, 0)
    with pytest.raises(InputError, match="fixed-x"):
        pool.add_fixed("x")
    with pytest.raises(InputError, match="one-player"):
        pool.add_fixed("env")


def test_a_fixed_model_is_drawn_if_it_is_active():
    pool = make_pool("fixed", checkpoints=0)
    pool.add_fixed("x", active=True)
    pool.add_fixed("judge", active=False)
    assert drawn(pool, "fixed-judge", 20) == {"fixed-x": 20}


# The active cap


def test_the_most_recent_checkpoints_stay_active():
    assert make_pool("random", checkpoints=6).active_checkpoints() == ["ckpt-3", "ckpt-4", "ckpt-5"]
    assert make_pool("random", checkpoints=6, max_active_lora=1).active_checkpoints() == ["ckpt-5"]


def test_lagged_keeps_the_most_recent_checkpoints_in_its_range_active():
    pool = make_pool("lagged", checkpoints=9, max_active_lora=3, lag_range=(4, 7))
    assert pool.active_checkpoints() == ["ckpt-3", "ckpt-4", "ckpt-8"]


def test_lagged_waits_for_the_checkpoints_that_are_not_yet_in_its_range_and_retires_the_older_ones():
    pool = make_pool("lagged", checkpoints=6, max_active_lora=2, lag_range=(2, 3))
    # Lags 5 to 0. Lag 2 is the one kept active, lag 3 has to make room, lag 1 is too young.
    assert pool.active_checkpoints() == ["ckpt-3", "ckpt-5"]
    assert pool.kept_checkpoints() == ["ckpt-3", "ckpt-4", "ckpt-5"]


def test_lagged_prefers_the_oldest_lag_of_its_range_to_a_younger_one_outside():
    pool = make_pool("lagged", checkpoints=3, max_active_lora=2, lag_range=(2, 2))
    assert pool.active_checkpoints() == ["ckpt-0", "ckpt-2"]


def test_a_retired_checkpoints_games_are_no_longer_kept_for_exploration():
    pool = make_pool("random", checkpoints=2, max_active_lora=2, fixed=["x"])
    pool.push_game_outcome("ckpt-0", "fixed-x", 0, ["a"], "Kuhn")
    assert pool.exploration.summary("ckpt-0")
    pool.add_checkpoint(None, 2)
    assert pool.kept_checkpoints() == ["ckpt-1", "ckpt-2"]
    assert pool.exploration.summary("ckpt-0") == {}


@pytest.mark.parametrize("mode", ["match-quality", "ts-dist"])
def test_rated_modes_keep_the_checkpoints_nearest_to_the_current_one_active(mode):
    pool = make_pool(mode, checkpoints=3, max_active_lora=3)
    set_ratings(pool, ckpt_0=31.0, ckpt_1=5.0, ckpt_2=30.0)
    pool.add_checkpoint(None, 3)
    assert pool.active_checkpoints() == ["ckpt-0", "ckpt-2", "ckpt-3"]


# Sampling


def test_checkpoints_of_later_iterations_are_forgotten_with_their_records():
    pool = ModelPool("random", 2)
    pool.add_policy()
    for iteration in range(4):
        pool.add_checkpoint(f"v{iteration}", iteration)
    pool.push_game_outcome("ckpt-3", "ckpt-2", 1.0, ["a", "b"], "kuhn")
    pool.push_game_outcome("default", "ckpt-2", 1.0, ["a"], "kuhn")
    for other in ("ckpt-2", "ckpt-3"):
        pool.played.append(("default", other), (1.0, -1.0))
    assert pool.forget_after(2) == {"ckpt-3"}
    assert [seating for seating, _ in pool.played.items()] == [("default", "ckpt-2")]
    assert pool.current_uid() == "ckpt-2"
    assert pool.ckpt_path("ckpt-3") is None
    assert pool.matches.counts() == {("ckpt-2", "default"): 1}
    assert pool.exploration.summary("ckpt-3") == {}
    assert pool.active_checkpoints() == ["ckpt-2"]
    assert pool.forget_after(2) == set()
    pool.add_checkpoint("again", 3)
    assert (pool.current_uid(), pool.active_checkpoints()) == ("ckpt-3", ["ckpt-2", "ckpt-3"])


def test_the_untrained_checkpoint_may_be_forgotten_or_kept():
    pool = make_pool(checkpoints=1)
    assert pool.forget_after(0) == set()
    assert pool.forget_after(-1) == {"ckpt-0"}
    assert pool.current_uid() is None


def test_mirror_is_the_current_checkpoint():
    pool = make_pool("mirror", checkpoints=3, fixed=["x"])
    assert drawn(pool, "ckpt-2", 20) == {"ckpt-2": 20}


def test_fixed_is_uniform_over_fixed_models_only():
    pool = make_pool("fixed", checkpoints=2, fixed=["x", "y"])
    assert_shares(drawn(pool, "ckpt-1"), fixed_x=0.5, fixed_y=0.5)


def test_random_is_uniform_over_fixed_models_and_active_checkpoints():
    pool = make_pool("random", checkpoints=4, max_active_lora=2, fixed=["x"])
    assert_shares(drawn(pool, "ckpt-3"), fixed_x=1 / 3, ckpt_2=1 / 3, ckpt_3=1 / 3)


def test_lagged_honours_its_range_at_both_ends():
    pool = make_pool("lagged", checkpoints=8, max_active_lora=8, lag_range=(2, 4), fixed=["x"])
    assert_shares(drawn(pool, "ckpt-7"), ckpt_3=1 / 3, ckpt_4=1 / 3, ckpt_5=1 / 3)


def test_lagged_plays_the_current_checkpoint_while_none_is_in_range():
    pool = make_pool("lagged", checkpoints=2, max_active_lora=8, lag_range=(2, 4))
    assert drawn(pool, "ckpt-1", 20) == {"ckpt-1": 20}


def test_match_quality_weights_are_qualities_over_their_sum():
    pool = make_pool("match-quality", checkpoints=2, fixed=["x"])
    set_ratings(pool, ckpt_0=24.0, ckpt_1=25.0, fixed_x=36.0)
    env = trueskill.TrueSkill(beta=4.0)
    me, near, far = (env.create_rating(mu, 2.0) for mu in (25.0, 24.0, 36.0))
    near_quality, far_quality = (trueskill.quality_1vs1(me, other, env=env) for other in (near, far))
    total = near_quality + far_quality
    assert_shares(drawn(pool, "ckpt-1"), ckpt_0=near_quality / total, fixed_x=far_quality / total)


def test_ts_dist_prefers_the_closer_opponents():
    pool = make_pool("ts-dist", checkpoints=1, fixed=["x", "y", "z"])
    set_ratings(pool, ckpt_0=25.0, fixed_x=28.0, fixed_y=24.0, fixed_z=26.0)
    assert_shares(drawn(pool, "ckpt-0"), fixed_x=0.2, fixed_y=0.4, fixed_z=0.4)


def test_weights_sum_to_one_in_the_cases_that_broke_unstable_baselines():
    assert proportional_weights([0.5] * 4) == [0.25] * 4
    assert proportional_weights([0.0, 0.0]) == [0.5, 0.5]
    assert distance_weights([3.0, 1.0, 1.0]) == pytest.approx([0.2, 0.4, 0.4])
    assert distance_weights([7.0]) == [1.0]
    assert distance_weights([0.0, 0.0]) == [0.5, 0.5]
    assert distance_weights([0.75, 0.25]) == [0.25, 0.75]


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=8))
def test_weights_are_never_negative_and_sum_to_one(values):
    for weights in (proportional_weights(values), distance_weights(values)):
        assert sum(weights) == pytest.approx(1.0)
        assert min(weights) >= 0


def test_exploration_weighs_opponents_by_the_variety_of_their_games():
    pool = make_pool("exploration", checkpoints=1, fixed=["dull", "varied", "unseen"])
    pool.push_game_outcome("ckpt-0", "fixed-dull", 0, ["a", "a", "a", "a"], "Kuhn")
    pool.push_game_outcome("ckpt-0", "fixed-varied", 0, ["a", "b", "c", "d"], "Kuhn")
    dull = (1 / 4 + 1 / 3 + 1 / 2 + 1) / 4
    total = dull + 1.0 + 1.0
    assert_shares(
        drawn(pool, "ckpt-0"), fixed_dull=dull / total, fixed_varied=1 / total, fixed_unseen=1 / total
    )


@pytest.mark.parametrize("mode", ["match-quality", "ts-dist", "exploration", "random", "lagged", *MODES[-3:]])
def test_a_lone_checkpoint_plays_itself(mode):
    assert make_pool(mode).sample("ckpt-0") == "ckpt-0"


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_draws_the_same_from_the_same_seed_and_goes_on_after_a_restore(mode):
    def build(seed):
        return make_pool(mode, checkpoints=4, max_active_lora=4, fixed=["x", "y"], seed=seed)

    first, second = build(3), build(3)
    draws = [first.sample("ckpt-3") for _ in range(30)]
    assert [second.sample("ckpt-3") for _ in range(10)] == draws[:10]
    restored = ModelPool(mode, 4, seed=3)
    restored.load_state_dict(json.loads(json.dumps(second.state_dict())))
    assert [restored.sample("ckpt-3") for _ in range(20)] == draws[10:]


def test_draws_differ_from_each_other_by_seed_and_by_number():
    def draws(seed):
        pool = make_pool("random", checkpoints=4, max_active_lora=4, fixed=["x", "y"], seed=seed)
        return [pool.sample("ckpt-3") for _ in range(300)]

    shares = Counter(draws(3))
    assert len(shares) == 6
    assert max(shares.values()) < 90
    assert draws(3) != draws(4)


def test_only_the_callers_generator_decides_the_draw():
    pool = make_pool("random", checkpoints=4, max_active_lora=4)
    expected = [pool.sample("ckpt-3", random.Random(seed)) for seed in range(20)]
    pool.sample("ckpt-3")
    assert [pool.sample("ckpt-3", random.Random(seed)) for seed in range(20)] == expected
    assert len(set(expected)) > 1


def test_sampling_without_anybody_to_choose_is_a_clear_error():
    with pytest.raises(InputError, match="no such model"):
        make_pool("mirror").sample("ckpt-9")
    with pytest.raises(InputError, match="has none"):
        make_pool("fixed").sample("ckpt-0")
    pool = ModelPool("mirror", 2)
    pool.add_fixed("x")
    with pytest.raises(InputError, match="no checkpoint"):
        pool.sample("fixed-x")


# Results


def test_outcomes_move_ratings_as_the_formula_of_unstable_baselines_does():
    env = trueskill.TrueSkill(beta=4.0)
    for reward in (1, -1, 0):
        pool = make_pool(fixed=["x"])
        pool.push_game_outcome("ckpt-0", "fixed-x", reward, [], "Kuhn")
        a, b = env.create_rating(), env.create_rating()
        if reward == -1:
            new_b, new_a = trueskill.rate_1vs1(b, a, env=env)
        else:
            new_a, new_b = trueskill.rate_1vs1(a, b, drawn=reward == 0, env=env)
        ratings = {model.uid: model.rating for model in pool.opponents()}
        assert ratings["ckpt-0"] == pytest.approx((new_a.mu, new_a.sigma))
        assert ratings["fixed-x"] == pytest.approx((new_b.mu, new_b.sigma))


def test_mirror_games_count_and_change_no_rating():
    pool = make_pool()
    before = pool.opponents()[0].rating
    pool.push_game_outcome("ckpt-0", "ckpt-0", 1, ["a"], "Kuhn")
    pool.push_result(["ckpt-0"] * 3, [1.0, 0.0, -1.0], "Kuhn", ["a"])
    (model,) = pool.opponents()
    assert (model.rating, model.games, model.wins, model.draws) == (before, 2, 0, 0)
    assert pool.matches.counts() == {("ckpt-0", "ckpt-0"): 2}
    assert pool.snapshot()["models"]["ckpt-0"]["win_rate"] is None


def test_wins_and_draws_add_up():
    pool = make_pool(fixed=["x"])
    for reward in (1, 0, 1, 0, -1):
        pool.push_game_outcome("ckpt-0", "fixed-x", reward, [], "Kuhn")
    records = {model.uid: (model.games, model.wins, model.draws) for model in pool.opponents()}
    assert records == {"ckpt-0": (5, 2, 2), "fixed-x": (5, 1, 2)}
    assert pool.matches.state_dict() == {
        "ckpt-0": {"fixed-x": {"games": 5, "wins": 2, "draws": 2}},
        "fixed-x": {"ckpt-0": {"games": 5, "wins": 1, "draws": 2}},
    }


def test_games_of_many_players_are_rated_by_rank():
    pool = make_pool(fixed=["x", "y"])
    pool.push_result(["fixed-x", "ckpt-0", "fixed-y"], [-2.0, 5.0, -2.0], "Tak", [])
    ratings = {model.uid: model.rating for model in pool.opponents()}
    assert ratings["ckpt-0"][0] > 25 > ratings["fixed-x"][0]
    assert ratings["fixed-x"] == pytest.approx(ratings["fixed-y"], rel=1e-3)
    assert pool.matches.record("ckpt-0", "fixed-y").wins == 1
    assert pool.matches.record("fixed-x", "fixed-y").draws == 1


def test_a_model_on_several_seats_is_rated_once_by_its_mean_reward():
    two = make_pool(fixed=["x"])
    two.push_result(["ckpt-0", "fixed-x"], [1.0, 0.0], "Tak", [])
    three = make_pool(fixed=["x"])
    three.push_result(["fixed-x", "ckpt-0", "fixed-x"], [2.0, 1.0, -2.0], "Tak", [])
    assert [model.rating for model in three.opponents()] == [
        pytest.approx(model.rating) for model in two.opponents()
    ]
    assert [model.games for model in three.opponents()] == [1, 1]


def test_many_seats_do_not_add_up_to_a_win():
    """A model whose rewards sum to 2 over its seats still loses to a model with 1.5 in one seat."""
    pool = make_pool(fixed=["x"])
    pool.push_result(["fixed-x", "ckpt-0", "fixed-x"], [1.0, 1.5, 1.0], "Tak", [])
    assert pool.matches.record("ckpt-0", "fixed-x").wins == 1
    ratings = {model.uid: model.rating[0] for model in pool.opponents()}
    assert ratings["ckpt-0"] > 25 > ratings["fixed-x"]


def test_one_player_games_are_rated_against_the_environment_which_is_never_sampled():
    pool = make_pool("fixed", fixed=["x"])
    pool.push_result(["ckpt-0"], [1.0], "Sudoku", ["[1]"])
    snapshot = pool.snapshot()
    assert snapshot["models"]["ckpt-0"]["mu"] > 25 > snapshot["models"]["fixed-env"]["mu"]
    assert snapshot["models"]["ckpt-0"]["win_rate"] == 1.0
    pool.push_result(["ckpt-0"], [-1.0], "Sudoku", ["[2]"])
    assert pool.snapshot()["models"]["ckpt-0"]["win_rate"] == 0.5
    assert drawn(pool, "ckpt-0", 50) == {"fixed-x": 50}
    assert pool.ckpt_path("fixed-env") is None
    assert snapshot["models"]["fixed-env"]["kind"] == "fixed"
    assert snapshot["models"]["fixed-env"]["active"] is False


@pytest.mark.parametrize(
    ("uids", "rewards"),
    [([], []), (["ckpt-0"], [1.0, 2.0]), (["ckpt-0", "fixed-x"], [1.0, float("nan")])],
)
def test_a_malformed_result_is_rejected_and_changes_nothing(uids, rewards):
    pool = make_pool(fixed=["x"])
    before = pool.state_dict()
    with pytest.raises(SparringError, match="one finite reward per seat"):
        pool.push_result(uids, rewards, "Kuhn", [])
    with pytest.raises(InputError, match="fixed-y"):
        pool.push_result(["ckpt-0", "fixed-y"], [1.0, -1.0], "Kuhn", [])
    assert pool.state_dict() == before


class RecordingTracker:
    def __init__(self):
        self.logged = []

    def log_model_pool(self, match_counts, ts_dict, exploration):
        self.logged.append((match_counts, ts_dict, exploration))


def test_a_snapshot_is_json_and_reaches_the_tracker():
    tracker = RecordingTracker()
    pool = make_pool(fixed=["x"], tracker=tracker)
    pool.push_game_outcome("ckpt-0", "fixed-x", 1, ["a", "b"], "Kuhn")
    pool.push_game_outcome("ckpt-0", "fixed-x", 0, ["a", "b"], "Kuhn")
    snapshot = json.loads(json.dumps(pool.snapshot()))
    assert snapshot["current_uid"] == "ckpt-0"
    me = snapshot["models"]["ckpt-0"]
    assert (me["games"], me["wins"], me["draws"], me["win_rate"]) == (2, 1, 1, 0.5)
    assert snapshot["matches"]["fixed-x"]["ckpt-0"] == {"games": 2, "wins": 0, "draws": 1}
    ((match_counts, ts_dict, exploration),) = tracker.logged
    assert match_counts == {("ckpt-0", "fixed-x"): 2}
    assert ts_dict["ckpt-0"] == {"mu": me["mu"], "sigma": me["sigma"]}
    assert exploration == {"Kuhn": {"Pct. Unique Action 1-gram": 0.5, "Pct. Unique Action 2-gram": 0.5}}
    pool.push_game_outcome("fixed-x", "fixed-x", 0, ["c", "d"], "Kuhn")
    snapshot = pool.snapshot()
    assert me["exploration"] == exploration
    assert snapshot["models"]["ckpt-0"]["exploration"] == exploration
    assert snapshot["exploration"]["Kuhn"]["Pct. Unique Action 1-gram"] == 4 / 6
    assert snapshot["models"]["fixed-x"]["exploration"] == snapshot["exploration"]


@given(
    st.sampled_from(MODES),
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.sampled_from([-2, 0, 1.0])), max_size=15),
    st.integers(0, 15),
)
def test_a_restored_pool_continues_identically(mode, games, cut):
    uids = ["ckpt-0", "ckpt-1", "fixed-x", "fixed-y"]

    def play(pool, part):
        for number, (me, opponent, reward) in enumerate(part):
            pool.push_game_outcome(uids[me], uids[opponent], reward, [f"[{reward}]"] * me, "Kuhn")
            pool.push_result(["ckpt-0"], [reward], "Sudoku", ["[1]"])
            pool.sample(uids[me])
            if number == 5:
                pool.add_checkpoint(None, 10 + len(pool.opponents()))

    original = make_pool(mode, checkpoints=2, fixed=["x", "y"], seed=8)
    play(original, games[:cut])
    restored = ModelPool(mode, 3, seed=8)
    restored.load_state_dict(json.loads(json.dumps(original.state_dict())))
    play(original, games[cut:])
    play(restored, games[cut:])
    assert restored.snapshot() == original.snapshot()
    assert restored.state_dict() == original.state_dict()
    assert [restored.sample("ckpt-0") for _ in range(5)] == [original.sample("ckpt-0") for _ in range(5)]
