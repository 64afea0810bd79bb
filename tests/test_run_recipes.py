"""Runs of every recipe with a tiny model in one process: a program of one turn and, slowly, Kuhn poker."""

import pytest

from game_runs import SMALL, quiet
from matrices import first_of
from recipe_runs import OVER_LEGAL_ANSWERS, adapter, assert_trained, kuhn
from sparring.config import load_config, recipe_names
from sparring.run.single_process import train

LETTERS = """
from sparring.core import Arena, EpisodeRequest, Role, Rubric, SingleTurnEpisode


def odd_letters(rollout, arena):
    return {"Writer": float(sum(map(ord, rollout.steps[-1].completion_text)) % 2)}


class Write(SingleTurnEpisode):
    episode_type = "write"
    rubric = Rubric([odd_letters])

    def get_initial_actor(self, artifact, state):
        return "Writer"

    def get_initial_prompt(self, arena, artifact, state):
        return f"write {artifact}"


class Letters(Arena):
    def __init__(self, client, *, seed=0):
        super().__init__(client, seed=seed)
        self.add_role(Role("Writer", max_tokens=4))
        self.add_episode("write", Write())

    def get_batch(self):
        return [EpisodeRequest("write", number % 2) for number in range(12)]
"""
PROGRAM = '[program]\ntype = "python"\npath = "letters.py:Letters"\n'
FOR_GAMES = (
    *("collection.games_per_step", "evaluation.games"),
    *("evaluation.games_during", "evaluation.opponents"),
)
BY_DEFAULT = ("a2c", "dapo", "gspo", "reinforce", "rloo", "spo")
"""A critic, groups that are filtered, whole answers, one's own baseline, a group's and a kept one."""
WITHOUT_LEGAL_ANSWERS = sorted(
    (name for name in recipe_names() if name not in OVER_LEGAL_ANSWERS),
    key=lambda name: name not in BY_DEFAULT,
)


def train_on_letters(program, name, model, directory):
    directory.mkdir()
    (directory / "letters.py").write_text(program)
    (directory / "letters.toml").write_text(PROGRAM)
    few = {"learning.steps": "2", "evaluation.every": "0", "model.name": str(model)}
    settings = {field: value for field, value in SMALL.items() if field not in FOR_GAMES} | few
    train(load_config(str(directory / "letters.toml"), settings, name), directory / "run", quiet())
    return directory / "run"


@pytest.mark.parametrize("name", first_of(WITHOUT_LEGAL_ANSWERS, len(BY_DEFAULT)))
def test_every_recipe_trains(name, model, tmp_path):
    assert_trained(train_on_letters(LETTERS, name, model, tmp_path / "letters"), 2)


@pytest.mark.slow
@pytest.mark.parametrize("name", WITHOUT_LEGAL_ANSWERS)
def test_opposite_rewards_teach_every_recipe_something_else(name, model, tmp_path):
    opposite = LETTERS.replace(") % 2)}", ") % 2 == 0)}")
    assert opposite != LETTERS
    first, second = (
        adapter(train_on_letters(program, name, model, tmp_path / folder), 2)
        for folder, program in (("odd", LETTERS), ("even", opposite))
    )
    assert any((first[key] != second[key]).any() for key in first)


@pytest.mark.slow
@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_trains_for_forty_updates_on_kuhn_poker(name, model, tmp_path):
    train(kuhn(model, name), tmp_path / "run", quiet())
    assert_trained(tmp_path / "run", 40)
    assert (tmp_path / "run" / "evaluation" / "step-000040-kuhn_poker-nash-conv.json").exists()
