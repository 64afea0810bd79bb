"""On Ray, the same players are replaced by the same children as in one process."""

import pytest

from evolution_runs import EVOLUTION, PLAYERS, STEPS, given_adapters
from game_runs import configure, metrics_of, quiet
from kill_resume import accounts_balance
from league_runs import learner_of
from program_runs import adapter
from sparring.cluster.run import resume, train
from sparring.core import SparringError
from sparring.population.evolution import replaced
from sparring.run.game_source import GameFeed
from sparring.run.single_process import train as train_locally

pytestmark = pytest.mark.slow

BORN = 2
"""The update after which a player is replaced."""
ROUNDING = 1e-3
"""How far apart two adapters may be, relative to their size: a first step of Adam is as large for weights
whose gradient is nearly nothing."""


@pytest.fixture(scope="module")
def settings(model, tmp_path_factory):
    return given_adapters(model, tmp_path_factory.mktemp("given"))


@pytest.fixture(scope="module")
def here(model, settings, tmp_path_factory):
    path = tmp_path_factory.mktemp("here") / "run"
    train_locally(configure(model, **settings), path, quiet())
    return path


@pytest.fixture(scope="module", params=["left alone", "resumed"])
def there(request, model, settings, tmp_path_factory, cluster):
    """A run on Ray, left alone or stopped when a child had taken its place, and resumed."""
    path, publish = tmp_path_factory.mktemp("there") / "run", GameFeed.publish

    async def fail(self, saved):
        if saved.step == BORN:
            raise SparringError("stopped by the test")
        return await publish(self, saved)

    with pytest.MonkeyPatch.context() as patch:
        config = configure(model, run__runtime="ray", ray__address=cluster, **settings)
        if request.param == "left alone":
            train(config, path, quiet())
            return path
        patch.setattr(GameFeed, "publish", fail)
        with pytest.raises(SparringError, match="stopped by the test"):
            train(config, path, quiet())
        patch.setattr(GameFeed, "publish", publish)
        resume(path, quiet())
    return path


def test_the_same_players_earn_the_same_and_are_replaced(here, there):
    def league(run):
        return [{k: v for k, v in line.items() if k.startswith("league/")} for line in metrics_of(run)]

    assert league(here) == league(there)
    assert replaced(metrics_of(there)[BORN - 1])
    assert accounts_balance(there)
    games = STEPS * int(EVOLUTION["collection__games_per_step"])
    assert metrics_of(there)[-1]["accounts/started"] == games


@pytest.mark.parametrize("player", PLAYERS)
def test_every_player_has_the_same_weights_and_its_optimizer_or_none(here, there, player):
    for step in range(STEPS + 1):
        one, other = (adapter(run, step, player) for run in (here, there))
        apart = sum(float((one[name] - other[name]).square().sum()) for name in one) ** 0.5
        assert apart <= ROUNDING * sum(float(one[name].square().sum()) for name in one) ** 0.5, step
        assert learner_of(here, step, player).keys() == learner_of(there, step, player).keys()
