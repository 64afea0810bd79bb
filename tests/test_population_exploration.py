import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparring.population import ExplorationTracker

GAMES = st.lists(st.lists(st.sampled_from(["[check]", "[bet]", "[fold]"]), max_size=5), max_size=12)


def recomputed(games, size):
    grams = [tuple(game[i : i + size]) for game in games for i in range(len(game) - size + 1)]
    return len(set(grams)) / len(grams) if grams else None


def test_pct_unique_by_hand():
    tracker = ExplorationTracker()
    tracker.add_game(["[check]", "[bet]", "[check]"], "Kuhn", ["ckpt-0"])
    tracker.add_game(["[check]", "[bet]"], "Kuhn", ["ckpt-0"])
    assert tracker.pct_unique(1, "Kuhn") == 2 / 5
    assert tracker.pct_unique(2, "Kuhn") == 2 / 3
    assert tracker.pct_unique(3, "Kuhn") == 1.0
    assert tracker.pct_unique(4, "Kuhn") is None
    assert tracker.summary() == {
        "Kuhn": {
            "Pct. Unique Action 1-gram": 2 / 5,
            "Pct. Unique Action 2-gram": 2 / 3,
            "Pct. Unique Action 3-gram": 1.0,
        }
    }
    assert tracker.diversity("ckpt-0") == pytest.approx((2 / 5 + 2 / 3 + 1) / 3)


@settings(deadline=None)
@given(GAMES, st.integers(1, 5))
def test_incremental_counts_equal_a_full_recount(games, window):
    tracker = ExplorationTracker(window=window, ngram_sizes=(1, 2, 3))
    for number, game in enumerate(games, 1):
        tracker.add_game(game, "Kuhn", [])
        for size in (1, 2, 3):
            assert tracker.pct_unique(size, "Kuhn") == recomputed(games[:number][-window:], size)


def test_environments_and_models_have_windows_of_their_own():
    tracker = ExplorationTracker(window=1)
    tracker.add_game(["a", "a"], "Kuhn", ["ckpt-0", "fixed-x"])
    tracker.add_game(["a", "b"], "Tak", ["ckpt-0"])
    assert tracker.pct_unique(1, "Kuhn") == 0.5
    assert tracker.pct_unique(1, "Tak") == 1.0
    assert tracker.pct_unique(1, "Tak", "fixed-x") is None
    assert tracker.diversity("fixed-x") == pytest.approx((0.5 + 1.0) / 2)
    assert tracker.diversity("nobody") is None
    assert tracker.pct_unique(1, "Kuhn", "nobody") is None


def test_by_default_a_window_holds_512_games():
    tracker = ExplorationTracker()
    tracker.add_game(["once"], "Kuhn", [])
    for _ in range(511):
        tracker.add_game(["often"], "Kuhn", [])
    assert tracker.pct_unique(1, "Kuhn") == 2 / 512
    tracker.add_game(["often"], "Kuhn", [])
    assert tracker.pct_unique(1, "Kuhn") == 1 / 512


def test_a_model_on_both_seats_counts_a_game_once():
    tracker = ExplorationTracker()
    tracker.add_game(["a", "b"], "Kuhn", ["ckpt-0", "ckpt-0"])
    assert tracker.pct_unique(1, "Kuhn", "ckpt-0") == 1.0


def test_a_successor_starts_from_its_predecessors_window_and_then_diverges():
    tracker = ExplorationTracker()
    tracker.add_game(["a", "a"], "Kuhn", ["ckpt-0"])
    tracker.inherit("ckpt-1", "ckpt-0")
    assert tracker.pct_unique(1, "Kuhn", "ckpt-1") == 0.5
    tracker.add_game(["b", "c"], "Kuhn", ["ckpt-1"])
    assert tracker.pct_unique(1, "Kuhn", "ckpt-1") == 0.75
    assert tracker.pct_unique(1, "Kuhn", "ckpt-0") == 0.5
    tracker.forget("ckpt-0")
    assert tracker.diversity("ckpt-0") is None


@settings(deadline=None)
@given(GAMES, GAMES)
def test_a_restored_tracker_continues_identically(before, after):
    original, restored = ExplorationTracker(window=4), ExplorationTracker(window=4)
    for game in before:
        original.add_game(game, "Kuhn", ["ckpt-0"])
    restored.load_state_dict(json.loads(json.dumps(original.state_dict())))
    for game in after:
        original.add_game(game, "Kuhn", ["ckpt-0"])
        restored.add_game(game, "Kuhn", ["ckpt-0"])
    assert restored.summary() == original.summary()
    assert restored.summary("ckpt-0") == original.summary("ckpt-0")
