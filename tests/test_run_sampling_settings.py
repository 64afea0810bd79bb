"""How answers are drawn is set alike for games and programs: for the run, and for a game or a role."""

from game_runs import SMALL, metrics_of, run
from program_runs import configure as configured_program
from sparring.collection.rollout_log import RolloutLog
from sparring.config import load_config

LETTERS = "abcdefghijklm"
SHOWN = {"tracking.games_logged": "100", "learning.steps": "2"}
RUN = {"inference.temperature": "0.5", "inference.max_tokens": "12", "inference.stop": str(list(LETTERS))}
GAMES = """
[[envs]]
id = "kuhn_poker"
[[envs]]
id = "leduc_poker"
temperature = 0.8
max_tokens = 3
stop = []
"""


def steps_of(path):
    return [step for _, rollout in RolloutLog(path / "rollouts") for step in rollout.steps]


def mismatch(path, name):
    return max(line[f"{name}/mismatch"] for line in metrics_of(path))


def test_a_games_own_settings_take_the_place_of_the_runs(model, tmp_path):
    (tmp_path / "games.toml").write_text(GAMES)
    config = load_config(str(tmp_path / "games.toml"), SMALL | SHOWN | RUN | {"model.name": str(model)})
    run(config, tmp_path / "run")
    steps = steps_of(tmp_path / "run")
    kuhn, leduc = ([one for one in steps if one.env_id == name] for name in config.play.names)
    assert ({one.temperature for one in kuhn}, {one.temperature for one in leduc}) == ({0.5}, {0.8})
    assert 3 < max(len(one.completion_token_ids) for one in kuhn) <= 12
    assert max(len(one.completion_token_ids) for one in leduc) == 3
    assert not any(set(LETTERS) & set(one.completion_text) for one in kuhn)
    assert any(set(LETTERS) & set(one.completion_text) for one in leduc)
    assert mismatch(tmp_path / "run", "learner") < 1e-4, "the learner divides by each game's temperature"


def test_a_roles_own_settings_take_the_place_of_the_runs(model, tmp_path):
    own = {"roles.Hider.temperature": "0.8", "roles.Hider.max_tokens": "16", "roles.Hider.stop": "[]"}
    changes = {name.replace(".", "__"): value for name, value in (SHOWN | RUN | own).items()}
    run(configured_program(model, tmp_path, **changes), tmp_path / "run")
    steps = steps_of(tmp_path / "run")
    hider = [one for one in steps if one.role_id == "Hider"]
    seeker = [one for one in steps if one.role_id == "Seeker"]
    assert ({one.temperature for one in seeker}, {one.temperature for one in hider}) == ({0.5}, {0.8})
    assert max(len(one.completion_token_ids) for one in seeker) == 4, "the limit in the program"
    assert max(len(one.completion_token_ids) for one in hider) == 16
    assert not any(set(LETTERS) & set(one.completion_text) for one in seeker)
    assert any(set(LETTERS) & set(one.completion_text) for one in hider)
    for policy in ("hider", "seeker"):
        assert mismatch(tmp_path / "run", f"learner/{policy}") < 1e-4
