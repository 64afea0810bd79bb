"""Calls as the specification of the trainer has them: names of arguments, defaults, and its one example."""

import inspect

import pytest

from finetune_runs import THREE, Jobs, guesses, make_trainer
from sparring.compat.nip import PureTextEiTrainer, PureTextMaltTrainer, PureTextRlTrainer
from sparring.core import Rollout

SIGNATURES = {
    "__init__": "hyper_params, scenario_instance, settings",
    "_add_file_to_wandb_artifact": "artifact_name, artifact_type, file_path",
    "_check_if_run_test_loop": "",
    "_extract_transcripts_and_prompts": "rollouts, environment",
    "_get_fine_tune_job_name": "shared_model_group",
    "_get_iteration_begin_message": "",
    "_get_log_stats": "rollouts, *, train=True",
    "_get_metadata": "",
    "_get_verifier_guess_replacement_proportion": "iteration",
    "_initialise_state": "",
    "_load_rollouts": "iterations",
    "_load_state_dict_from_active_run_checkpoint": "",
    "_load_state_dict_from_base_run_checkpoint": "version='latest'",
    "_previous_compatible_iterations": "",
    "_sample_rollouts": "environment, iteration, use_tqdm=False, tqdm_desc='Sampling rollouts'",
    "_sample_rollouts_for_single_environment": "environment, data_batch=None",
    "_save_rollouts": "rollouts, environment, iteration=None",
    "_stage_await_fine_tune_jobs": "",
    "_stage_create_fine_tune_jobs": "rollouts, only_failed=False",
    "_stage_log_stats": "rollouts",
    "_stage_sample_rollouts": "",
    "_train": "",
    "get_checkpoint_base_dir_from_run_id": "run_id",
    "get_total_num_iterations": "",
    "load_and_set_state_from_checkpoint": "from_base_run=False, version='latest'",
    "run_analysers": "analysers, model_name, *, overwrite=False, use_tqdm=True, dry_run=False",
    "save_checkpoint": "log=True",
    "train": "",
}


def parameters_of(method):
    found = [
        one.replace(annotation=inspect.Parameter.empty)
        for one in inspect.signature(method).parameters.values()
    ]
    return [one for one in found if one.name != "self"]


@pytest.mark.parametrize("kind", [PureTextRlTrainer, PureTextEiTrainer, PureTextMaltTrainer])
@pytest.mark.parametrize(("name", "wanted"), SIGNATURES.items())
def test_a_call_as_specified_fits_the_method(name, wanted, kind):
    namespace = {}
    exec(f"def method({wanted}): pass", namespace)
    expected = parameters_of(namespace["method"])
    given = parameters_of(getattr(kind, name))
    assert given[: len(expected)] == expected
    assert all(one.default is not one.empty for one in given[len(expected) :])


async def test_stages_are_called_one_by_one_with_the_specified_arguments(tmp_path):
    trainer = make_trainer(PureTextEiTrainer, guesses(), tmp_path / "run", Jobs(), rl=THREE)
    environment = trainer.train_environment
    rollouts = await trainer._sample_rollouts(
        environment, iteration=0, use_tqdm=True, tqdm_desc="Sampling rollouts"
    )
    tested = await trainer._sample_rollouts(trainer.test_environment, "test", use_tqdm=False)
    assert (len(rollouts), len(tested)) == (environment.num_envs, trainer.test_environment.num_envs)
    assert isinstance(await trainer._sample_rollouts_for_single_environment(environment), Rollout)
    trainer._save_rollouts(rollouts, environment, iteration=0)
    assert [one.id for one in trainer._load_rollouts(0)] == [one.id for one in rollouts]
    assert [one.id for one in trainer._load_rollouts(iterations=[0])] == [one.id for one in rollouts]
    raw, processed, prompts = trainer._extract_transcripts_and_prompts(rollouts, environment)
    assert len(raw) == len(processed) == len(prompts) == len(rollouts)
    assert "mean_accuracy" in trainer._get_log_stats(rollouts, train=True)
    assert "test_mean_accuracy" in trainer._get_log_stats(tested, train=False)
    trainer._stage_log_stats(rollouts)
    await trainer._stage_create_fine_tune_jobs(rollouts, only_failed=False)
    await trainer._stage_await_fine_tune_jobs()
    trainer.save_checkpoint(log=False)
    trainer.load_and_set_state_from_checkpoint(from_base_run=False, version="latest")
    assert trainer.shared_model_groups["verifier"].model_name == "ft:run_iter_0_verifier"
