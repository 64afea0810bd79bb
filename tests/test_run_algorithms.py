"""Algorithms and learners as configurations describe them."""

import pytest

from sparring.config import dump_config, load_config
from sparring.config.algorithms import Algorithm, PythonAlgorithm
from sparring.config.fields import models_in
from sparring.core import InputError
from sparring.learn.algorithms import Reinforce, build_algorithm
from sparring.learn.algorithms.all_actions import AllActions
from sparring.learn.policy import LoraSettings, PolicyModel
from sparring.run.assembly import build_learner
from tiny_models import tiny_model, tiny_policy


@pytest.mark.parametrize("settings", [one for one in models_in(Algorithm) if one is not PythonAlgorithm])
def test_every_entry_of_the_table_is_built_with_its_settings(settings):
    field, value = ("alpha", 0.7) if "alpha" in settings.model_fields else ("kl_weight", 0.5)
    given = settings(**{field: value})
    built = build_algorithm(given)
    assert type(built).__name__ == settings.made_by.partition(":")[2]
    assert built.settings == given != settings()
    assert field == "alpha" or built.terms.kl_weight == value
    assert type(built)().settings == type(type(built).settings)()


def test_settings_reach_the_algorithm_and_the_learner():
    options = (
        'type = "ppo", clip_high = 0.28, dual_clip = 3.0, aggregation = "token-mean", kl_in = "reward"',
        'correction = "icepop", correction_level = "sequence", min_importance_weight = 0.4',
        "kpop_threshold = 1.5, max_importance_weight = 5.0, opsm_threshold = 0.1, entropy_weight = 0.01",
        'kl_estimator = "k1"',
    )
    text = f"{{{', '.join(options)}}}"
    overrides = {"learning.algorithm": text, "learning.epochs": "2", "learning.minibatches": "3"}
    config = load_config("tictactoe", overrides)
    learner = build_learner(config, tiny_policy())
    algorithm = learner.algorithm
    assert (learner.settings.epochs, learner.settings.minibatches) == (2, 3)
    assert algorithm.settings == algorithm.terms == algorithm.correction == config.learning.algorithm
    assert (algorithm.settings.clip_low, algorithm.settings.dual_clip) == (0.2, 3.0)


@pytest.mark.parametrize("field", ["epochs", "minibatches"])
def test_there_is_at_least_one_step(field):
    with pytest.raises(InputError, match="at least 1"):
        load_config("tictactoe", {f"learning.{field}": "0"})


TWO = {
    "envs": '[{id = "kuhn_poker", policies = ["first", "second"]}]',
    "learning.average_decay": "0.8",
    "learning.momentum": "0.3",
    "learning.policies.first": '{algorithm = {type = "all_actions", gradient = "neurd"}, momentum = 0.8}',
    "learning.policies.second": "{learning_rate = 1e-3, learning_rate_end = 1e-4}",
}


def test_a_policy_may_have_an_algorithm_and_rates_of_its_own():
    config = load_config("quickstart", TWO)
    model = PolicyModel(str(tiny_model("llama")), LoraSettings(4, 8.0), policies=config.policies)
    first, second = (build_learner(config, model, name) for name in config.policies)
    assert isinstance(first.algorithm, AllActions)
    assert first.algorithm.settings.gradient == "neurd"
    assert isinstance(second.algorithm, Reinforce)
    run = config.learning
    rates = [(one.learning_rate.start, one.learning_rate.end) for one in (first, second)]
    assert rates == [(run.learning_rate, run.learning_rate_end), (1e-3, 1e-4)]
    assert [one.optimizer.param_groups[0]["betas"][0] for one in (first, second)] == [0.8, 0.3]
    assert first.regulariser_weight.at(0) == 0.0
    assert second.regulariser_weight.at(0) == 0.2


def test_a_policy_of_its_own_survives_being_written_and_read(tmp_path):
    config = load_config("quickstart", TWO)
    (tmp_path / "config.toml").write_text(dump_config(config))
    assert load_config(str(tmp_path / "config.toml"), {}) == config
