"""Algorithms and learners as configurations describe them."""

import pytest

from selfplay.config import load_config
from selfplay.config.algorithms import Algorithm, PythonAlgorithm
from selfplay.config.fields import models_in
from selfplay.core import InputError
from selfplay.learning.algorithms import A2c, Cispo, Dppo, Gspo, Magnet, Ppo, Reinforce, Sapo
from selfplay.training.algorithms import build_algorithm
from selfplay.training.assembly import build_learner
from tiny_models import tiny_policy

KINDS = {
    "reinforce": Reinforce,
    "a2c": A2c,
    "ppo": Ppo,
    "gspo": Gspo,
    "cispo": Cispo,
    "sapo": Sapo,
    "dppo": Dppo,
    "magnet": Magnet,
}


@pytest.mark.parametrize("settings", models_in(Algorithm))
def test_the_defaults_of_settings_are_those_of_the_class(settings):
    if settings is PythonAlgorithm:
        pytest.skip("the class is the user's")
    built = build_algorithm(settings())
    kind = KINDS[settings().type]
    assert type(built) is kind
    expected = vars(kind())
    if kind is not Magnet:
        expected["regulariser"] = "uniform"  # a class alone has no legal answers
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
