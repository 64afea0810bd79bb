"""A finished run goes on to a larger number of updates, if nothing was to change until its last one."""

import pytest
from rich.console import Console

from selfplay.core import InputError
from selfplay.training.single_process import resume
from test_training_local import (  # noqa: F401 - a fixture
    FEWER_GAMES,
    MAGNET,
    configure,
    differences,
    fingerprint,
    metrics_of,
    model,
    run,
)

CONSTANT = {"learning__schedule": "constant", "evaluation__games_during": "2"} | FEWER_GAMES | MAGNET


def test_a_run_that_is_made_longer_equals_one_that_was_so_from_the_start(model, tmp_path):  # noqa: F811
    whole, longer = tmp_path / "whole", tmp_path / "longer"
    run(configure(model, **CONSTANT, learning__steps="4"), whole)
    run(configure(model, **CONSTANT, learning__steps="2"), longer)
    with pytest.raises(InputError, match=r"is finished \(2 of 2 updates\)"):
        resume(longer, Console(quiet=True))
    resume(longer, Console(quiet=True), {"learning.steps": "4"})
    assert len(metrics_of(longer)) == 4
    assert differences(fingerprint(whole), fingerprint(longer)) == []
    with pytest.raises(InputError, match=r"is finished \(4 of 4 updates\)"):
        resume(longer, Console(quiet=True))


def test_the_number_of_updates_stays_where_something_changes_until_the_last_one(model, tmp_path):  # noqa: F811
    path = tmp_path / "run"
    run(configure(model, **FEWER_GAMES, learning__steps="2"), path)
    saved = (path / "config.toml").read_text()
    with pytest.raises(InputError, match=r"learning\.learning_rate of this run changes until update 2"):
        resume(path, Console(quiet=True), {"learning.steps": "4"})
    constant = saved.replace('schedule = "cosine"', 'schedule = "constant"')
    (path / "config.toml").write_text(constant)
    with pytest.raises(InputError, match=r"regulariser_weight of this run changes until update 2"):
        resume(path, Console(quiet=True), {"learning.steps": "4"})
    with pytest.raises(InputError, match=r"learning\.steps: is 1, but the run has made 2 updates"):
        resume(path, Console(quiet=True), {"learning.steps": "1"})
    assert (path / "config.toml").read_text() == constant
