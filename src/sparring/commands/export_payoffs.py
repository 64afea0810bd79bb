"""``sparring export --payoffs``: what the members of a run's pool earned against each other."""

import json
import shutil
from pathlib import Path
from typing import Any

from sparring.config.loading import load_config
from sparring.core import InputError, SparringError
from sparring.core.files import put_in_place, users_scratch_for
from sparring.evaluation.tournament_files import write_payoffs
from sparring.population import PayoffTable
from sparring.run.run_directory import RunDirectory
from sparring.run.run_names import find_checkpoint, find_run, split_checkpoint


def export_payoffs(name: str, out: Path) -> None:
    """Write the payoffs that a checkpoint of a run has as JSON and CSV into a new directory.

    Args:
        name: a run, with or without a checkpoint.
        out: the directory to write, which must not exist.

    Raises:
        InputError: there is no such run or checkpoint, it has no payoffs, or ``out`` cannot be made.
        SparringError: ``out`` cannot be written.
    """
    if out.exists():
        raise InputError("OUT", f"{out} exists already", "Name a new directory.")
    run_name, checkpoint = split_checkpoint(name)
    run = RunDirectory.open(find_run(run_name))
    place = find_checkpoint(run, checkpoint, name)
    table, members = _payoffs_of(place, name)
    config = load_config(str(run.config_file), {})
    about = {
        "run": run.path.resolve().name,
        "update": int(place.name.rpartition("-")[2]),
        "env_ids": [env.name for env in config.envs],
    }
    try:
        scratch = users_scratch_for(out)
    except OSError as error:
        raise InputError("OUT", f"{out} cannot be made ({error.strerror})", "Name another place.") from error
    try:
        write_payoffs(scratch, about, table, members)
        put_in_place(scratch, out)
    except OSError as error:
        raise SparringError(f"{out} cannot be written ({error})") from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _payoffs_of(checkpoint: Path, name: str) -> tuple[PayoffTable, list[str]]:
    """Return the payoffs in a checkpoint, and its members in the order in which they joined the pool."""
    file = checkpoint / "state.json"
    if not file.is_file():
        problem = "only the adapter of this checkpoint was kept"
        raise InputError(name, problem, "Name another checkpoint, or none for the last")
    try:
        pool: dict[str, Any] = json.loads(file.read_text()).get("source", {}).get("pool", {})
        table = PayoffTable()
        if "played" in pool:
            table.load_state_dict(pool["played"])
        played = {*table.members()}
        members = [one["uid"] for one in pool.get("models", []) if one["uid"] in played]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(str(file), "is damaged", "Name another checkpoint") from error
    if not members:
        problem = "no member of a pool has played up to this checkpoint"
        raise InputError(name, problem, "Name a later one, of a run that plays games")
    return table, members
