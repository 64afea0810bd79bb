"""Thirty kills of a league of a program, in one process."""

import functools
import shutil

import pytest

from league_kills import PLACES, acting, train_and_kill
from program_leagues import league_of, resume_and_compare
from program_runs import run
from sparring.config.loading import dump_config

pytestmark = pytest.mark.slow

CALLS = {"update": 5, "freeze": 8, "start_again": 2, "keep": 6, "publish": 8}
"""How often the places of ``league_kills`` are called in the run."""
MOMENTS = [f"{place}-{call}" for place, calls in CALLS.items() for call in range(1, calls + 1)]


@pytest.fixture(scope="module")
def config(model, tmp_path_factory):
    return league_of("own", model, tmp_path_factory.mktemp("program"))


@pytest.fixture(scope="module")
def whole(config, tmp_path_factory):
    """A finished run and, by moment, a copy of its directory as a kill leaves it."""
    path = tmp_path_factory.mktemp("league")
    with pytest.MonkeyPatch.context() as patch:
        for moment in MOMENTS:
            place, _, call = moment.partition("-")
            copy = functools.partial(shutil.copytree, dst=path / moment)
            patch.setattr(PLACES[place], place, acting(place, int(call), copy))
        run(config, path / "run")
    return path


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_league_that_was_killed_goes_on_as_if_it_had_not_been(whole, moment):
    resume_and_compare(whole / moment, whole / "run")


def test_a_league_whose_process_was_killed_goes_on_as_if_it_had_not_been(config, whole, tmp_path):
    file = tmp_path / "config.toml"
    file.write_text(dump_config(config))
    train_and_kill(file, tmp_path / "run", "start_again", 2)
    resume_and_compare(tmp_path / "run", whole / "run")
