"""Programs on Ray whose policies start from an adapter of an earlier run and meet one that only plays.

``test_cluster_seats.py`` has games with such adapters.
"""

import shutil
from pathlib import Path

import pytest
import torch

from game_runs import configure, quiet
from program_runs import adapter, steps_of
from program_runs import configure as configure_program
from seat_runs import SIDES
from sparring.cluster.learner_group import learners_from_config
from sparring.cluster.run import ClusterRun, train
from sparring.config import Config
from sparring.config.loading import dump_config
from sparring.run.run_directory import RunDirectory
from sparring.run.single_process import train as train_locally

FAST = {"learning__learning_rate": "0.01", "learning__average_decay": "0.5"}
SHORT = FAST | {"learning__steps": "2", "evaluation__every": "0", "run__save_every": "1"}


@pytest.fixture(scope="module")
def earlier(model, tmp_path_factory):
    """A finished run of games with two policies."""
    path = tmp_path_factory.mktemp("earlier") / "run"
    train_locally(configure(model, **SIDES | FAST | {"evaluation__every": "0"}), path, quiet())
    return path


def trained_both_ways(here: Config, there: Config, directory: Path) -> tuple[Path, Path]:
    train_locally(here, directory / "here", quiet())
    train(there, directory / "there", quiet())
    return directory / "here", directory / "there"


def equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return all(torch.allclose(one[name], other[name], atol=1e-5) for name in one)


@pytest.mark.slow
def test_roles_that_start_from_an_adapter_and_meet_a_frozen_one_learn_the_same_on_ray(
    model,
    earlier,
    tmp_path,
    cluster,
):
    at_4 = earlier / "checkpoints" / "step-000004"
    given = {
        "start__hider": f"{at_4 / 'first'}",
        "frozen__teacher": f"{at_4 / 'second'}",
        "roles__Seeker__policy": "teacher",
        "tracking__games_logged": "100",
    }
    some = SHORT | given
    here, there = trained_both_ways(
        configure_program(model, tmp_path, **some),
        configure_program(model, tmp_path, **some, run__runtime="ray", ray__address=cluster),
        tmp_path,
    )
    started, trained = (adapter(there, step, "hider") for step in (0, 2))
    assert equal(started, adapter(earlier, 4, "first"))
    assert not equal(started, trained)
    assert equal(trained, adapter(here, 2, "hider"))
    answers = [[step.completion_text for step in steps_of(run, "Seeker")] for run in (here, there)]
    assert answers[0] == answers[1]
    assert {step.policy for step in steps_of(there, "Seeker")} == {""}


def test_engines_and_learners_read_the_runs_own_copies_also_after_the_earlier_run_was_deleted(
    model,
    earlier,
    tmp_path,
):
    source = Path(shutil.copytree(earlier, tmp_path / "source"))
    given = {
        "start__hider": f"{source / 'checkpoints' / 'step-000004' / 'first'}",
        "frozen__teacher": f"{source / 'checkpoints' / 'step-000004' / 'second'}",
        "roles__Seeker__policy": "teacher",
    }
    config = configure_program(model, tmp_path, **given, run__runtime="ray")
    directory = RunDirectory.create(tmp_path / "run")
    begun = ClusterRun(config, directory, "run", quiet())
    directory.write_config(dump_config(config))
    shutil.rmtree(source)
    resumed = ClusterRun(config, directory, "run", quiet())
    assert resumed.frozen == begun.frozen
    assert resumed.frozen["teacher"].path == str(tmp_path / "run" / "given" / "teacher")
    learner = learners_from_config(resumed.config, resumed.policies)["hider"]
    assert equal(learner.policy.adapter_state("hider"), adapter(earlier, 4, "first"))
