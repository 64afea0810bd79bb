import random
from collections import Counter

import pytest

from sparring.core import InputError
from sparring.population import UniformRandomEnvSampler, WeightedEnvSampler


def drawn(sampler, count=4000):
    rng = random.Random(5)
    return Counter(sampler.sample(rng) for _ in range(count))


def test_uniform_sampling_gives_each_environment_the_same_share():
    shares = drawn(UniformRandomEnvSampler(["a", "b", "c", "d"]))
    assert set(shares) == set("abcd")
    assert all(abs(count - 1000) < 100 for count in shares.values())


def test_weighted_sampling_follows_the_weights_and_never_draws_weight_0():
    shares = drawn(WeightedEnvSampler(["a", "b", "c"], [3, 1, 0]))
    assert set(shares) == {"a", "b"}
    assert abs(shares["a"] - 3000) < 100


def test_specs_can_be_any_object_and_the_same_seed_gives_the_same_draws():
    specs = [("Kuhn", {"template": "chat"}), ("Tak", None)]
    sampler = WeightedEnvSampler(specs, [1, 1])
    draws = [[sampler.sample(rng) for _ in range(20)] for rng in (random.Random(3), random.Random(3))]
    assert draws[0] == draws[1]
    assert all(spec in specs for spec in draws[0])


@pytest.mark.parametrize(
    ("weights", "problem"),
    [
        ([1.0], "there are 1 weights for 2 environments"),
        ([1.0, -1.0], "-1.0 is not a weight"),
        ([0.0, 0.0], "all of them are 0"),
        ([1.0, float("nan")], "nan is not a weight"),
        ([1.0, float("inf")], "inf is not a weight"),
    ],
)
def test_bad_weights_are_rejected_with_what_to_give(weights, problem):
    with pytest.raises(
        InputError, match=rf"^weights: {problem}. Give each environment a weight of 0 or more"
    ):
        WeightedEnvSampler(["a", "b"], weights)


def test_no_environment_at_all_is_refused():
    with pytest.raises(InputError, match="train_env_specs"):
        UniformRandomEnvSampler([])
