"""``sparring export --rldoctor``: a run's metrics in the words of rl-doctor, which diagnoses runs too.

It reads an object a line, with ``step`` and the fields that ``rl-doctor fields`` lists. What a run has not
measured is left out, and its checks of that are skipped. What was evaluated before the first update is at
step 0. A run of games has no ``reward_mean``, which says nothing between equals. ``eval_score`` is the first
of a program's measures, of the tasks or of the matches.
"""

import json
from pathlib import Path
from statistics import fmean

from sparring.core import InputError
from sparring.core.files import check_kinds, write_users_file, writing
from sparring.evaluation.figures import ACCURACY
from sparring.run.run_names import find_run
from sparring.view.evaluations import decisive, of_program, of_tasks
from sparring.view.run_view import REWARD, RunView
from sparring.view.source import RunDirectorySource, read_to_end

SUFFIX = ".jsonl"
NAMES = {
    "program/equal_group_share": "zero_var_group_frac",
    "program/group_size": "group_size",
    "answers/entropy_estimate": "entropy",
    "answers/tokens": "response_len_mean",
    "answers/cut_share": "response_len_clip_ratio",
}
OF_LEARNERS = {
    "loss": "policy_loss",
    "grad_norm": "grad_norm",
    "learning_rate": "lr",
    "clip_fraction": "pg_clipfrac",
    "explained_variance": "value_explained_var",
    "step_seconds": "time_per_step",
}
"""Of several policies, their mean."""


def export_rldoctor(name: str, out: Path) -> int:
    """Write a run's metrics to a new file; return the number of updates.

    Raises:
        InputError: there is no such run, it has no update, or ``out`` exists or has another ending.
        SparringError: ``out`` cannot be written.
    """
    if out.suffix != SUFFIX:
        raise InputError("OUT", f"{out} is no name of a file of JSON lines", f"End it in {SUFFIX}")
    if out.exists():
        raise InputError("OUT", f"{out} exists already", "Name a new file")
    path = find_run(name)
    check_kinds(path)
    run = read_to_end(RunDirectorySource(path))
    updates = len({*run.metric("step").steps})
    if not updates or run.tuning is not None:
        raise InputError("RUN", f"{name} has no update of sparring train", "Name a run that has one")
    lines = _lines(run)
    content = "".join(json.dumps({"step": step, **lines[step]}) + "\n" for step in sorted(lines))
    with writing(out):
        write_users_file(out, content.encode())
    return updates


def _lines(run: RunView) -> dict[int, dict[str, float]]:
    """Return the fields by update."""
    values: dict[int, dict[str, list[float]]] = {int(step): {} for step in run.metric("step").steps}
    read = [(field, run.metric(name)) for name, field in NAMES.items()]
    read += [
        (OF_LEARNERS[measure], series)
        for name, series in run.under("learner/").items()
        if (measure := name.rpartition("/")[2]) in OF_LEARNERS
    ]
    read += [("reward_mean", series) for series in run.under(REWARD).values()]
    read += [
        (f"rewards/{name.split('/', 1)[1].replace('/', '.')}/mean", series)
        for name, series in run.under("program/metric/").items()
        if "/" in name
    ]
    for field, series in read:
        for step, value in zip(series.steps, series.values, strict=True):
            values.setdefault(int(step), {}).setdefault(field, []).append(value)
    measured = [*of_program(run.figures).values(), *of_tasks(run.figures, ACCURACY).values()]
    for update, figure in next(iter([*measured, *decisive(run.figures).values()]), {}).items():
        values.setdefault(update, {})["eval_score"] = [figure.value]
    return {step: {field: fmean(found) for field, found in fields.items()} for step, fields in values.items()}
