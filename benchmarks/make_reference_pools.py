"""Make the reference pools that ship, in ten minutes: ``python benchmarks/make_reference_pools.py``.

What members earn is computed exactly where OpenSpiel lists a game's positions; elsewhere they play.
"""

from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from sparring.commands.reference_adapters import RUN, own_hashes, pool_members, train_reference
from sparring.commands.tournament import tournament
from sparring.core import InputError
from sparring.core.files import write_file
from sparring.envs.catalog import library_of
from sparring.envs.scripted import PLAYER_NAMES, make_player
from sparring.evaluation.exact_payoffs import exact_payoff
from sparring.evaluation.reference import FILE, ReferencePool, range_of
from sparring.population.ratings import ratings_of_shares
from sparring.run.checks import check_opponent

GAMES = (
    "kuhn_poker",
    "leduc_poker",
    "liars_dice(dice_sides=3)",
    "liars_dice",
    "nim",
    "tic_tac_toe",
    "connect_four(rows=4,columns=4,x_in_row=3)",
    "TicTacToe-v0-train",
    "KuhnPoker-v0-train",
    "ConnectFour-v0-train",
)
ADAPTERS = {"liars_dice": (2, 6)}
"""The updates after which the adapters of a game's run are members."""
PLAYED = 2000
"""Games of a pair whose payoff is not computed."""
_DIGITS = 6


def make_pool(env_id: str) -> ReferencePool:
    """Return the pool of a game: all scripts that can play it, and the adapters that are trained here."""
    scripts, names = scripts_of(env_id), [f"{RUN}@{step}" for step in ADAPTERS.get(env_id, ())]
    pool = ReferencePool(env_id, scripts + names, [], [], [], dict.fromkeys(names, ""))
    pool = msgspec.structs.replace(pool, adapters=own_hashes(pool))
    is_exact = library_of(env_id) == "openspiel" and not names
    mean_MM, error_MM = (_exact if is_exact else _played)(env_id, pool_members(pool))
    low, high = range_of(env_id)
    ratings_M = ratings_of_shares((mean_MM - low) / (high - low))
    return msgspec.structs.replace(
        pool,
        mean=mean_MM.round(_DIGITS).tolist(),
        error=error_MM.round(_DIGITS).tolist(),
        ratings=ratings_M.round(2).tolist(),
    )


def scripts_of(env_id: str) -> list[str]:
    """Return the names of the scripts that can play a game."""
    return [name for name in PLAYER_NAMES if _can_play(name, env_id)]


def _can_play(name: str, env_id: str) -> bool:
    try:
        check_opponent(name, env_id)
    except InputError:
        return False
    return True


def _exact(env_id: str, members: Sequence[str]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    players = [make_player(name, env_id, seed=0) for name in members]
    first_MM, second_MM = np.array(
        [[exact_payoff(env_id, (row, column)) for column in players] for row in players]
    ).transpose(2, 0, 1)
    return (first_MM + second_MM.T) / 2, np.zeros(first_MM.shape)


def _played(env_id: str, members: Sequence[str]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    with TemporaryDirectory() as out:
        matrix = tournament(members, env_id, Path(out, "pool"), games=PLAYED).rankings.matrix
    assert matrix is not None, "the game is for two"
    return matrix.mean_MM, matrix.error_MM


if __name__ == "__main__":
    for game in ADAPTERS:
        train_reference(game, Console())
    made = msgspec.json.encode([make_pool(env_id) for env_id in GAMES])
    write_file(Path(str(files("sparring.evaluation").joinpath(FILE))), made + b"\n")
