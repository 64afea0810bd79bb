"""Runs of games whose seats train different policies."""

from pathlib import Path

from sparring.collection.rollout_log import RolloutLog
from sparring.commands.evaluate import evaluate
from sparring.view.batches import BatchRewards

TALK = f"{Path(__file__).with_name('short_game.py')}:Talk"


SIDES = {
    "envs": f'[{{id = "{TALK}", template = "default", policies = ["first", "second"]}}]',
    "evaluation__opponents": "['base']",
    "evaluation__nash_conv": "false",
    "rewards__final": '[{type = "win_draw_loss", win = 1.0, draw = 0.5, loss = -1.0}]',
    "rewards__sampling": "[]",
}


OPPONENTS = {
    "population__sample_mode": "random",
    "population__add_every": "1",
    "population__max_active_lora": "2",
    "population__fixed_opponents": "['base']",
    "tracking__games_logged": "1000",
    "run__save_every": "1",
}


def games(path):
    return [rollout for _, rollout in RolloutLog(path / "rollouts")]


def match(path, opponent, env=TALK):
    return evaluate(str(path), env, str(opponent), 4).result


def critics_advantages(path):
    """The advantages of the steps of ``MIXED`` that have a critic, as a report and an export show them."""
    rollouts = [*RolloutLog(path / "rollouts")]
    batches = BatchRewards(path, has_buffer=True, has_critic=lambda policy: policy == "second")
    for update, rollout in rollouts:
        batches.add_to(update, [rollout])
    steps = [step for _, rollout in rollouts for step in rollout.steps if step.policy == "second"]
    return [one for *_, one in sorted((str(s.prompt), s.completion_token_ids, s.advantage) for s in steps)]


MIXED = {
    "envs": '[{id = "kuhn_poker", policies = ["first", "second"]}]',
    "learning__policies__first": '{algorithm = {type = "magnet"}, epochs = 3, minibatches = 1}',
    "learning__policies__second__algorithm": '{type = "a2c", regulariser = "uniform"}',
    "learning__policies__second__critic": "{gae_lambda = 0.5}",
    "learning__policies__second__minibatches": "2",
    "evaluation__nash_conv": "false",
    # A tiny model makes few legal moves, so only the random player lets the second seat move.
    "population__sample_mode": "fixed",
    "population__fixed_opponents": "['random']",
    "collection__games_per_step": "16",
}
