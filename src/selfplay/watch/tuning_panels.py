"""The panels of a run through fine-tuning jobs: its stage, its jobs, its models and its last statistics."""

from textual.content import Content
from textual.geometry import Size

from selfplay.read.fine_tuning import FineTuneJob
from selfplay.read.numbers import number_text
from selfplay.read.run_view import RunView
from selfplay.watch.plot import MUTED, Piece, content_of

NAMES = 11
"""Characters of the first column."""
STATISTIC_NAMES = 17
"""Characters of the names of statistics."""
MOST_JOBS = 12
MOST_OF_GROUP = 16
"""Characters of a group's name."""
STATISTICS = (
    ("mean_accuracy", "accuracy", True),
    ("mean_1_accuracy", "on right claims", True),
    ("mean_0_accuracy", "on wrong claims", True),
    ("no_decision_proportion", "no decision", True),
    ("precision", "precision", True),
    ("recall", "recall", True),
    ("mean_episode_length", "rounds spoken", False),
)
"""Statistics, what they are called, and whether they are shares."""
_STYLES = {
    "succeeded": "$text-success",
    "failed": "$text-error",
    "cancelled": "$text-warning",
    "not found": "$text-error",
}


def stage_panel(view: RunView, room: Size) -> Content:
    """Return the iteration, the stage, and a bar over the rollouts that are being played."""
    tuning = view.tuning
    if tuning is None:
        return Content("")
    of_all = f" of {tuning.total}" if tuning.total else ""
    now = "" if tuning.is_done else f"; now number {tuning.iteration}"
    rows: list[list[Piece]] = [
        [(f"{'iterations':<{NAMES}}", MUTED), (f"{tuning.iteration}{of_all} done{now}", "bold")],
        [(f"{'stage':<{NAMES}}", MUTED), (tuning.text, "bold")],
    ]
    if tuning.wanted:
        length = max(1, min(40, room.width - 2))
        filled = round(length * min(1.0, tuning.sampled / tuning.wanted))
        rows.append([("━" * filled, "$primary"), ("━" * (length - filled), "$foreground 25%")])
    return content_of(rows)


def jobs_panel(view: RunView, room: Size) -> Content:
    """Return the last jobs with their state, newest first."""
    jobs = view.tuning.jobs if view.tuning is not None else []
    if not jobs:
        return Content.styled("No job has been made yet.", MUTED)
    shown = jobs[-MOST_JOBS:]
    groups = min(MOST_OF_GROUP, max(len(job.group) for job in shown))
    statuses = max(len(job.status) for job in shown)
    rows: list[list[Piece]] = [[("by iteration: state, examples, model", MUTED)]]
    rows += [_job_row(job, groups, statuses) for job in reversed(shown)]
    if len(jobs) > MOST_JOBS:
        rows.append([(f"and {len(jobs) - MOST_JOBS} earlier", MUTED)])
    return content_of(rows)


def _job_row(job: FineTuneJob, groups: int, statuses: int) -> list[Piece]:
    number = "" if job.iteration is None else f"{job.iteration}"
    group = job.group if len(job.group) <= groups else f"{job.group[: groups - 1]}…"
    examples = f"{job.examples:>5,}  " if job.examples else ""
    return [
        (f"{number:>2} {group:<{groups}}  ", ""),
        (f"{job.status:<{statuses}}", f"bold {_STYLES.get(job.status, '')}".strip()),
        (examples, MUTED),
        (job.error or job.model, "$text-error" if job.error else ""),
    ]


def models_panel(view: RunView, room: Size) -> Content:
    """Return the model that each group of agents uses now."""
    models = view.tuning.models if view.tuning is not None else {}
    if not models:
        return Content.styled("All agents use the models that they began with.", MUTED)
    return content_of([[(f"{group:<{NAMES}}", MUTED), (model, "")] for group, model in models.items()])


def statistics_panel(view: RunView, room: Size) -> Content:
    """Return the last statistics of training and of the test."""
    rows: list[list[Piece]] = []
    for name, label, is_share in STATISTICS:
        values = [view.metric(f"{split}{name}").values for split in ("", "test_")]
        if any(values):
            texts = [number_text(one[-1], percent=is_share) if one else "" for one in values]
            rows.append([(f"{label:<{STATISTIC_NAMES}}", MUTED), (f"{texts[0]:>8}{texts[1]:>8}", "bold")])
    if not rows:
        return Content.styled("Nothing has been counted yet.", MUTED)
    return content_of([[(f"{'':<{STATISTIC_NAMES}}{'train':>8}{'test':>8}", MUTED)], *rows])
