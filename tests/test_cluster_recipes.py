"""Every recipe on a cluster, slowly."""

import pytest

from selfplay.cluster.train import train
from selfplay.config import recipe_names
from test_cluster_programs import quiet
from test_training_local import model  # noqa: F401 - a fixture
from test_training_recipes import assert_trained, kuhn


@pytest.mark.slow
@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_trains_on_ray(name, model, tmp_path, loopback):  # noqa: F811
    config = kuhn(model, name, **{"run.runtime": "ray", "ray.collectors": "2"})
    train(config, tmp_path / "run", quiet())
    assert_trained(tmp_path / "run", 40)
