"""Whole runs of provers with a verifier, of questions from a corpus, and of self-judged instructions."""

import json

import pytest

from game_runs import cut_back, resumed
from matrices import first_of
from program_runs import adapter, logged, run
from sparring.config import load_config

PAPERS = {
    "prover-verifier-small": {
        "program.batch_size": "4",
        "program.solutions_per_question": "4",
        "program.verifier_updates": "1",
        "program.prover_updates": "1",
        "program.evaluation_questions": "1",
    },
    "spice-small": {
        "program.batch_size": "2",
        "program.proposals_per_document": "2",
        "program.solver_rollouts": "2",
        "program.evaluation_proposals": "1",
    },
    "language-self-play-small": {
        "program.batch_size": "2",
        "program.solver_rollouts": "2",
        "program.evaluation_proposals": "1",
        "program.task": "naming things",
    },
}
TINY = {
    "model.dtype": "float32",
    "model.threads": "1",
    "lora.rank": "2",
    "inference.max_context": "4096",
    "learning.steps": "4",
    "learning.learning_rate": "0.01",
    "evaluation.every": "0",
    "run.save_every": "1",
    "run.keep_checkpoints": "5",
    "tracking.games_logged": "100",
}


def configured(model, preset, **changes):
    return load_config(f"papers/{preset}", TINY | {"model.name": str(model)} | PAPERS[preset] | changes)


@pytest.fixture(scope="module", params=first_of([*PAPERS]))
def finished(request, model, tmp_path_factory):
    path = tmp_path_factory.mktemp(request.param) / "run"
    run(configured(model, request.param), path)
    return path


def test_a_run_that_was_killed_goes_on_as_if_it_had_not_been(finished):
    policies = [one.name for one in (finished / "checkpoints" / "step-000004").iterdir() if one.is_dir()]
    whole = {name: adapter(finished, 4, name) for name in policies}
    played = [json.dumps(one.artifact, default=vars) for one in logged(finished)]
    cut_back(finished, to=2)
    resumed(finished)
    assert [json.dumps(one.artifact, default=vars) for one in logged(finished)] == played
    for name, weights in whole.items():
        again = adapter(finished, 4, name)
        assert all((again[key] == weights[key]).all() for key in weights)


def test_one_of_provers_and_verifier_stands_still_in_each_update(model, tmp_path):
    run(configured(model, "prover-verifier-small", **{"learning.steps": "3"}), tmp_path / "run")
    states = sorted((tmp_path / "run" / "checkpoints").glob("step-*/state.json"))
    versions = [json.loads(state.read_text())["versions"] for state in states]
    assert versions == [
        {"prover": 0, "verifier": 0},
        {"prover": 0, "verifier": 1},
        {"prover": 1, "verifier": 1},
        {"prover": 1, "verifier": 2},
    ]
