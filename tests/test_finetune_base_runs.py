"""Runs that take the parameters of an earlier run, and runs that play its tests again."""

import json
from asyncio import CancelledError

import pytest

from finetune_runs import Jobs, Killed, Mortal, Stages, files_of, guesses, make_trainer, run, without_clocks
from sparring.cli.main import main
from sparring.commands.finetune import with_base_run
from sparring.config import load_config
from sparring.config.finetune import BaseRunParameters, TextRlParameters
from sparring.config.loading import dump_config
from sparring.core import InputError
from sparring.finetune import CheckPointNotFoundError, PureTextEiTrainer
from sparring.finetune.run_files import load_rollouts

ALL = TextRlParameters(test_scheme="all")


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """A finished run of three iterations, tested in each."""
    directory = tmp_path_factory.mktemp("runs") / "base"
    run(PureTextEiTrainer, directory, Jobs(), text_rl=ALL)
    return directory


def played_tests(directory):
    """The tests of a run by iteration, without their times."""
    return {
        name: rollouts
        for name, rollouts in without_clocks(files_of(directory)).items()
        if name.startswith("rollouts/test-")
    }


def rerun(base, directory, *, scheme="all", **options):
    base_run = BaseRunParameters(base_run_type="rerun_tests", run_id=str(base))
    text_rl = TextRlParameters(test_scheme=scheme)
    return run(PureTextEiTrainer, directory, Jobs(), base_run=base_run, text_rl=text_rl, **options)


def test_tests_are_played_again_with_the_models_that_each_iteration_had(base, tmp_path):
    trainer = rerun(base, tmp_path / "again")
    models = [
        load_rollouts(tmp_path / "again" / "rollouts" / f"test-{number:06d}.jsonl", number)[0]
        .agents["verifier"]
        .model
        for number in range(3)
    ]
    assert models == ["base-verifier", "ft:base_iter_0_verifier", "ft:base_iter_1_verifier"]
    assert played_tests(tmp_path / "again") == played_tests(base)
    assert trainer.state.train_loop_stage == "done"
    assert not (tmp_path / "again" / "jobs").exists()
    assert not list((tmp_path / "again" / "rollouts").glob("step-*"))


def test_only_the_tests_of_the_new_scheme_are_played_again(base, tmp_path):
    rerun(base, tmp_path / "again", scheme="first_and_last")
    assert list(played_tests(tmp_path / "again")) == [
        f"rollouts/test-00000{number}.jsonl" for number in (0, 2)
    ]


@pytest.mark.parametrize("killed_at", range(3))
def test_playing_tests_again_continues_after_a_kill(base, tmp_path, killed_at):
    with pytest.raises(Killed):
        rerun(base, tmp_path / "again", view=Stages(killed_at))
    rerun(base, tmp_path / "again")
    assert played_tests(tmp_path / "again") == played_tests(base)
    assert {path.name for path in (tmp_path / "again" / "rollouts").iterdir()} == {
        f"test-00000{number}.jsonl" for number in range(3)
    }


def test_a_kill_while_tests_are_played_again_costs_no_answer(base, tmp_path):
    whole = Mortal()
    rerun(base, tmp_path / "whole", client=whole)
    first, second = Mortal(last=whole.answered // 2), Mortal()
    with pytest.raises(CancelledError):
        rerun(base, tmp_path / "again", client=first)
    rerun(base, tmp_path / "again", client=second)
    assert first.answered + second.answered == whole.answered
    assert played_tests(tmp_path / "again") == played_tests(base)


def test_a_version_of_the_base_runs_state_is_the_state_of_an_iteration(base, tmp_path):
    base_run = BaseRunParameters(base_run_type="parameters", run_id=str(base))
    trainer = make_trainer(PureTextEiTrainer, guesses(), tmp_path / "new", base_run=base_run)
    for version, stage in [("1", "test_during_training"), ("v1", "test_during_training"), ("latest", "done")]:
        trainer.load_and_set_state_from_checkpoint(from_base_run=True, version=version)
        assert trainer.state.train_loop_stage == stage
        assert trainer.state.iteration == (3 if version == "latest" else 1)
    for version in ("3", "newest"):
        with pytest.raises(CheckPointNotFoundError):
            trainer._load_state_dict_from_base_run_checkpoint(version)
    with pytest.raises(ValueError, match="version"):
        trainer.load_and_set_state_from_checkpoint(version="1")


CHANGED = {
    "seed": "5",
    "program.protocol": "adp",
    "roles.verifier.max_tokens": "8",
    "finetune.trainer": "pure_text_malt",
    "finetune.agents._default.model_name": "small",
    "finetune.rl.num_iterations": "3",
    "finetune.rl.num_test_iterations": "4",
    "finetune.text_rl.test_scheme": "last",
    "finetune.text_rl.test_on_whole_dataset": "false",
    "finetune.text_rl.fine_tune_on_all_previous_rollouts": "true",
    "finetune.pure_text_malt.num_responses_per_timestep": "3",
    "finetune.provider.poll_seconds": "9.0",
}


@pytest.fixture
def earlier(tmp_path, monkeypatch):
    """A run with other parameters than the preset's, by its name in ``runs``."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "earlier").mkdir(parents=True)
    text = dump_config(load_config("nip", CHANGED))
    (tmp_path / "runs" / "earlier" / "config.toml").write_text(text)
    return tmp_path / "runs" / "earlier"


def named(kind, **more):
    return load_config(
        "nip", {"finetune.base_run.base_run_type": kind, "finetune.base_run.run_id": "earlier", **more}
    )


def test_a_run_takes_the_parameters_of_its_base_run_but_for_tests_and_provider(earlier):
    given = named("parameters")
    taken = with_base_run(given)
    base = load_config(str(earlier / "config.toml"), {})
    assert (taken.seed, taken.program, taken.roles) == (5, base.program, base.roles)
    assert taken.roles["verifier"].max_tokens == 8
    for name in ("trainer", "agents", "pure_text_ei", "pure_text_malt"):
        assert getattr(taken.finetune, name) == getattr(base.finetune, name)
    assert taken.finetune.provider == given.finetune.provider
    assert (taken.finetune.rl.num_iterations, taken.finetune.rl.num_test_iterations) == (3, 1)
    assert taken.finetune.text_rl.fine_tune_on_all_previous_rollouts
    assert taken.finetune.text_rl.test_scheme == "all"
    assert taken.finetune.text_rl.test_on_whole_dataset
    assert taken.finetune.base_run.run_id == str(earlier)
    (earlier / "again.toml").write_text(dump_config(taken))
    assert load_config(str(earlier / "again.toml"), {}) == taken


def test_a_local_provider_has_the_model_of_a_base_run_with_one(earlier):
    """Another provider's model is not that of [model]."""
    local = {"finetune.provider.type": "local"}
    given = named("parameters", **local, **{"model.name": "another"})
    assert with_base_run(given).model.name == "another"
    base = load_config("nip", CHANGED | local | {"model.name": "its-own"})
    (earlier / "config.toml").write_text(dump_config(base))
    assert with_base_run(given).model == base.model


def test_a_dry_run_shows_the_parameters_of_the_base_run(earlier, capsys):
    fields = ["--finetune.base_run.base_run_type", "parameters", "--finetune.base_run.run_id", "earlier"]
    assert main(["finetune", "nip", "--dry-run", *fields]) == 0
    said = capsys.readouterr()
    (earlier / "shown.toml").write_text(said.out)
    shown, expected = load_config(str(earlier / "shown.toml"), {}), with_base_run(named("parameters"))
    assert (shown.finetune, shown.program) == (expected.finetune, expected.program)
    assert shown.credit is None, "what has no effect on fine-tuning jobs is left out"
    assert "3 iterations with" in said.err


def test_a_run_without_a_base_run_keeps_its_parameters():
    config = load_config("nip", {})
    assert with_base_run(config) == config


def test_the_tests_of_a_finished_run_with_all_its_states_can_be_played_again(earlier):
    (earlier / "states").mkdir()
    for iteration in range(3):
        (earlier / "states" / f"{iteration:06d}.json").write_text("{}")
    state = {"iteration": 3, "train_loop_stage": "done"}
    (earlier / "state.json").write_text(json.dumps(state))
    assert with_base_run(named("rerun_tests")).finetune.base_run.base_run_type == "rerun_tests"
    (earlier / "state.json").unlink()
    with pytest.raises(InputError, match="has not begun"):
        with_base_run(named("rerun_tests"))
