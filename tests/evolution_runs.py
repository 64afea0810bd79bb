"""Runs of a league whose players are replaced."""

from pathlib import Path

from game_runs import configure
from league_runs import LEAGUE
from sparring.learn.checkpoints import save_adapter
from sparring.run.assembly import build_policy
from tiny_models import perturb_adapter

FAVOURITES = f"{Path(__file__).with_name('short_game.py')}:Favourites"
PLAYERS = ("default", "second", "third")
STEPS = 3
EVOLUTION = LEAGUE | {
    "envs": f'[{{id = "{FAVOURITES}", template = "default"}}]',
    "league__players": "{" + ", ".join(f'{name} = {{role = "main"}}' for name in PLAYERS) + "}",
    "league__evolution": "{every = 2, games = 20}",
    "learning__steps": str(STEPS),
    "collection__games_per_step": "12",
    "evaluation__opponents": "['base']",
    "evaluation__every": "0",
}


def given_adapters(model, path):
    """Save adapters of two players that win more points than the base model; return the settings."""
    config = configure(model, **EVOLUTION)
    policy = build_policy(config.model, config.lora, 0, print)
    for scale, player in enumerate(PLAYERS[1:], start=2):
        perturb_adapter(policy, seed=5)
        policy.load_adapter_state({name: scale * one for name, one in policy.adapter_state().items()})
        save_adapter(path / player, policy, config.model.name)
    return EVOLUTION | {f"start__{player}": str(path / player) for player in PLAYERS[1:]}


def state_of(path, step):
    """Return what a checkpoint has besides weights."""
    return (path / "checkpoints" / f"step-{step:06d}" / "state.json").read_text()
