"""The saved state that a run continues from, checked before anything on disk changes."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from pydantic import ValidationError

from sparring.config import Config
from sparring.core import InputError
from sparring.core.adapters import STATE_FILE
from sparring.core.errors import DamagedState
from sparring.core.manifest import check_files, damaged
from sparring.learn.base_fingerprint import check_base, fingerprint
from sparring.learn.saved_states import newest_whole
from sparring.run.resumed_config import changed_fields, check_steps
from sparring.run.run_directory import RunDirectory
from sparring.run.run_logs import changed_logs, check_logs
from sparring.run.saved_state import SavedState, read_saved_state


def check_resume(directory: RunDirectory, config: Config) -> list[str]:
    """Check what a run has saved, and set aside the newest states that are damaged, if an older one is whole.

    A run on Ray has its own states in ``learner/``, and its tracker its own account of ``metrics.jsonl``.

    Returns:
        Lines to show: what was damaged, and which fields of the configuration have changed.

    Raises:
        DamagedState: nothing that is saved is whole; nothing is changed.
        InputError: the state was saved with other settings, on another base model or by another version of
            sparring; nothing is changed.
    """
    on_ray = config.run.runtime == "ray"
    learned = directory.path / "learner"
    saved = sorted(int(path.name) for path in learned.glob("*") if path.name.isdigit()) if on_ray else []
    numbers = saved if on_ray else directory.saved_steps()
    if not numbers:
        return []

    def place(number: int) -> Path:
        return learned / f"{number:06d}" if on_ray else directory.checkpoint(number)

    (state, changed), notice = newest_whole(numbers, place, partial(_load, directory, config, place))
    lines = [] if notice is None else [notice]
    lines += changed
    others = [number for number in directory.saved_steps() if on_ray or number != state.step]
    for kept in [*map(directory.checkpoint, others), *map(directory.best, directory.best_steps())]:
        try:
            check_files(kept)
        except DamagedState as error:
            lines.append(f"{error.problem}; it is not needed to continue")
    if isinstance(state.logs, dict):
        for name in changed_logs(directory.path, state.logs):
            lines.append(f"{directory.path / name} is not what the run wrote; nothing is trained on it")
    return lines


def _load(
    directory: RunDirectory, config: Config, place: Callable[[int], Path], number: int
) -> tuple[SavedState, list[str]]:
    """Return a saved state and the lines on the configuration."""
    state, _ = read_saved_state(place(number), number)
    if not isinstance(state.config, dict) or not isinstance(state.logs, dict):
        return state, []
    if config.run.runtime == "local":
        deciding = bool(config.evaluation.patience or config.run.keep_best)
        check_logs(directory.path, state.logs, deciding)
    for copy in _copies(directory, state):
        check_files(copy)
    base = fingerprint(config.model.name)
    check_base(place(number), base, "model.name")
    try:
        began = Config.model_validate(state.config)
    except ValidationError as error:
        raise damaged(place(number) / STATE_FILE) from error
    if not base and config.model.name != began.model.name:
        problem = f"is {config.model.name}, but the run began with {began.model.name}"
        raise InputError("model.name", problem, "Put it back.")
    check_steps(directory, began, config.learning.steps)
    return state, changed_fields(began, config)


def _copies(directory: RunDirectory, state: SavedState) -> list[Path]:
    """Return the directories of the adapters that a run in one process plays with besides its policies."""
    given = [path for path in sorted(directory.given.glob("[!.]*")) if path.is_dir()]
    pool = state.source.get("pool", {}) if isinstance(state.source, dict) else {}
    frozen = []
    for member in pool.get("models", []):
        place = directory.population / member["uid"]
        if member["path_or_name"] == f"population/{member['uid']}" and (
            member["retired"] is None or place.exists()
        ):
            frozen.append(place)
    return given + frozen
