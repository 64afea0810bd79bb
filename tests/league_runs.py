"""Runs of leagues."""

from safetensors.torch import load_file

from sparring.collection.rollout_log import RolloutLog

PLAYERS = """{
    default = {role = "main", share = 2.0},
    attacker = {role = "main_exploiter"},
    finder = {role = "league_exploiter"}
}""".replace("\n", "")


LEAGUE = {
    "league__players": PLAYERS,
    "league__snapshot_updates": "2",
    "population__add_every": "2",
    "population__max_active_lora": "2",
    "collection__games_per_step": "60",
    "learning__steps": "7",
    "learning__average_decay": "0.9",
    "evaluation__every": "3",
    "evaluation__nash_conv": "false",
    "run__save_every": "1",
    "run__keep_checkpoints": "8",
    "tracking__games_logged": "1000",
}


def games(path):
    return [rollout for _, rollout in RolloutLog(path / "rollouts") if rollout.meta["type"] == "train"]


def same(left, right):
    return all((left[name] == right[name]).all() for name in left)


def learner_of(path, step, policy):
    return load_file(path / "checkpoints" / f"step-{step:06d}" / policy / "learner.safetensors")


def copy_of(path, uid):
    return load_file(path / "population" / uid / "adapter_model.safetensors")
