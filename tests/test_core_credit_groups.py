"""Groups by seat or by prompt, and the assigners that compare within them, against numbers made by hand."""

import pytest

from core_programs import played
from credit_groups import at, found, game
from sparring.core import GRPOCredit, ReinforcePPBaselineCredit, RLOOCredit
from sparring.core.credit.assigners import equal_group_share


@pytest.mark.parametrize("group", ["seat", "prompt"])
def test_only_the_rewards_of_one_policy_are_compared(group):
    players = [("default", 1.0), ("default", 2.0), ("exploiter", 30.0), ("exploiter", 50.0)]
    results = [game([at([1], policy=name)], {"a": reward}) for name, reward in players]
    assert found(GRPOCredit(group=group), results) == [[-0.5], [0.5], [-10.0], [10.0]]


def test_leave_one_out_by_hand():
    results = [played("ask", {"S": reward}) for reward in (1.0, 0.0, 0.5, -1.5)]
    # The others' means: -1/3, 0, -1/6, 1/2.
    wanted = [[4 / 3], [0.0], [2 / 3], [-2.0]]
    assert found(RLOOCredit(), results) == [pytest.approx(one) for one in wanted]


@pytest.mark.parametrize("credit", [RLOOCredit, ReinforcePPBaselineCredit, GRPOCredit])
@pytest.mark.parametrize("group", ["seat", "prompt"])
def test_groups_of_one_and_equal_rewards_have_no_advantage(credit, group):
    alone = [game([at([1])], {"a": 7.0}), game([at([2], "b")], {"b": 9.0})]
    equal = [game([at([1])], {"a": 0.1}) for _ in range(3)]  # 0.1 + 0.1 + 0.1 over 3 is not 0.1
    for results in (alone, equal):
        assert {value for one in found(credit(group=group), results) for value in one} == {0.0}
    assert credit(group=group).compute([]) == {}


def games_that_repeat_positions():
    """Three games in which ``a`` opens at [1], ``b`` answers at [2] or [3], and ``a`` may move again."""
    return [
        game([at([1]), at([2], "b"), at([1, 4])], {"a": 1.0, "b": -1.0}),
        game([at([1]), at([3], "b")], {"a": -2.0, "b": 2.0}),
        game([at([1]), at([2], "b"), at([1, 4])], {"a": 4.0, "b": -4.0}),
    ]


def test_steps_at_the_same_prompt_have_advantages_of_their_own():
    results = games_that_repeat_positions()
    # [1]: rewards 1, -2, 4. [2]: -1, -4. [3]: 2 alone. [1, 4]: 1, 4.
    assert found(GRPOCredit(group="prompt"), results) == [[0.0, 1.5, -1.5], [-3.0, 0.0], [3.0, -1.5, 1.5]]
    assert found(RLOOCredit(group="prompt"), results) == [[0.0, 3.0, -3.0], [-4.5, 0.0], [4.5, -3.0, 3.0]]
    normalised = GRPOCredit(normalize=True, positive_only=True, group="prompt")
    assert found(normalised, results) == [[0.0, 1.0, 0.0], [0.0, 0.0], [pytest.approx(1.5**0.5), 0.0, 1.0]]


def test_steps_at_the_same_prompt_are_compared_at_any_level():
    child = game([at([1])], {"a": 4.0}, group="y")
    results = [
        game([at([1])], {"a": 0.0}, group="x", children=[child]),
        game([at([1])], {"a": 9.0}, kind="leduc"),
        game([at([1], "b")], {"b": 9.0}),
        game([at([1])], {"a": 99.0}, trainable=False),
    ]
    assert found(GRPOCredit(group="prompt"), results) == [[-2.0], [2.0], [0.0], [0.0]]
    assert found(GRPOCredit(), results) == [[0.0], [0.0], [0.0], [0.0]]


def test_a_rollout_that_repeats_a_prompt_counts_once_for_each_step():
    results = [game([at([1]), at([1])], {"a": 1.0}), game([at([1])], {"a": 4.0})]
    assert found(GRPOCredit(group="prompt"), results) == [[-1.0, -1.0], [2.0]]
    assert found(RLOOCredit(group="prompt"), results) == [[-1.5, -1.5], [3.0]]


@pytest.mark.parametrize("ids", [None, []])
def test_steps_without_token_ids_are_not_compared_by_prompt(ids):
    results = [game([at(ids), at(ids)], {"a": 1.0}), game([at(ids)], {"a": 0.0})]
    assert found(GRPOCredit(group="prompt"), results) == [[0.0, 0.0], [0.0]]


def test_steps_that_no_policy_learns_from_are_in_no_group_of_a_prompt():
    results = [game([at([1])], {"a": 1.0}), game([at([1], policy="")], {"a": 0.0})]
    assert GRPOCredit(group="prompt").compute(results) == {(results[0].rollout.id, 0): 0.0}


def test_the_share_of_groups_with_equal_rewards_by_prompt():
    # Of [1], [2], [3] and [1, 4], only [3] has one reward. By seat, the rewards of a and b differ.
    assert equal_group_share(games_that_repeat_positions(), "prompt") == 1 / 4
    assert equal_group_share(games_that_repeat_positions()) == 0.0
