"""Stages of a trainer over fine-tuning jobs: their order, kills between them, jobs that fail."""

import json

import pytest

from finetune_runs import Jobs, make_trainer
from proof_scripts import Script
from selfplay.config.finetune import RlParameters, TextRlParameters
from selfplay.core import InputError
from selfplay.finetune.expert_iteration import PureTextEiTrainer
from selfplay.finetune.malt import PureTextMaltTrainer
from selfplay.finetune.providers.job import FineTuneJobError
from selfplay.finetune.view import QuietView

THREE = RlParameters(num_iterations=3)


class Killed(BaseException):
    """Stands for the end of the process."""


class Stages(QuietView):
    """Notes stages; may end the process when one begins."""

    def __init__(self, killed_at=None):
        super().__init__()
        self.stages = []
        self.killed_at = killed_at

    def stage(self, stage, iteration):
        self.stages.append((iteration, stage))
        if len(self.stages) - 1 == self.killed_at:
            raise Killed


def guesses(**more):
    """A verifier that asks once and then guesses by the seed."""

    def decide(messages, seed):
        asked = any(message["role"] == "assistant" for message in messages)
        return ("Decision: accept" if seed % 2 else "Decision: reject") if asked else f"Why {seed % 97}?"

    return Script(verifier=decide, prover=lambda messages, seed: f"Because of {seed % 89}.", **more)


def run(kind, directory, provider, view=None, client=None, **changes):
    trainer = make_trainer(
        kind, client or guesses(), directory, provider, view=view, **{"rl": THREE} | changes
    )
    trainer.train()
    return trainer


def files_of(directory):
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def without_clocks(files):
    """The files with the times of rollouts left out."""

    def clean(line):
        entry = json.loads(line)
        for name in ("started_at", "ended_at"):
            entry["rollout"].pop(name)
        return entry

    return {
        name: [clean(line) for line in content.splitlines()] if name.startswith("rollouts") else content
        for name, content in files.items()
    }


@pytest.mark.parametrize("kind", [PureTextEiTrainer, PureTextMaltTrainer])
def test_three_iterations_sample_three_times_and_train_twice(tmp_path, kind):
    provider, view = Jobs(), Stages()
    trainer = run(kind, tmp_path / "run", provider, view)
    once = [
        "sample_rollouts",
        "log_stats",
        "test_during_training",
        "create_fine_tune_jobs",
        "await_fine_tune_jobs",
    ]
    expected = [(n, stage) for n in range(3) for stage in once][:-2]
    assert view.stages == expected
    assert [request.name for request in provider.requests] == [
        f"run_iter_{n}_{agent}" for n in range(2) for agent in ("prover", "verifier")
    ]
    assert trainer.state.train_loop_stage == "done"
    assert trainer.state.iteration == 3
    assert trainer.shared_model_groups["verifier"].model_name == "ft:run_iter_1_verifier"
    assert len(view.logged) == 3


@pytest.mark.parametrize("kind", [PureTextEiTrainer, PureTextMaltTrainer])
def test_a_run_killed_before_any_stage_ends_as_if_it_had_not_been(tmp_path, kind):
    whole = Jobs()
    run(kind, tmp_path / "whole" / "run", whole)
    expected = without_clocks(files_of(tmp_path / "whole" / "run"))
    for number in range(13):
        directory, provider = tmp_path / str(number) / "run", Jobs()
        with pytest.raises(Killed):
            run(kind, directory, provider, Stages(killed_at=number))
        run(kind, directory, provider)
        assert without_clocks(files_of(directory)) == expected
        assert provider.requests == whole.requests
        assert provider.files == whole.files


def test_a_job_that_fails_is_made_again_under_another_name_and_the_others_are_not(tmp_path):
    provider = Jobs("succeeded", "failed")
    trainer = run(PureTextEiTrainer, tmp_path / "run", provider, settings={"recreate_failed_jobs": 1})
    assert [request.name for request in provider.requests][:3] == [
        "run_iter_0_prover",
        "run_iter_0_verifier",
        "run_iter_0_verifier_try_2",
    ]
    assert trainer.shared_model_groups["verifier"].model_name == "ft:run_iter_1_verifier"


@pytest.mark.parametrize("end", ["failed", "cancelled", "not_found"])
def test_a_job_that_ends_without_a_model_ends_the_run_in_a_clear_state(tmp_path, end):
    with pytest.raises(ExceptionGroup) as ended:
        run(PureTextEiTrainer, tmp_path / "run", Jobs("succeeded", end))
    (problem,) = ended.value.exceptions
    assert isinstance(problem, FineTuneJobError)
    assert "verifier" in str(problem)
    state = json.loads((tmp_path / "run" / "state.json").read_text())
    assert state["train_loop_stage"] == "await_fine_tune_jobs"


def test_a_frozen_group_has_no_jobs_and_keeps_its_model(tmp_path):
    provider = Jobs()
    trainer = run(PureTextMaltTrainer, tmp_path / "run", provider, frozen=["prover"])
    assert {request.name.rpartition("_")[2] for request in provider.requests} == {"verifier"}
    assert trainer.shared_model_groups["prover"].model_name == "base-prover"


def test_changed_parameters_are_refused_unless_they_are_accepted(tmp_path):
    run(PureTextEiTrainer, tmp_path / "run", Jobs())
    with pytest.raises(InputError, match="seed: 6198 -> 1"):
        run(PureTextEiTrainer, tmp_path / "run", Jobs(), seed=1)
    run(PureTextEiTrainer, tmp_path / "run", Jobs(), seed=1, settings={"accept_changes": True})


@pytest.mark.parametrize(
    ("annealing", "iteration", "share"),
    [("none", 7, 0.5), ("linear", 2, 0.3), ("linear", 7, 0.0), ("exponential", 2, 0.405)],
)
def test_the_share_of_replaced_verdicts_falls_as_configured(tmp_path, annealing, iteration, share):
    text_rl = TextRlParameters(
        verifier_guess_replacement_proportion=0.5, verifier_guess_replacement_annealing=annealing
    )
    trainer = make_trainer(PureTextEiTrainer, guesses(), tmp_path / "run", text_rl=text_rl)
    assert trainer._get_verifier_guess_replacement_proportion(iteration) == pytest.approx(share)


def test_turns_of_examples_are_not_imitated(tmp_path):
    provider = Jobs()
    run(PureTextEiTrainer, tmp_path / "run", provider, examples=True)
    lines = provider.files["run_iter_0_verifier"].splitlines()
    assert lines
    for line in lines:
        messages = json.loads(line)["messages"]
        answers = [one for one in messages if one["role"] == "assistant"]
        assert [one.get("weight", 1) for one in answers] == [0] * (len(answers) - 1) + [1]
