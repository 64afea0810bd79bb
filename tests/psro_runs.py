"""Short runs of PSRO."""

import json
from pathlib import Path

from sparring.cli.main import main

SMALL = """
[model]
name = "MODEL"
dtype = "float32"
threads = 1
[lora]
rank = 2
[inference]
max_tokens = 10
[buffer]
log_batches = false
[tracking]
games_logged = 2
[learning]
schedule = "constant"
learning_rate = 0.003
max_batch_tokens = 16384
"""


SHORT = f"""{SMALL}
steps = 2
[[envs]]
id = "kuhn_poker"
[collection]
games_per_step = 8
[run]
save_every = 1
[evaluation]
every = 2
games = 4
nash_conv = true
[psro]
iterations = 2
payoff_games = 20
solver = "uniform"
"""


THREE = "kuhn_poker(players=3)"
OF_THREE = SHORT.replace('id = "kuhn_poker"', f'id = "{THREE}"\nnum_players = 3')
OF_THREE = OF_THREE.replace("iterations = 2\npayoff_games = 20", "iterations = 1\npayoff_games = 6")


def configuration(folder: Path, text: str, model: Path) -> Path:
    file = folder / "game.toml"
    file.write_text(text.replace("MODEL", str(model)))
    return file


def psro(file: Path, *options: object) -> int:
    """Run the command; its directory is ``psro`` beside the configuration."""
    return main(
        ["psro", str(file), "--run.directory", str(file.parent), "--name", "psro", *map(str, options)]
    )


def state_of(directory: Path) -> dict:
    return json.loads((directory / "psro.json").read_text())
