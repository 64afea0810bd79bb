"""Whole runs in which the policy explores."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from game_runs import MAGNET, configure, metrics_of, quiet, run
from sparring.cluster.run import train as train_on_ray
from sparring.collection.rollout_log import BatchLog, RolloutLog
from sparring.run.rehearsal import rehearse
from sparring.view.cards import card_of
from sparring.view.episodes import LoggedEpisode

STEPS = 2
EXPLORES = MAGNET | {
    "learning__algorithm": '{type = "magnet", values = "tree"}',
    "envs__0__explore": "0.4",
    "inference__max_tokens": "6",
    "learning__steps": str(STEPS),
    "tracking__games_logged": "1000",
    "run__save_every": "1",
}


def games(path: Path) -> list[list[dict]]:
    return [
        [
            {"text": step.completion_text, "logprobs": step.completion_logprobs, **step.info}
            for step in one.steps
        ]
        for _, one in RolloutLog(path / "rollouts")
    ]


def adapter(path: Path) -> dict[str, torch.Tensor]:
    return load_file(path / "checkpoints" / f"step-{STEPS:06d}" / "adapter_model.safetensors")


def evaluated(path: Path) -> list[list[dict]]:
    """Return the turns of the games of the evaluation before training."""
    lines = [line for log in (path / "evaluation").glob("step-000000-*.jsonl") for line in log.open()]
    return [json.loads(line)["rollout"]["extras"]["turns"] for line in lines]


@pytest.fixture(scope="module")
def explores(model, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("explores") / "run"
    run(configure(model, **EXPLORES), path)
    return path


def test_the_log_shows_which_steps_explored_and_at_which_share(explores):
    steps = [step for game in games(explores) for step in game]
    assert {step["explore"] for step in steps} == {0.4}
    explored = [step for step in steps if step["explored"]]
    assert 0 < len(explored) < len(steps)
    assert all(step["text"] in step["legal_answers"] for step in explored)


def test_the_batches_show_it_too(explores):
    logged = {}
    for _, one in RolloutLog(explores / "rollouts"):
        for pid in (0, 1):
            own = [step.info["explored"] for step in one.steps if step.pid == pid]
            logged |= {(one.id, pid, index): explored for index, explored in enumerate(own)}
    batches = [BatchLog(explores / "batches").read(number) for number in range(1, STEPS + 1)]
    learned = {
        (line["rollout_id"], line["pid"], line["step_index"]): line["explored"]
        for batch in batches
        for line in batch
    }
    assert learned == logged
    assert {*learned.values()} == {False, True}


def test_a_card_marks_the_turns_that_explored(explores):
    for step, rollout in RolloutLog(explores / "rollouts"):
        for turn in card_of(LoggedEpisode(step, 0, rollout)).turns:
            assert (("explored", "") in turn.marks) == turn.step.info["explored"]


def test_evaluations_do_not_explore(explores, model, tmp_path):
    run(configure(model, **EXPLORES | {"envs__0__explore": "0.0"}), tmp_path / "run")
    assert games(tmp_path / "run") != games(explores)
    assert evaluated(explores) == evaluated(tmp_path / "run") != []


def test_a_dry_run_explores_as_the_run_will(model):
    rehearsal = rehearse(configure(model, **EXPLORES | {"envs__0__explore": "1.0"}))
    assert rehearsal.found == ["one episode of kuhn_poker with made-up answers"]
    assert {limit for _, limit in rehearsal.calls} == {6}


def test_legal_answers_longer_than_a_drawn_one_are_played(model, tmp_path):
    short = {"envs__0__explore": "1.0", "inference__max_tokens": "1", "learning__max_generation_len": "6"}
    run(configure(model, **EXPLORES | short), tmp_path / "run")
    steps = [step for game in games(tmp_path / "run") for step in game]
    assert all(step["text"] in step["legal_answers"] for step in steps)
    assert min(len(step["logprobs"]) for step in steps) > 1


@pytest.mark.slow
def test_explored_games_and_what_the_tree_makes_of_them_are_the_same_on_ray(
    explores, model, tmp_path, cluster
):
    on_ray = {"run__runtime": "ray", "ray__collectors": "2", "ray__address": cluster}
    train_on_ray(configure(model, **EXPLORES, **on_ray), tmp_path / "run", quiet())
    here, there = games(explores), games(tmp_path / "run")
    first = len(here) // STEPS  # of the same weights; later ones differ by rounding
    assert len(here) == len(there)
    for one, other in zip(here[:first], there[:first], strict=True):
        assert [(step["text"], step["explored"]) for step in one] == [
            (step["text"], step["explored"]) for step in other
        ]
        for step, same in zip(one, other, strict=True):
            assert step["logprobs"] == pytest.approx(same["logprobs"], abs=1e-4)
    shares = [
        [line["learner/tree_share"] for line in metrics_of(path)[1:]] for path in (explores, tmp_path / "run")
    ]
    assert shares[0][-1] > 0.2
    assert shares[0] == pytest.approx(shares[1])
    one, other = adapter(explores), adapter(tmp_path / "run")
    assert all(torch.allclose(one[name], other[name], atol=1e-5) for name in one)
