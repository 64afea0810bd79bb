"""Whole runs in which a policy draws several answers a turn, and weights of environments follow results."""

import json
import math
from collections import defaultdict
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from game_runs import configure, metrics_of, quiet, run
from sparring.cli.main import main
from sparring.cluster.run import train as train_on_ray
from sparring.collection.rollout_log import BatchLog, RolloutLog
from sparring.config import load_config
from sparring.core import InputError

STEPS = 3
TEMPLATES = Path(__file__).with_name("lenient_templates.py")
RPS = f'id = "turn_based_simultaneous_game(game=matrix_rps())", template = "{TEMPLATES}:throws"'
TTT = f'id = "tic_tac_toe", template = "{TEMPLATES}:cells"'
SEVERAL = {
    "envs": f'[{{{RPS}, answers_per_turn = 3, goes_on = "best"}}, {{{TTT}, answers_per_turn = 2}}]',
    "rewards__sampling": '[{type = "normalize_rewards_by_turn", z_score = true}]',
    "collection__curriculum": "true",
    "collection__games_per_step": "12",
    "learning__algorithm": '{type = "reinforce", regulariser = "none"}',
    "learning__steps": str(STEPS),
    "evaluation__every": "0",
    "evaluation__games": "2",
    "tracking__games_logged": "1000",
    "run__save_every": "1",
}


@pytest.fixture(scope="module")
def several(model, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("several") / "run"
    run(configure(model, **SEVERAL), path)
    return path


def games(path: Path) -> list[list[tuple]]:
    """The answers of every game, in order, without numbers that rounding changes."""
    kept = ("turn", "answer", "is_played", "branch_rewards")
    return [
        [(one.id, step.pid, step.completion_text, *(step.info[name] for name in kept)) for step in one.steps]
        for _, one in RolloutLog(path / "rollouts")
    ]


def test_each_answer_is_learned_from_by_its_difference_from_the_others_of_its_turn(several):
    turns = defaultdict(list)
    for _, one in RolloutLog(several / "rollouts"):
        numbers = defaultdict(int)
        for step in one.steps:
            place = (one.id, step.role_id, numbers[step.role_id])
            numbers[step.role_id] += 1
            turns[one.id, step.info["turn"]].append((place, step.info["branch_rewards"][step.pid]))
    wanted = {}
    for answers in turns.values():
        rewards = [reward for _, reward in answers]
        mean = sum(rewards) / len(rewards)
        deviation = math.sqrt(sum((reward - mean) ** 2 for reward in rewards) / len(rewards))
        wanted |= {place: (reward - mean) / (deviation + 1e-8) for place, reward in answers}
    learned = {
        (line["rollout_id"], line["role_id"], line["step_index"]): line["rewards"]["sampled"]
        for number in range(1, STEPS + 1)
        for line in BatchLog(several / "batches").read(number)
    }
    assert learned == pytest.approx(wanted, abs=1e-6)
    assert len({*learned.values()}) > 2
    assert metrics_of(several)[-1]["accounts/failed"] == 0


def test_evaluations_draw_one_answer(several, model, tmp_path):
    alone = {"envs": f"[{{{RPS}}}, {{{TTT}}}]", "rewards__sampling": "[]", "learning__steps": "1"}
    run(configure(model, **SEVERAL | alone), tmp_path / "run")

    def evaluated(path: Path) -> list[list[dict]]:
        logs = sorted((path / "evaluation").glob("step-000000-*.jsonl"))
        return [json.loads(line)["rollout"]["extras"]["turns"] for log in logs for line in log.open()]

    assert evaluated(several) == evaluated(tmp_path / "run") != []


@pytest.mark.slow
def test_games_with_several_answers_and_their_weights_are_the_same_on_ray(several, model, tmp_path, cluster):
    on_ray = {"run__runtime": "ray", "ray__collectors": "2", "ray__address": cluster}
    train_on_ray(configure(model, **SEVERAL, **on_ray), tmp_path / "run", quiet())
    assert sorted(games(several)) == sorted(games(tmp_path / "run"))
    files = [f"checkpoints/step-{STEPS:06d}/adapter_model.safetensors"] * 2
    one, other = (
        load_file(path / file) for path, file in zip((several, tmp_path / "run"), files, strict=True)
    )
    assert all(torch.allclose(one[name], other[name], atol=1e-5) for name in one)


def test_a_dry_run_names_the_game_that_cannot_be_copied(tmp_path, capsys):
    own = Path(__file__).with_name("short_game.py")
    (tmp_path / "mine.toml").write_text(f'[[envs]]\nid = "{own}:Talk"\nanswers_per_turn = 2\n')
    assert main(["train", str(tmp_path / "mine.toml"), "--dry-run"]) == 2
    assert "error: envs.0.answers_per_turn: Talk cannot be copied, " in capsys.readouterr().err


CLASHES = [
    ({"rewards.discount": "1"}, "rewards.discount"),
    ({"learning.critic": "{}"}, "learning.critic"),
    ({"learning.policies.default": "{critic = {}}"}, "learning.critic"),
    ({"learning.algorithm": '{type = "all_actions"}'}, "learning.algorithm"),
]


@pytest.mark.parametrize(("changes", "field"), CLASHES)
def test_what_values_a_turn_by_the_rest_of_the_game_is_refused_beside_several_answers(changes, field):
    load_config("quickstart", changes)
    with pytest.raises(InputError, match=r"envs\.0\.answers_per_turn") as refused:
        load_config("quickstart", changes | {"envs.0.answers_per_turn": "2"})
    assert refused.value.field == field
