"""The adapters of reference pools: one run that ships as a configuration, trained here into the user's cache.

The same bytes come of it on a machine of the same kind with the same libraries. Their hashes ship.
"""

from hashlib import sha256
from importlib.resources import files
from pathlib import Path

from rich.console import Console

from sparring.commands.best_response import train_to_the_end
from sparring.config import load_config
from sparring.core import InputError, SparringError
from sparring.core.adapters import ADAPTER_FILE
from sparring.core.env_id import env_name
from sparring.core.files import cache_directory, sha256_of
from sparring.evaluation.reference import REFERENCE, ReferencePool
from sparring.run.run_directory import RunDirectory
from sparring.run.run_names import split_checkpoint
from sparring.view.tables import Row, Table

OWN_REFERENCE = "@own-reference"
"""As ``@reference``, with adapters as they were trained here, whatever their bytes are."""
RUN = "reference"
"""The name of the run, so that its checkpoints are members called ``reference@2``."""
SAME, OTHER, MISSING = "same bytes", "other bytes", "not trained here"


def _configuration(env_id: str) -> Path:
    return Path(str(files("sparring.config").joinpath("pools", f"{env_name(env_id)}.toml")))


def run_of(env_id: str) -> Path:
    """Return the directory of the run whose checkpoints are in the pool of a game."""
    version = sha256(_configuration(env_id).read_bytes()).hexdigest()[:12]
    return cache_directory() / RUN / version / RUN


def train_reference(env_id: str, console: Console) -> None:
    """Train the adapters of a game's pool, or go on where a kill ended that.

    Raises:
        SparringError: the training was interrupted, or had to stop.
    """
    run = run_of(env_id)
    run.parent.mkdir(parents=True, exist_ok=True)
    if not train_to_the_end(load_config(str(_configuration(env_id)), {}), run, console):
        raise SparringError(f"the adapters of {env_id} are not all trained: give the command again")


def own_hashes(pool: ReferencePool) -> dict[str, str]:
    """Return the hashes of those adapters of a pool that are trained here, by member."""
    if not pool.adapters:
        return {}
    run = RunDirectory(run_of(pool.env_id))
    weights = {name: run.checkpoint(int(split_checkpoint(name)[1])) / ADAPTER_FILE for name in pool.adapters}
    return {name: sha256_of(file) for name, file in weights.items() if file.is_file()}


def pool_members(pool: ReferencePool, name: str = REFERENCE) -> list[str]:
    """Return the names by which the members of a pool take part, for ``@reference`` or ``@own-reference``.

    Raises:
        InputError: an adapter is not trained here or, for ``@reference``, has other bytes than ship.
    """
    states = adapter_states(pool)
    if MISSING in states.values():
        problem = f"the adapters of the reference pool of {pool.env_id} are not trained here"
        raise InputError("members", problem, f"Train them: sparring reference --env {pool.env_id} --train")
    if OTHER in states.values() and name != OWN_REFERENCE:
        how = "to other bytes than ship: this is another kind of machine, or has other libraries"
        problem = f"the adapters of the reference pool of {pool.env_id} were trained here {how}"
        raise InputError("members", problem, f"With {OWN_REFERENCE} they play, and results say so")
    places = dict.fromkeys(pool.adapters, "" if not pool.adapters else str(run_of(pool.env_id).parent))
    return [f"{places[one]}/{one}" if one in places else one for one in pool.members]


def adapter_states(pool: ReferencePool) -> dict[str, str]:
    """Return for each adapter of a pool whether it is trained here, and to the bytes that ship."""
    own = own_hashes(pool)
    return {
        name: MISSING if name not in own else SAME if own[name] == shipped else OTHER
        for name, shipped in pool.adapters.items()
    }


def pool_table(pool: ReferencePool) -> Table:
    """Return the members of a pool with their ratings, what random earns against them, and their state."""
    states = adapter_states(pool)
    rows: list[Row] = [
        [name, f"{rating:.0f}", f"{mean:+z.2f}" + (f" ±{1.96 * error:.2f}" if error else ""), kind]
        for name, rating, mean, error, kind in zip(
            pool.members,
            pool.ratings,
            (row[0] for row in pool.mean),
            (row[0] for row in pool.error),
            (states.get(name, "script") for name in pool.members),
            strict=True,
        )
    ]
    heads = ("Member", "Rating", "Against random", "")
    notes = [f"Version {pool.version}. Against random: the mean reward over both seats."]
    return Table(heads, [(pool.env_id, "", rows)], notes)
