"""Credit: advantages by level, type and role equal values computed by hand."""

import math
from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core_programs import make_arena, parents, played
from sparring.core import (
    ConstantCredit,
    CreditAssigner,
    EpisodicRewardCredit,
    GRPOCredit,
    RAECredit,
    ReinforcePPBaselineCredit,
    ReinforcePPCredit,
    RLOOCredit,
    SPOCredit,
    apply_credit,
)
from sparring.core.credit.assigners import equal_group_share


def two_level_tree():
    """Four proposals (one of them not trained on) with solvers and checkers below them, and two debates."""
    first = [played("solve", {"S": reward}) for reward in (1.0, 0.0, 0.0, 1.0)]
    first += [played("check", {"V": reward}) for reward in (0.25, 0.75)]
    second = [played("solve", {"S": 1.0}), played("solve", {"S": 1.0})]
    second.append(played("solve", {"S": 77.0}, trainable=False, children=[played("solve", {"S": 8.0})]))
    third = [played("solve", {}, error="the line went dead"), played("solve", {"S": 1.0}, steps=3)]
    third += [played("solve", {"S": 0.0}), played("check", {"V": 3.0})]
    fourth = [played("solve", {"S": 50.0}), played("solve", {"S": -50.0})]
    return [
        played("propose", {"P": 1.0, "C": 0.5}, steps=2, children=first),
        played("debate", {"Aff": 1.0, "Neg": -1.0}, steps=2),
        played("propose", {"P": 0.0, "C": 0.5}, children=second),
        played("propose", {"P": 100.0, "C": 100.0}, children=fourth, trainable=False),
        played("debate", {"Aff": 0.0, "Neg": 0.0}),
        played("propose", {"P": 0.5, "C": 2.0}, children=third),
    ]


# Means: P 1/2, C 1, Aff 1/2, Neg -1/2; below the first S 1/2, V 1/2; below the second S 1; below the third
# S 1/2, V 3. Standard deviations, in the same order: sqrt(1/6), sqrt(1/2), 1/2, 1/2; 1/2, 1/4; 0; 1/2, 0.
TABLE = [
    # path of the rollout, role, A = R - mean, A / standard deviation
    ((0,), "P", 0.5, 1.5**0.5),
    ((0,), "C", -0.5, -(0.5**0.5)),
    ((1,), "Aff", 0.5, 1.0),
    ((1,), "Neg", -0.5, -1.0),
    ((2,), "P", -0.5, -(1.5**0.5)),
    ((2,), "C", -0.5, -(0.5**0.5)),
    ((4,), "Aff", -0.5, -1.0),
    ((4,), "Neg", 0.5, 1.0),
    ((5,), "P", 0.0, 0.0),
    ((5,), "C", 1.0, 2**0.5),
    ((0, 0), "S", 0.5, 1.0),
    ((0, 1), "S", -0.5, -1.0),
    ((0, 2), "S", -0.5, -1.0),
    ((0, 3), "S", 0.5, 1.0),
    ((0, 4), "V", -0.25, -1.0),
    ((0, 5), "V", 0.25, 1.0),
    ((2, 0), "S", 0.0, 0.0),
    ((2, 1), "S", 0.0, 0.0),
    ((5, 1), "S", 0.5, 1.0),
    ((5, 2), "S", -0.5, -1.0),
    ((5, 3), "V", 0.0, 0.0),
]


def walk(results, path=()):
    """Yield every result with its path, parents first, including untrainable results and their children."""
    for index, result in enumerate(results):
        yield (*path, index), result
        yield from walk(result.children, (*path, index))


def by_path(results, weights):
    """Return advantages by path and role; all steps of a role must have the same advantage."""
    found = defaultdict(set)
    for path, result in walk(results):
        for index, step in enumerate(result.rollout.steps):
            if (result.rollout.id, index) in weights:
                found[path, step.role_id].add(weights[result.rollout.id, index])
    assert all(len(values) == 1 for values in found.values())
    return {key: values.pop() for key, values in found.items()}


@pytest.mark.parametrize(
    ("credit", "advantage_of"),
    [
        (GRPOCredit(), lambda plain, normalised: plain),
        (GRPOCredit(normalize=True), lambda plain, normalised: normalised),
        (GRPOCredit(positive_only=True), lambda plain, normalised: max(plain, 0.0)),
        (GRPOCredit(normalize=True, positive_only=True), lambda plain, normalised: max(normalised, 0.0)),
    ],
    ids=["plain", "normalize", "positive only", "both"],
)
def test_advantages_on_a_two_level_tree_equal_the_table(credit, advantage_of):
    results = two_level_tree()
    found = by_path(results, credit.compute(results))
    assert found == {
        (path, role): pytest.approx(advantage_of(plain, normalised))
        for path, role, plain, normalised in TABLE
    }


def test_a_group_named_in_meta_is_compared_only_within_itself():
    results = [played("ask", {"S": reward}, group=group) for reward, group in [(1, "x"), (0, "x"), (9, "y")]]
    weights = GRPOCredit().compute(results)
    assert [weights[one.rollout.id, 0] for one in results] == [0.5, -0.5, 0.0]


rewards = st.floats(-100, 100).map(lambda value: round(value, 3))


@st.composite
def results_of(draw, depth=2):
    """Trees of two types and up to two roles, some not trained on, some failed."""
    count = draw(st.integers(0, 4))
    trees = []
    for _ in range(count):
        roles = draw(st.dictionaries(st.sampled_from("AB"), rewards, max_size=2))
        children = draw(results_of(depth - 1)) if depth > 1 else []
        trees.append(
            played(
                draw(st.sampled_from(["x", "y"])),
                roles,
                steps=draw(st.integers(1, 2)),
                children=children,
                trainable=draw(st.integers(0, 4)) > 0,
            )
        )
    return trees


def groups_of(results):
    """Return rollouts by parent, type and role, without excluded ones, computed independently of core."""
    groups = defaultdict(list)
    excluded = set()
    for path, result in walk(results):
        if not result.is_trainable or path[:-1] in excluded:
            excluded.add(path)
            continue
        for role in {step.role_id for step in result.rollout.steps}:
            groups[path[:-1], result.rollout.episode_type, role].append(result.rollout)
    return groups


def advantages_in(group, role, weights):
    return [
        next(weights[one.id, index] for index, step in enumerate(one.steps) if step.role_id == role)
        for one in group
    ]


@given(results_of())
def test_normalised_advantages_of_a_group_have_deviation_one_or_are_all_zero(results):
    weights = GRPOCredit(normalize=True).compute(results)
    for (_, _, role), group in groups_of(results).items():
        advantages = advantages_in(group, role, weights)
        deviation = math.sqrt(math.fsum(value * value for value in advantages) / len(advantages))
        equal = len({one.rewards[role] for one in group}) == 1
        assert deviation == pytest.approx(0.0 if equal else 1.0)
        assert math.fsum(advantages) == pytest.approx(0.0, abs=1e-7)


@given(results_of(), st.booleans())
def test_positive_only_changes_negative_advantages_and_nothing_else(results, normalize):
    signed = GRPOCredit(normalize).compute(results)
    clamped = GRPOCredit(normalize, positive_only=True).compute(results)
    assert clamped == {key: max(value, 0.0) for key, value in signed.items()}


@given(results_of(depth=3))
def test_all_assigners_weigh_exactly_the_trained_steps(results):
    trained = {
        (rollout.id, index)
        for group in groups_of(results).values()
        for rollout in group
        for index in range(len(rollout.steps))
    }
    credits = [GRPOCredit(), ConstantCredit(), EpisodicRewardCredit(), RAECredit(), RLOOCredit()]
    credits += [ReinforcePPCredit(), ReinforcePPBaselineCredit(), SPOCredit(), GRPOCredit(group="prompt")]
    credits += [RLOOCredit(group="prompt"), ReinforcePPBaselineCredit(group="prompt")]
    for credit in credits:
        assert set(credit.compute(results)) == trained


def test_constant_and_episodic_credit():
    results = [played("debate", {"Aff": 1.0, "Neg": -1.0}, children=[played("ask", {"S": 4.0})])]
    root, child = results[0].rollout, results[0].children[0].rollout
    keys = [(root.id, 0), (root.id, 1), (child.id, 0)]
    assert ConstantCredit(0.25).compute(results) == dict.fromkeys(keys, 0.25)
    assert EpisodicRewardCredit().compute(results) == dict(zip(keys, [1.0, -1.0, 4.0], strict=True))


def test_role_baselines_are_read_before_they_are_updated():
    credit = RAECredit(decay=0.9)
    first = [played("debate", {"Aff": 1.0, "Neg": -1.0}), played("debate", {"Aff": 0.0, "Neg": 0.5})]
    weights = credit.compute(first)
    assert [weights[one.rollout.id, seat] for one in first for seat in (0, 1)] == [1.0, -1.0, 0.0, 0.5]
    after_two = (1 - 0.9**2) * 0.5  # each of the two games moves the baseline by a tenth
    assert credit.baselines == {
        "debate/Aff/default": pytest.approx(after_two),
        "debate/Neg/default": pytest.approx(-after_two / 2),
    }
    second = [played("debate", {"Aff": 1.0}), played("quiz", {"Aff": 1.0})]
    weights = credit.compute(second)
    assert [weights[one.rollout.id, 0] for one in second] == [pytest.approx(1 - after_two), 1.0]
    assert credit.baselines == {
        "debate/Aff/default": pytest.approx(0.9 * after_two + 0.1),
        "debate/Neg/default": pytest.approx(-after_two / 2),
        "quiz/Aff/default": pytest.approx(0.1),
    }


def test_policies_that_share_a_role_have_baselines_of_their_own():
    credit = RAECredit(decay=0.5)

    def league_games():
        games = [played("kuhn", {"player_0": reward}) for reward in (1.0, -1.0)]
        games[1].rollout.steps[0].policy = "attacker"
        return games

    weights = [credit.compute(results := league_games()) for _ in range(2)][1]
    assert [weights[one.rollout.id, 0] for one in results] == [0.5, -0.5]
    assert credit.baselines == {"kuhn/player_0/default": 0.75, "kuhn/player_0/attacker": -0.75}


@pytest.mark.parametrize("games", [1, 4, 64])
def test_role_baselines_decay_per_game_as_in_spiral_for_any_batch_size(games):
    credit, spirals = RAECredit(), 0.0
    for _ in range(256 // games):
        credit.compute([played("ask", {"S": 1.0}) for _ in range(games)])
    for _ in range(256):
        spirals = 0.95 * spirals + 0.05 * 1.0
    assert credit.baselines == {"ask/S/default": pytest.approx(spirals)}


def test_role_baselines_survive_a_checkpoint():
    credit, restored = RAECredit(decay=0.5), RAECredit(decay=0.5)
    credit.compute([played("ask", {"S": 8.0})])
    restored.load_state_dict(credit.state_dict())
    credit.compute([played("ask", {"S": 2.0})])  # the saved state is a copy
    results = [played("ask", {"S": 5.0})]
    assert restored.compute(results) == {(results[0].rollout.id, 0): 1.0}


def test_apply_credit_fills_steps_and_the_means_of_roles():
    results = [played("debate", {"Aff": 1.0, "Neg": -1.0}, steps=2)]
    rollout = results[0].rollout
    rollout.steps[3].advantage = 0.5
    apply_credit(results, {(rollout.id, 0): 1.0, (rollout.id, 1): 2.0, (rollout.id, 2): 3.0})
    assert [step.advantage for step in rollout.steps] == [1.0, 2.0, 3.0, 0.5]
    assert rollout.advantages == {"Aff": 2.0, "Neg": 1.25}


async def test_a_custom_assigner():
    """Advantages may differ from step to step."""

    class LastStepOnly(CreditAssigner):
        def compute(self, results):
            rollouts = [rollout for result in results for rollout in result.trainable_rollouts()]
            return {(one.id, len(one.steps) - 1): one.steps[-1].reward for one in rollouts}

    arena = make_arena(requests=parents(1), credit_assigner=LastStepOnly())
    assert [record.advantage for record in (await arena.step()).records] == [1.0, 1.0, 1.0]


def test_the_share_of_groups_with_equal_rewards_counts_every_level():
    children = [played("solve", {"S": 1.0}), played("solve", {"S": 1.0})]
    results = [
        played("propose", {"P": 0.0}, children=children),
        played("propose", {"P": 1.0}, children=[played("solve", {"S": 0.0}), played("solve", {"S": 1.0})]),
        played("debate", {"Aff": 1.0, "Neg": 0.0}),
    ]
    # Equal are S below the first, and Aff and Neg, which are groups of one. P and S below the second differ.
    assert equal_group_share(results) == 3 / 5
    assert equal_group_share([]) is None
