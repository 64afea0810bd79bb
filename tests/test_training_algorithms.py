"""Algorithms and learners as configurations describe them."""

import pytest

from selfplay.config import dump_config, load_config
from selfplay.config.algorithms import Algorithm, PythonAlgorithm
from selfplay.config.fields import models_in
from selfplay.core import InputError
from selfplay.learning.algorithms import A2c, AllActions, Cispo, Dppo, Gspo, Magnet, Ppo, Reinforce, Sapo
from selfplay.learning.policy import LoraSettings, PolicyModel
from selfplay.training.algorithms import build_algorithm
from selfplay.training.assembly import build_learner
from tiny_models import tiny_model, tiny_policy

KINDS = {
    "reinforce": Reinforce,
    "a2c": A2c,
    "ppo": Ppo,
    "gspo": Gspo,
    "cispo": Cispo,
    "sapo": Sapo,
    "dppo": Dppo,
    "magnet": Magnet,
    "all_actions": AllActions,
}


@pytest.mark.parametrize("settings", models_in(Algorithm))
def test_the_defaults_of_settings_are_those_of_the_class(settings):
    if settings is PythonAlgorithm:
        pytest.skip("the class is the user's")
    built = build_algorithm(settings())
    kind = KINDS[settings().type]
    assert type(built) is kind
    expected = vars(kind())
    if kind is Reinforce:
        expected["regulariser"] = "uniform"  # what games train with if nothing is said
    assert vars(built) == expected


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
    learner = build_learner(config.learning, config, tiny_policy())
    algorithm = learner.algorithm
    assert (learner.epochs, learner.minibatches) == (2, 3)
    assert (algorithm.clip_low, algorithm.clip_high, algorithm.dual_clip) == (0.2, 0.28, 3.0)
    assert (algorithm.aggregation, algorithm.kl_in, algorithm.kl_estimator) == ("token-mean", "reward", "k1")
    assert (algorithm.opsm_threshold, algorithm.entropy_weight) == (0.1, 0.01)
    correction = algorithm.correction
    assert (correction.kind, correction.level) == ("icepop", "sequence")
    assert (correction.maximum, correction.minimum, correction.threshold) == (5.0, 0.4, 1.5)


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
    first, second = (build_learner(config.learning, config, model, name) for name in config.policies)
    assert isinstance(first.algorithm, AllActions)
    assert first.algorithm.gradient == "neurd"
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
