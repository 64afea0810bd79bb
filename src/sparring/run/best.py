"""What evaluations decide: which adapters ``best/step-000040`` keeps, and when the run has settled."""

from collections.abc import Awaitable, Callable, Iterable
from difflib import get_close_matches
from pathlib import Path

import msgspec

from sparring.collection.serialization import UNREADABLE
from sparring.config import Config
from sparring.config.play import Games
from sparring.config.population import EvaluationSettings
from sparring.core import InputError
from sparring.core.adapters import MEASURED_FILE
from sparring.core.errors import DamagedState
from sparring.core.files import put_in_place, remove_directory, scratch_for
from sparring.core.manifest import check_files, seal
from sparring.evaluation.figures import MASS, NASH_CONV, Figure, FigureName, match_figure_names, read_figures
from sparring.evaluation.results import MatchResult, evaluated_steps, read_evaluation
from sparring.run.evaluation_opponents import evaluation_opponents, measures_nash_conv
from sparring.run.run_directory import RunDirectory

FIELD = "run.keep_best"
SMALLEST = "smallest "
"""Before the name of a program's measure: less of it is better."""


class Measured(msgspec.Struct):
    """By what adapters were kept: the update, the configured figure, and its value."""

    step: int
    keep_best: str
    value: float


async def keep_if_best(
    run: RunDirectory, keep_best: str | None, step: int, write: Callable[[Path], Awaitable[None]]
) -> None:
    """Keep the adapters of update ``step`` if its evaluation is the best so far; of equal ones, the newest.

    A repeated call changes nothing. Neither the untrained model is kept, nor a policy that cannot be played,
    whatever its NashConv. An earlier best stays until the run can no longer be resumed from before the new
    one. ``write`` writes the evaluated adapters with the layout of a checkpoint. Raises InputError if the
    first evaluation has no such figure, or several.
    """
    if keep_best is None:
        return
    figures = read_figures(run.evaluation, step)
    if step == 0:
        _meant(keep_best, [figure.name for figure in figures])
        return
    run.check_epoch()
    found = [figure for figure in figures if is_kept_by(figure, keep_best)]
    if len(found) == 1 and _is_best(run, keep_best, step, found[0]):
        scratch = scratch_for(run.best(step))
        await write(scratch)
        measured = msgspec.json.encode(Measured(step, keep_best, found[0].value))
        (scratch / MEASURED_FILE).write_bytes(measured)
        seal(scratch)
        put_in_place(scratch, run.best(step))
    else:  # of an evaluation that was interrupted, and has other results now
        remove_directory(run.best(step))
    oldest_resume = min(run.saved_steps(), default=0)
    for older in [kept for kept in run.best_steps() if kept <= oldest_resume][:-1]:
        remove_directory(run.best(older))


def is_kept_by(figure: Figure, keep_best: str | None) -> bool:
    """Whether ``run.keep_best`` means this figure."""
    return keep_best is not None and figure.name.is_meant_by(keep_best.removeprefix(SMALLEST))


def is_smaller_better(figure: Figure, wanted: str) -> bool:
    """Whether less of a figure is better: of a program's measure, if it was asked for so."""
    return figure.smaller_is_better or wanted.startswith(SMALLEST)


def check_keep_best(config: Config) -> None:
    """Check that the run will measure what decides which adapter is the best.

    A program's figures are only known once it is evaluated.
    """
    keep_best = config.run.keep_best
    if keep_best is None:
        return
    if not config.evaluation.every:
        raise InputError(
            FIELD, "nothing is measured between the first update and the last", "Set evaluation.every"
        )
    check_figure(config, keep_best, FIELD)


def check_figure(config: Config, wanted: str, field: str) -> FigureName | None:
    """Return the figure of a run's evaluations that is meant; ``None`` for a program, whose are not known.

    Raises InputError if they have no such figure, or several; ``field`` is its name in the error.
    """
    if not isinstance(config.play, Games):
        return None
    names = [
        name
        for env in config.evaluated
        for opponent in evaluation_opponents(config, env) or [""]
        for name in match_figure_names(config.label(env), opponent)
    ]
    exact = [config.label(env) for env in config.evaluated if measures_nash_conv(config, env)]
    names += [FigureName(name, label) for label in exact for name in (NASH_CONV, MASS)]
    return _meant(wanted, names, field)


def _is_best(run: RunDirectory, keep_best: str, step: int, figure: Figure) -> bool:
    best = _value_before(run, keep_best, step)
    if best is None or not figure.is_playable:
        return figure.is_playable
    return figure.value <= best if is_smaller_better(figure, keep_best) else figure.value >= best


def _value_before(run: RunDirectory, keep_best: str, step: int) -> float | None:
    """Return the best value of the updates before ``step``; ``None`` if none is kept whole by this figure."""
    for kept in reversed([earlier for earlier in run.best_steps() if earlier < step]):
        try:
            check_files(run.best(kept))
            measured = msgspec.json.decode((run.best(kept) / MEASURED_FILE).read_bytes(), type=Measured)
        except (DamagedState, *UNREADABLE):
            continue
        return measured.value if measured.keep_best == keep_best else None
    return None


def _meant(wanted: str, names: Iterable[FigureName], field: str = FIELD) -> FigureName:
    """Return the only figure that is meant."""
    wanted = wanted.removeprefix(SMALLEST)
    possible = list(dict.fromkeys(names))
    meant = [name for name in possible if name.is_meant_by(wanted)]
    if len(meant) == 1:
        return meant[0]
    alone = len({name.env_id for name in possible}) == 1
    shown = [name.name if alone else str(name) for name in meant or possible]
    close = get_close_matches(wanted, shown, n=1)
    problem = f"{wanted!r} may mean several figures" if meant else f"no evaluation measures {wanted!r}"
    names_text = ", ".join(f'"{name}"' for name in shown)
    fix = f'Did you mean "{close[0]}"?' if close and not meant else f"Use one of {names_text}"
    raise InputError(field, problem, fix)


def has_settled(directory: Path, settings: EvaluationSettings) -> bool:
    """Whether none of the last ``patience`` evaluations found a better policy.

    Only scheduled evaluations count, every ``every`` updates: an extra one after the last update is ignored,
    so that extending a run does not change when it settles.

    An evaluation finds a better policy if the lower end of the 95% interval of the mean reward in one of its
    matches is above the best mean so far; then that mean becomes the best, and smaller steps add up. The
    first evaluation counts as better. A match with fewer than two finished games says nothing.
    """
    if not (settings.patience and settings.every):
        return False
    best: dict[tuple[str, str], float] = {}
    since = 0
    for step in evaluated_steps(directory):
        if step % settings.every:
            continue
        better, measured = False, False
        for path in sorted(directory.glob(f"step-{step:06d}-*.json")):
            _, match = read_evaluation(path)
            if not isinstance(match, MatchResult) or match.games < 2:
                continue
            measured = True
            played, reward = (match.env_id, match.opponent), match.mean_reward
            if played not in best or reward.low > best[played]:
                best[played], better = reward.mid, True
        since = 0 if better else since + measured
    return since >= settings.patience
