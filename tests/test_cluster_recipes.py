"""Some recipes on a cluster: with several steps, a memory, an average, a critic, and with none of these."""

import pytest

from selfplay.cluster.train import train
from test_cluster_programs import quiet
from test_training_local import model  # noqa: F401 - a fixture
from test_training_recipes import assert_trained, kuhn


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dapo", "spo", "magnet", "nashpg", "rloo"])
def test_a_recipe_trains_on_ray(name, model, tmp_path, loopback):  # noqa: F811
    config = kuhn(model, name, **{"run.runtime": "ray", "ray.collectors": "2"})
    train(config, tmp_path / "run", quiet())
    assert_trained(tmp_path / "run", 40)
