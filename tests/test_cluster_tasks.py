"""Tasks of runs on Ray: asked by the process of the loop, answered by the engines."""

import pytest

from game_runs import configure, quiet
from program_runs import configure as configure_program
from sparring.cluster.run import train
from sparring.evaluation.results import read_evaluation
from sparring.run.single_process import train as train_locally

TASKS = '[{name = "arithmetic", questions = 4, max_tokens = 3}]'
SHORT = {"learning__steps": "1", "evaluation__tasks": TASKS, "evaluation__temperature": "0.0"}


def results_of(run):
    return {path.name: read_evaluation(path)[1] for path in sorted((run / "tasks").glob("*.json"))}


def said_in(run):
    return {path.name: path.read_bytes().count(b"completion_token_ids") for path in run.glob("tasks/*.jsonl")}


@pytest.mark.slow  # test_run_tasks asks in one process by default
def test_a_run_of_games_asks_the_same_on_ray_as_in_one_process(model, tmp_path, cluster):
    games = {"collection__games_per_step": "4", "evaluation__games": "2"}
    on_ray = configure(model, run__runtime="ray", ray__address=cluster, **SHORT, **games)
    train(on_ray, tmp_path / "ray", quiet())
    train_locally(configure(model, **SHORT, **games), tmp_path / "local", quiet())
    found, wanted = results_of(tmp_path / "ray"), results_of(tmp_path / "local")
    assert found.keys() == wanted.keys() == {f"step-{step:06d}-arithmetic.json" for step in (0, 1)}
    assert found["step-000000-arithmetic.json"].scores == wanted["step-000000-arithmetic.json"].scores
    assert all(len(one.answered) == 4 and one.tokens for one in found.values())
    assert said_in(tmp_path / "ray") == said_in(tmp_path / "local")


@pytest.mark.slow  # test_run_tasks asks in one process by default
def test_a_program_on_ray_asks_each_of_its_policies(model, tmp_path, cluster):
    config = configure_program(model, tmp_path, run__runtime="ray", ray__address=cluster, **SHORT)
    train(config, tmp_path / "run", quiet())
    found = results_of(tmp_path / "run")
    assert len(found) == 4
    assert all(len(one.answered) == 4 for one in found.values())
