"""Continue a run: from which state and with which configuration, checked before anything on disk changes."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from pydantic import ValidationError

from sparring.config import Config, load_config
from sparring.config.loading import flat_fields
from sparring.core import InputError
from sparring.core.adapters import STATE_FILE
from sparring.core.errors import DamagedState, renaming
from sparring.core.manifest import check_files, damaged
from sparring.learn.model_files import check_base, fingerprint
from sparring.learn.saved_states import newest_whole
from sparring.run.best import has_settled
from sparring.run.run_directory import RunDirectory
from sparring.run.run_layout import PSRO_FILE
from sparring.run.saved_state import SavedState, changed_logs, check_logs, read_saved_state

STEPS, ADDRESS, STORE = "learning.steps", "ray.address", "run.store"
CALLS = "collection.api_calls"
CHANGEABLE = (STEPS, ADDRESS, STORE, CALLS)
"""The fields that a resume may change: the number of updates, the addresses of a cluster and a store that
have moved, and the calls to models behind an API."""
_NO_RESULTS = (
    "run.save_every",
    "run.keep_checkpoints",
    "run.directory",
    STORE,
    CALLS,
    "model.name",
    "model.threads",
    "model.device",
    "evaluation.nash_conv_minutes",
    "evaluation.tasks",
)
_NO_RESULTS_OF = ("tracking.", "ray.", "evaluation.tasks.")
"""Fields that may be edited between the starts of a run, or sections of such: they change no results, or only
how sums are rounded. The base model is known by its files, whatever its name."""
_OWN_COPIES = ("start.", "frozen.")
"""The adapters that a run has copied when it began."""
_ABSENT = object()


def resumed_config(directory: RunDirectory, changes: Mapping[str, str | None]) -> Config:
    """Return the configuration with which a run goes on.

    ``changes`` are values of fields among ``CHANGEABLE``; ``None`` leaves a field out. Raises InputError if a
    change is wrong or not possible, or the run is finished.
    """
    for field in sorted(changes.keys() - set(CHANGEABLE)):
        raise InputError(field, "cannot change in a run that has begun", "Leave it out.")
    config = load_config(str(directory.config_file), changes)
    if STEPS in changes:
        check_steps(directory, load_config(str(directory.config_file), {}), config.learning.steps)
    # In a single process, the updates of damaged checkpoints are made again. Ray has states of its own.
    if config.run.runtime == "ray" or not directory.ends_damaged():
        directory.check_unfinished(config.learning.steps)
    return config


def check_steps(directory: RunDirectory, before: Config, steps: int) -> None:
    """Raise an InputError if a run cannot be made longer, to ``steps`` updates."""
    present = before.learning.steps
    if steps == present:
        return
    if (directory.path.absolute().parent / PSRO_FILE).is_file():
        raise InputError(STEPS, f"{directory.path} belongs to a PSRO, which decides it", "Leave it out.")
    if steps < present:
        raise InputError(
            STEPS, f"is {steps}, but the run has {present} updates", f"Give --{STEPS} {present + 1} or more."
        )
    if has_settled(directory.evaluation, before.evaluation):
        raise InputError(
            STEPS,
            "the run has settled (evaluation.patience), so it would make no more updates",
            "Leave it out.",
        )
    # A program's policies are known when it is built; one without settings of its own has those of the run.
    policies = before.policies if before.program is None else [*before.learning.policies, "another"]
    for field in before.learning.scheduled(policies):
        raise InputError(
            STEPS,
            f"{field} of this run changes until update {present}, so it can have no other number",
            f"Begin a new run with --{STEPS} {steps}.",
        )


def changed_fields(began: Config, now: Config) -> list[str]:
    """Return a line if the configuration has changed since a checkpoint in fields that change no results.

    Raises InputError if it has changed in others.
    """
    before, after = (flat_fields(config.model_dump(mode="json")) for config in (began, now))
    names = [
        name
        for name in dict.fromkeys([*before, *after])
        if before.get(name, _ABSENT) != after.get(name, _ABSENT)
        and not (name.startswith(_OWN_COPIES) and name in before and name in after)
    ]
    for name in names:
        if name != STEPS and name not in _NO_RESULTS and not name.startswith(_NO_RESULTS_OF):
            one, other = (_text(values.get(name, _ABSENT)) for values in (before, after))
            raise InputError(
                name,
                f"is {other} in config.toml, but the run has learned with {one}",
                "Put it back, or begin a new run with [start]",
            )
    return [f"changed since the last checkpoint: {', '.join(names)}"] if names else []


def _text(value: object) -> str:
    return "absent" if value is _ABSENT else f"{value!r:.60}"


def check_resume(directory: RunDirectory, config: Config) -> list[str]:
    """Check what a run has saved, and set aside the newest states that are damaged, if an older one is whole.

    A run on Ray has its own states in ``learner/``, and its tracker its own account of ``metrics.jsonl``.
    Returns lines to show: what was damaged, and which fields of the configuration have changed.

    Raises:
        DamagedState: nothing that is saved is whole; nothing is changed.
        InputError: the state was saved with other settings, on another base model or by another version of
            sparring; nothing is changed.
    """
    on_ray = config.run.runtime == "ray"
    numbers = directory.saved_updates() if on_ray else directory.saved_steps()
    place = directory.saved_update if on_ray else directory.checkpoint
    if not numbers:
        return []
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
    state, _ = read_saved_state(place(number), number)
    if not isinstance(state.config, dict) or not isinstance(state.logs, dict):
        if config.run.runtime == "local":
            raise damaged(place(number) / STATE_FILE)
        return state, []
    if config.run.runtime == "local":
        deciding = bool(config.evaluation.patience or config.run.keep_best)
        check_logs(directory.path, state.logs, deciding)
    for copy in _copies(directory, state):
        check_files(copy)
    with renaming({"model": "model.name"}):
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
