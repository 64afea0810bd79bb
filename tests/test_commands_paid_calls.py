"""Calls that cost money stay within the user's limit, wherever a program's role is behind an API."""

from pathlib import Path

import pytest

from paid_server import paid_server
from program_runs import OPPONENTS, configure, run
from sparring.commands.answered import AgentQuery
from sparring.commands.exploit import Budget, exploit
from sparring.commands.programs import evaluate_program
from sparring.commands.psro import psro
from sparring.commands.side_by_side import side_by_side
from sparring.commands.tournament import tournament
from sparring.core import InputError
from sparring.engine.paid_answers import CallsSpent
from sparring.evaluation.match import Progress
from tournaments import few_resamples  # noqa: F401 - a fixture

CALLS = 6


@pytest.fixture(scope="module")
def server():
    with paid_server() as server:
        server.text = "from there"
        yield server


@pytest.fixture(scope="module")
def configured(model, server, tmp_path_factory):
    """Return the configuration of a program whose third role is behind an API."""
    folder = tmp_path_factory.mktemp("program")

    def configured(**changes):
        role = {"frozen__caller": server.name, "roles__Caller__policy": "caller"}
        short = {"learning__steps": "1", "run__save_every": "1", "evaluation__every": "0"}
        return configure(model, folder, "Three", **role, **(short | changes))

    return configured


@pytest.fixture(scope="module")
def trained(configured, tmp_path_factory) -> Path:
    """A run that may make ``CALLS`` calls from now on."""
    path = tmp_path_factory.mktemp("runs") / "trained"
    run(configured(collection__api_calls="50"), path)
    config = path / "config.toml"
    config.write_text(config.read_text().replace("api_calls = 50", f"api_calls = {CALLS}"))
    return path


PLACES = {
    "tournament": lambda path, out: tournament([str(path), "base"], None, out, games=40),
    "side by side": lambda path, out: side_by_side([str(path), "base"], None, 20, 0, Progress()),
}


@pytest.mark.parametrize("place", [*PLACES])
def test_what_a_run_allows_is_a_limit_wherever_its_members_play(place, trained, server, tmp_path):
    before = len(server.asked)
    with pytest.raises(CallsSpent, match=f"all {CALLS} calls to models behind an API are made"):
        PLACES[place](trained, tmp_path / "out")
    assert len(server.asked) - before == CALLS


def test_an_evaluation_asks_the_model_of_a_role_within_the_limit(trained, server, tmp_path):
    before = len(server.asked)
    assert [*evaluate_program(str(trained), {}, 0, Progress())] == ["odd letters"]
    asked = len(server.asked)
    assert asked > before
    config = trained / "config.toml"
    kept = config.read_text()
    config.write_text(kept.replace(f"api_calls = {CALLS}", "api_calls = 0"))
    try:
        with pytest.raises(CallsSpent, match=r"all 0 calls .* are made\. Allow more$"):
            evaluate_program(str(trained), {}, 0, Progress())
    finally:
        config.write_text(kept)
    assert len(server.asked) == asked


def test_a_best_response_beside_a_model_that_costs_money_says_so_and_stays_within_its_calls(
    trained, server, tmp_path
):
    class Saying(Progress):
        said = ""

        def say(self, line):
            self.said += line

    before, progress = len(server.asked), Saying()
    budget = Budget(updates=1, games=60, calls=12)
    found = exploit(AgentQuery(str(trained)), tmp_path / "answer", budget, progress=progress)
    assert f"{server.name}: at most 12 calls" in progress.said
    assert len(server.asked) - before == found.calls == 12
    assert 0 < found.rounds < found.planned_rounds == 30


def test_games_of_payoffs_in_training_are_within_the_limit(configured, server, tmp_path):
    before = len(server.asked)
    league = OPPONENTS | {
        "population__sample_mode": "meta-nash",
        "population__payoff_games": "40",
        "learning__steps": "4",
        "collection__api_calls": "30",
    }
    with pytest.raises(CallsSpent, match="all 30 calls"):
        run(configured(**league), tmp_path / "run")
    assert len(server.asked) - before == 30


def test_a_psro_counts_all_its_calls_and_pays_for_nothing_twice(configured, server, tmp_path):
    def asked(directory, limit):
        """Return how many calls are made, and how it ends if it cannot."""
        before, problem = len(server.asked), ""
        changes = {"psro__solver": "uniform", "psro__payoff_games": "8", "psro__iterations": "2"}
        allowed = {} if limit is None else {"collection__api_calls": str(limit)}
        try:
            psro(configured(**changes, **allowed), tmp_path / directory)
        except InputError as error:
            problem = str(error)
        return len(server.asked) - before, problem

    whole, problem = asked("whole", None)
    assert not problem
    first, problem = asked("psro", 6)
    assert problem.startswith("collection.api_calls: all 6 calls to models behind an API are made")
    assert first == 6
    second, problem = asked("psro", whole - 1)
    assert problem.startswith(f"collection.api_calls: all {whole - 1} calls"), "all of them count together"
    third, problem = asked("psro", whole)
    assert not problem
    assert first + second + third == whole, "what was paid for is not asked again"
