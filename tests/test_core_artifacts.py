"""Artifact stores are bounded and without duplicates, draw by weight, and survive a checkpoint."""

import json
import math
from collections import Counter
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparring.core import Artifact, ArtifactStore

DRAWS = 20_000


def store_of(*weights, seed=0, max_size=None):
    store = ArtifactStore(max_size, seed)
    for index, weight in enumerate(weights):
        store.add(Artifact(f"topic {index}", id=str(index), weight=weight))
    return store


def assert_frequencies(counts, expected):
    """Assert that each count is within five standard deviations of its expected value."""
    for key, share in expected.items():
        deviation = math.sqrt(DRAWS * share * (1 - share))
        assert abs(counts[key] - DRAWS * share) <= 5 * deviation, key


def test_a_store_returns_added_artifacts():
    store = ArtifactStore()
    artifact = Artifact({"question": "2 + 2?"}, meta={"from": "seed"})
    store.add(artifact)
    assert store.count() == 1
    assert store.get(artifact.id) is artifact
    assert store.get("another") is None
    assert store.all() == [artifact]


@given(st.lists(st.tuples(st.integers(0, 8), st.integers(0, 99))), st.integers(1, 6))
def test_a_store_is_bounded_has_no_duplicates_and_keeps_the_newest(added, max_size):
    store = ArtifactStore(max_size)
    expected = {}
    for name, data in added:
        store.add(Artifact(data, id=str(name)))
        expected.pop(str(name), None)
        expected[str(name)] = data
        assert store.count() <= max_size
    newest = list(expected.items())[-max_size:]
    assert [(one.id, one.data) for one in store.all()] == newest
    assert store.count() == len(newest)
    assert all(store.get(name).data == data for name, data in newest)


@given(st.lists(st.floats(0, 10), max_size=8), st.integers(0, 10), st.booleans())
def test_a_sample_consists_of_distinct_artifacts_from_the_store(weights, k, weighted):
    store = store_of(*weights)
    drawn = store.sample(k, weighted)
    there = [weight for weight in weights if weight > 0 or not weighted]
    assert len(drawn) == len({one.id for one in drawn}) == min(k, len(there))
    assert all(store.get(one.id) is one for one in drawn)
    assert not weighted or all(one.weight > 0 for one in drawn)


def test_a_sample_of_one_is_an_artifact_or_none():
    assert ArtifactStore().sample_one() is None
    assert ArtifactStore().sample_one(weighted=True) is None
    assert store_of(1.0).sample_one().data == "topic 0"
    assert store_of(0.0).sample_one(weighted=True) is None


def test_weighted_draws_without_replacement_equal_successive_single_draws():
    weights = (1.0, 2.0, 5.0)
    store = store_of(*weights)
    counts = Counter(tuple(int(one.id) for one in store.sample(2, weighted=True)) for _ in range(DRAWS))
    total = sum(weights)
    expected = {
        (a, b): weights[a] / total * weights[b] / (total - weights[a]) for a, b in permutations(range(3), 2)
    }
    assert_frequencies(counts, expected)


@given(st.lists(st.floats(0, 10), max_size=6), st.integers(0, 3), st.booleans())
def test_a_checkpoint_survives_json_and_the_draws_continue(weights, draws, weighted):
    store = store_of(*weights, seed=4)
    for _ in range(draws):
        store.sample(2, weighted)
    restored = ArtifactStore(seed=99)
    restored.add(Artifact("not in the checkpoint"))
    restored.load_state_dict(json.loads(json.dumps(store.state_dict())))
    assert restored.all() == store.all()
    for _ in range(3):
        assert restored.sample(3, weighted) == store.sample(3, weighted)


def test_a_checkpoint_of_a_larger_store_is_cut_to_the_bound():
    restored = ArtifactStore(max_size=2)
    restored.load_state_dict(store_of(1.0, 1.0, 1.0, 1.0).state_dict())
    assert [one.id for one in restored.all()] == ["2", "3"]
    restored.add(Artifact("new", id="4"))
    assert [one.id for one in restored.all()] == ["3", "4"]


@pytest.mark.parametrize("weight", [-1.0, math.nan, math.inf])
def test_a_weight_is_a_finite_number_of_at_least_0(weight):
    with pytest.raises(ValueError, match="weight must be 0 or more"):
        Artifact("a", weight=weight)


def test_a_saved_state_does_not_change_with_the_store():
    store = ArtifactStore()
    store.add(Artifact({"asked": 0}, id="a"))
    state = store.state_dict()
    store.get("a").data["asked"] = 1
    assert state["artifacts"][0]["data"] == {"asked": 0}
