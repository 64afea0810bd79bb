"""A preset for another game measures what this game has, and says what it leaves out."""

import pytest

from matrices import one_of_each
from sparring.config import load_config, preset_names
from sparring.core import InputError
from sparring.run.checks import check_config
from sparring.run.configuration import load_fitted

GAME_PRESETS = [name for name in preset_names() if load_config(name, {}).program is None]


CAN = {
    "leduc_poker": {"random", "optimal", "NashConv"},
    "tic_tac_toe": {"random", "optimal"},
    "ConnectFour-v0-train": {"random"},
    "LiarsDice-v0-small-train": set(),
    "failing_code.py:Count": {"random"},
    "short_game.py:Talk": set(),
}


@pytest.mark.parametrize(("preset", "game"), one_of_each(GAME_PRESETS, list(CAN)))
def test_measures_that_the_game_does_not_have_are_left_out_and_named(preset, game, monkeypatch):
    can = CAN[game]
    monkeypatch.chdir("tests")
    before = load_config(preset, {})
    config, notes = load_fitted(preset, {"envs.0.id": game})
    named = before.evaluation.opponents or []
    left = [name for name in named if name in can]
    assert config.evaluation.opponents == (left or None)
    assert config.evaluation.nash_conv == (before.evaluation.nash_conv and "NashConv" in can)
    lost = [name for name in named if name not in can]
    lost += ["NashConv"] if before.evaluation.nash_conv and "NashConv" not in can else []
    assert [note.split(" of the preset ")[0] for note in notes] == lost
    if "random" in can:
        check_config(config)


@pytest.mark.parametrize(
    ("name", "value"), [("evaluation.nash_conv", "true"), ("evaluation.opponents", '["optimal"]')]
)
def test_a_measure_that_the_user_names_is_refused_rather_than_left_out(name, value):
    config, _ = load_fitted("kuhn", {"envs.0.id": "ConnectFour-v0-train", name: value})
    with pytest.raises(InputError, match=r"optimal player|not an OpenSpiel game") as caught:
        check_config(config)
    assert caught.value.field.startswith(name)


def test_nothing_is_left_out_of_a_preset_for_its_own_game():
    for preset in GAME_PRESETS:
        assert load_fitted(preset, {"learning.steps": "3"}) == (
            load_config(preset, {"learning.steps": "3"}),
            [],
        )
