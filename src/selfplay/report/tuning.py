"""The tables of a run through fine-tuning jobs: decisions by truth, and jobs. All text is escaped."""

from collections.abc import Iterable, Sequence
from html import escape

from selfplay.read.fine_tuning import FineTuneJob
from selfplay.read.whole_run import WholeRun
from selfplay.report.pieces import in_a_line

VERDICTS = ("accept", "reject", "neither", "none")
TRUTHS = ("right", "wrong")
_BADGES = {"succeeded": "good", "failed": "bad", "cancelled": "warn", "not found": "bad"}


def decisions_html(run: WholeRun) -> str:
    """Return how often each verdict was given on right and on wrong claims; empty if none were counted.

    Tests are shown if there are any, and otherwise the rollouts that are learned from.
    """
    for split in ("test", "train"):
        counts = {name: run.metric(f"decisions/{split}/{name}") for name in _names()}
        steps = sorted({step for one in counts.values() for step in one.steps})
        if steps:
            break
    else:
        return ""
    values = {name: dict(zip(one.steps, one.values, strict=True)) for name, one in counts.items()}
    rows = [
        [
            f"{step:.0f}" if truth == TRUTHS[0] else "",
            f"the claim is {truth}",
            *(f"{values[f'{truth}/{verdict}'].get(step, 0):.0f}" for verdict in VERDICTS),
        ]
        for step in steps
        for truth in TRUTHS
    ]
    head = ("Iteration", "", "accept", "reject", "neither", "no decision")
    note = "Proofs of the test" if split == "test" else "Proofs that are learned from; there were no tests"
    return _table_html(head, (list(map(_cell, row)) for row in rows), f"{note}, by their verdict.")


def jobs_html(run: WholeRun) -> str:
    """Return the jobs with their states; empty for another kind of run, or without any."""
    if run.tuning is None or not run.tuning.jobs:
        return ""
    head = ("Iteration", "Agents", "Method", "Examples", "Starts from", "State", "Model", "Job")
    return _table_html(head, map(_job_row, run.tuning.jobs), "")


def _job_row(job: FineTuneJob) -> list[str]:
    """Return the cells of a job as HTML."""
    badge = f'<span class="badge {_BADGES.get(job.status, "")}">{escape(in_a_line(job.status))}</span>'
    error = f' <span class="muted">{escape(in_a_line(job.error))}</span>' if job.error else ""
    iteration = "" if job.iteration is None else str(job.iteration)
    examples = f"{job.examples:,}" if job.examples else ""
    before = [iteration, job.group, job.method, examples, job.start]
    after = [job.model, job.id]
    return [*map(_cell, before), badge + error, *map(_cell, after)]


def _cell(text: str) -> str:
    return escape(in_a_line(text))


def _names() -> list[str]:
    return [f"{truth}/{verdict}" for truth in TRUTHS for verdict in VERDICTS]


def _table_html(head: Sequence[str], rows: Iterable[Sequence[str]], note: str) -> str:
    """Return a table of cells that are HTML already."""
    heads = "".join(f"<th>{escape(one)}</th>" for one in head)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    below = f'<p class="muted">{escape(note)}</p>' if note else ""
    return (
        f'<div class="card scroll"><table class="headline"><thead><tr>{heads}</tr></thead>'
        f"<tbody>{body}</tbody></table>{below}</div>"
    )
