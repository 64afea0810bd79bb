"""The number of threads on which a run computes, which a resumed run keeps."""

import io

import pytest
import torch
from rich.console import Console

from family_models import family_model
from sparring.cluster.placement import Sharing
from sparring.config import load_config
from sparring.config.model import ModelSettings
from sparring.run.hardware import (
    available_cores,
    candidates,
    chosen_threads,
    fastest,
    measured_seconds,
    with_chosen_threads,
)
from sparring.run.single_process import resume, train

RUN = {
    "lora.rank": "2",
    "inference.max_tokens": "2",
    "collection.games_per_step": "2",
    "learning.steps": "1",
    "evaluation.every": "0",
    "evaluation.games": "2",
    "evaluation.opponents": "['random']",
    "evaluation.nash_conv": "false",
}


@pytest.fixture(autouse=True)
def same_threads_afterwards():
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize(
    ("seconds", "threads"),
    [
        ({1: 1.0}, 1),
        ({1: 1.0, 2: 7.5}, 1),  # beside a busy process
        ({1: 1.0, 2: 0.9}, 1),  # not worth it
        ({1: 1.0, 2: 0.55}, 2),
        ({1: 1.0, 2: 0.9, 4: 0.3, 6: 0.28}, 4),
        ({1: 1.0, 2: 0.5, 4: 0.25, 6: 2.0}, 4),
    ],
)
def test_more_threads_are_used_only_if_they_are_faster_by_the_factor(seconds, threads):
    assert fastest(seconds) == threads


@pytest.mark.parametrize(("most", "counts"), [(1, [1]), (2, [1, 2]), (6, [1, 2, 4, 6]), (8, [1, 2, 4, 8])])
def test_powers_of_two_and_all_cores_are_measured(most, counts):
    assert candidates(most) == counts


def test_each_number_is_measured_and_the_old_one_is_restored():
    torch.set_num_threads(2)
    seconds = measured_seconds([1, 2, 3], torch.float32)
    assert list(seconds) == [1, 2, 3]
    assert all(taken > 0 for taken in seconds.values())
    assert torch.get_num_threads() == 2


def test_a_given_number_is_used_silently():
    said = []
    assert chosen_threads(ModelSettings(threads=3), 2, said.append) == 3
    config = load_config("quickstart", {"model.threads": "3"})
    assert with_chosen_threads(config, 2, said.append) is config
    assert said == []


def test_the_chosen_number_is_printed_in_one_line():
    said = []
    threads = chosen_threads(ModelSettings(device="cpu"), 2, said.append)
    assert threads in (1, 2)
    assert len(said) == 1
    assert said[0].startswith(f"computing on {threads} of 2 threads: ")


def test_a_resumed_run_keeps_its_number_of_threads(tmp_path):
    config = load_config("quickstart", RUN | {"model.name": str(family_model("Llama"))})
    assert config.model.threads is None
    train(config, tmp_path / "run", Console(file=io.StringIO()))
    kept = load_config(str(tmp_path / "run" / "config.toml"), {}).model.threads
    assert kept == torch.get_num_threads()
    (tmp_path / "run" / "report.html").unlink()
    printed = io.StringIO()
    resume(tmp_path / "run", Console(file=printed))
    assert "threads" not in printed.getvalue()
    assert torch.get_num_threads() == kept


@pytest.mark.parametrize(
    ("settings", "sharing"),
    [
        ({}, 1),
        ({"ray.engines": "2"}, 2),
        ({"ray.engines": "2", "ray.learners": "3"}, 3),
        ({"ray.engines": "2", "collection.max_staleness": "1"}, 3),
    ],
)
def test_actors_that_compute_at_the_same_time_share_the_cores(settings, sharing):
    config = load_config("quickstart", settings | {"run.runtime": "ray"})
    assert Sharing.of(config).cores(available_cores()) == max(1, available_cores() // sharing)
