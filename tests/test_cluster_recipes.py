"""Every recipe on a cluster, slowly."""

import pytest

from game_runs import quiet
from recipe_runs import assert_trained, kuhn
from sparring.cluster.run import train
from sparring.config import recipe_names


@pytest.mark.slow
@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_trains_on_ray(name, model, tmp_path, cluster):
    config = kuhn(model, name, **{"run.runtime": "ray", "ray.address": cluster, "ray.collectors": "2"})
    train(config, tmp_path / "run", quiet())
    assert_trained(tmp_path / "run", 40)
