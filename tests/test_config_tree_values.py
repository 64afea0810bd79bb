"""Values by the tree are made of rewards: what changes the reward of an end or the unit of advantages is
refused beside them."""

from typing import get_args

import pytest

from sparring.config import load_config
from sparring.config.rewards import CreditType, FinalReward, SamplingReward, StepReward
from sparring.core import InputError

TREE = {"learning.algorithm": '{type = "all_actions", values = "tree"}'}
NEEDS = 'but learning.algorithm.values = "tree" needs them in units of reward'
MOVES = "changes from game to game what an end is worth"
FINAL = dict.fromkeys(["win_draw_loss", "game_range", "python"], "")
FINAL |= dict.fromkeys(["role_advantage", "role_advantage_by_env"], MOVES)
STEP = dict.fromkeys(["reward_for_format", "reward_for_reasoning", "penalty_for_invalid_move", "python"], "")
SAMPLING = dict.fromkeys(["normalize_rewards", "normalize_rewards_by_env", "normalize_rewards_by_role"], "")
SAMPLING |= dict.fromkeys(["same_prompt_baseline", "python"], "")
CREDIT = dict.fromkeys(["grpo", "rloo", "rae", "episodic", "python"], "")
CREDIT |= dict.fromkeys(["reinforce_pp", "reinforce_pp_baseline", "spo"], f"deviation, {NEEDS}")


def transforms():
    for place, said_of in (("final", FINAL), ("step", STEP), ("sampling", SAMPLING)):
        for name, said in said_of.items():
            own = ', path = "mine.py:Mine"' if name == "python" else ""
            changes = {f"rewards.{place}": f'[{{type = "{name}"{own}}}]'}
            yield changes if place == "sampling" else changes | {"rewards.sampling": "[]"}, said


def credits():
    for name, said in CREDIT.items():
        own = {"credit.path": "mine.py:Mine"} if name == "python" else {}
        yield {"credit.type": name} | own, said


DIVIDED = [
    ({"rewards.sampling": '[{type = "normalize_rewards", z_score = true}]'}, f"deviation, {NEEDS}"),
    (
        {"rewards.sampling": '[{type = "normalize_rewards_by_env", z_score = true}]'},
        "Set z_score = false, or",
    ),
    ({"credit.type": "grpo", "credit.normalize": "true"}, "credit.normalize: divides advantages"),
]


def names(union):
    kinds = [get_args(kind.model_fields["type"].annotation) for kind in get_args(get_args(union)[0])]
    return {name for some in kinds for name in some}


def test_every_transform_and_credit_is_tried():
    sampling = names(SamplingReward) - {"normalize_rewards_by_turn"}  # of answers that the tree does not have
    assert [names(FinalReward), names(StepReward), sampling] == [{*FINAL}, {*STEP}, {*SAMPLING}]
    assert {*get_args(CreditType)} == {*CREDIT}


@pytest.mark.parametrize(("changes", "said"), [*transforms(), *credits(), *DIVIDED])
def test_only_what_keeps_the_reward_of_an_end_and_its_unit_is_beside_the_tree(changes, said):
    assert load_config("quickstart", changes | {"learning.algorithm": '{type = "all_actions"}'})
    if not said:
        assert load_config("quickstart", TREE | changes)
        return
    with pytest.raises(InputError) as refused:
        load_config("quickstart", TREE | changes)
    assert said in str(refused.value)
    assert str(refused.value).endswith(', or set learning.algorithm.values = "returns"')


def test_the_tree_of_one_policy_is_named():
    own = {"learning.policies.default.algorithm": '{type = "magnet", values = "tree"}'}
    with pytest.raises(InputError, match=r'set learning\.policies\.default\.algorithm\.values = "returns"'):
        load_config("quickstart", own | {"credit.type": "spo"})
