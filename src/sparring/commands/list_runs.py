"""The runs of a directory at a glance: what each trains, how far it is, and what it measured last.

Only the ends of files are read, and no weights, so that a hundred runs take seconds.
"""

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import msgspec
from rich.table import Table
from rich.text import Text

from sparring.collection.serialization import UNREADABLE
from sparring.collection.start_log import last_session
from sparring.commands.psro_files import PAYOFFS
from sparring.config import Config
from sparring.config.finetune import AgentParameters
from sparring.config.loading import load_config
from sparring.config.play import Games
from sparring.config.population import PsroSettings
from sparring.core import InputError
from sparring.core.confidence_intervals import Interval
from sparring.core.files import check_kinds, is_locked
from sparring.core.text import one_line, shell_command
from sparring.evaluation.figures import ANY, NASH_CONV, WINS, Figure, FigureName, figure_text, read_figures
from sparring.evaluation.psro import STATE, member_name, read_state
from sparring.evaluation.results import evaluated_steps
from sparring.run.best import has_settled, is_kept_by
from sparring.run.evaluation_opponents import evaluation_opponents
from sparring.run.run_directory import RunDirectory
from sparring.run.run_layout import PSRO_FILE
from sparring.run.run_names import RUNS
from sparring.view.evaluations import decisive, of_measure
from sparring.view.fine_tuning import FineTuningFiles

State = Literal["running", "finished", "stopped", "failed", "damaged"]
TAIL_BYTES = 1 << 16
MOST_FIGURES = 3
WRITTEN = (
    "config.toml",
    "metrics.jsonl",
    "state.json",
    "sessions.json",
    "evaluation",
    "rollouts",
    "checkpoints",
    "versions",
    STATE,
    "games.jsonl",
)
"""What a run, a PSRO or its tournament writes: the newest of their times is when it last wrote."""


class _Line(msgspec.Struct):
    """The part of a line of metrics that is read."""

    step: int


@dataclass
class ListedRun:
    """One run; ``kind`` is empty if its configuration is damaged.

    Attributes:
        state: ``running`` if a process holds its lock, else ``finished``, ``failed`` if it had to stop by
            itself, ``damaged`` if a file of it cannot be read, or ``stopped``: interrupted or killed.
        problem: why it failed, or what is damaged.
        plays: the environments, or the program.
        updates: how many of ``total`` are done; of a fine-tuning run or a PSRO, iterations.
        figures: the most important ones of the last evaluation, after update ``measured_at``.
    """

    path: Path
    last_written: datetime
    state: State = "stopped"
    problem: str = ""
    kind: Literal["games", "program", "psro", ""] = ""
    plays: list[str] = field(default_factory=list)
    model: str = ""
    updates: int = 0
    total: int = 0
    figures: list[Figure] = field(default_factory=list)
    measured_at: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON-able values."""
        return {
            **vars(self),
            "name": self.path.name,
            "path": str(self.path),
            "last_written": self.last_written.isoformat(timespec="seconds"),
            "measured_at": self.measured_at if self.figures else None,
            "figures": [figure.to_dict() for figure in self.figures],
        }


def list_runs(directory: Path) -> list[ListedRun]:
    """Return the runs in a directory, the one that wrote last first. Other directories are left out.

    Raises:
        InputError: there is no such directory, it is itself a run, or it cannot be read.
    """
    if not directory.is_dir():
        if directory == RUNS:
            raise InputError("DIR", "there is no run here", "Train one first: sparring train kuhn")
        raise InputError("DIR", f"there is no directory {directory}", "Name the directory of your runs")
    if (directory / "config.toml").exists():
        fix = f"Name the directory above it, or look at it: {shell_command('report', directory)}"
        raise InputError("DIR", f"{directory} is itself a run", fix)
    try:
        paths = [path for path in directory.iterdir() if _is_run(path)]
    except OSError as error:
        fix = "Make it readable"
        raise InputError("DIR", f"{directory} cannot be read ({error.strerror})", fix) from error
    found = [read_run(path) for path in paths]
    return sorted(found, key=lambda run: (run.last_written, run.path.name), reverse=True)


def read_run(path: Path) -> ListedRun:
    """Return what is known of a run; one that cannot be read is damaged."""
    listed = ListedRun(path, _last_written(path))
    try:
        check_kinds(path)
        if (path / PSRO_FILE).is_file():
            _read_psro_into(listed)
        else:
            _read_into(listed, RunDirectory(path))
    except (InputError, OSError) as error:
        file = getattr(error, "filename", None) or path
        problem = error if isinstance(error, InputError) else f"{file} cannot be read ({error.strerror})"
        listed.state, listed.problem = "damaged", str(problem).replace(f"{path}/", "")
    return listed


def _is_run(path: Path) -> bool:
    """Whether a directory is a PSRO or a run, even one that lost its configuration."""
    files = ("config.toml", "metrics.jsonl", PSRO_FILE)
    return path.is_dir() and any((path / name).exists() for name in files)


def _read_psro_into(listed: ListedRun) -> None:
    config = load_config(str(listed.path / PSRO_FILE), {})
    listed.kind, listed.plays, listed.model = "psro", config.play.names, config.model.name
    listed.total = (config.psro or PsroSettings()).iterations
    state = read_state(listed.path)
    iterations = [] if state is None else state.iterations
    listed.updates = listed.measured_at = max(0, len(iterations) - 1)
    failure = last_session(listed.path / member_name(len(iterations))).failure
    if iterations and (exact := iterations[-1].nash_conv) is not None:
        name = FigureName(NASH_CONV, listed.plays[0])
        value = Interval(exact, exact, exact)
        listed.figures = [Figure(name, value, "exact", smaller_is_better=True, bounds=ANY)]
    if is_locked(listed.path):
        listed.state = "running"
    elif listed.updates >= listed.total:
        listed.state = "finished"
    elif failure is not None:
        listed.state, listed.problem = "failed", failure


def _read_into(listed: ListedRun, run: RunDirectory) -> None:
    config = load_config(str(run.config_file), {})
    listed.kind = "games" if isinstance(config.play, Games) else "program"
    listed.plays = config.play.names
    listed.model, listed.total = config.model.name, config.learning.steps
    listed.updates = _last_step(run.metrics_file)
    listed.measured_at = max(evaluated_steps(run.evaluation), default=0)
    listed.figures = headline(config, read_figures(run.evaluation, listed.measured_at))
    finished = run.is_finished(listed.total) or has_settled(run.evaluation, config.evaluation)
    tuning = FineTuningFiles(run.path).read()
    if tuning is not None and config.finetune is not None:
        models = dict.fromkeys(agent.model_name for agent in config.finetune.agents.values())
        listed.model = ", ".join(models) or AgentParameters().model_name
        listed.updates, listed.total = tuning.iteration, config.finetune.rl.num_iterations
        finished = tuning.is_done
    failure = last_session(run.path).failure
    if run.is_in_use():
        listed.state = "running"
    elif finished:
        listed.state = "finished"
    elif failure is not None:
        listed.state, listed.problem = "failed", failure


def headline(config: Config, figures: Iterable[Figure]) -> list[Figure]:
    """Return the most important figures of an evaluation.

    These are the one that ``run.keep_best`` names, the win rate against the first opponent in the first
    environment (the mean reward if all games were draws), and the NashConv there; of a program, its first
    measures by name.
    """
    found = sorted(figures, key=lambda figure: figure.name) if config.program is not None else list(figures)
    kept = [figure for figure in found if is_kept_by(figure, config.run.keep_best)]
    if isinstance(config.play, Games):
        first = config.evaluated[0]
        env_id, opponents = config.label(first), evaluation_opponents(config, first)
        here = {figure.name: {0: figure} for figure in found if figure.name.env_id == env_id}
        matches = [name for name in decisive(here) if name.opponent in (opponents or [""])[:1]]
        found = [here[name][0] for name in (*matches[:1], *of_measure(here, NASH_CONV))]
    return list(dict.fromkeys([*kept, *found]))[:MOST_FIGURES]


def _last_written(path: Path) -> datetime:
    """Return when a run, or a PSRO with its best responses and its tournament, wrote last."""
    times = [0.0]
    for place in (path, path / PAYOFFS, *path.glob("member-*")):
        for name in (".", *WRITTEN):
            with suppress(OSError):
                times.append((place / name).stat().st_mtime)
    return datetime.fromtimestamp(max(times), UTC)


def _last_step(metrics: Path) -> int:
    """Return the step of the last complete line; 0 if there is none."""
    try:
        file = metrics.open("rb")
    except FileNotFoundError:
        return 0
    with file:
        size, length = file.seek(0, os.SEEK_END), TAIL_BYTES
        while True:
            file.seek(max(0, size - length))
            lines = file.read(length).split(b"\n")[:-1]  # what follows the last line end is half-written
            if len(lines) > 1 or length >= size:
                break
            length *= 4
    if not lines:
        return 0
    try:
        return msgspec.json.decode(lines[-1], type=_Line).step
    except UNREADABLE as error:
        raise InputError(metrics.name, "its last line is damaged", "Delete the line") from error


COLOURS = {"running": "cyan", "finished": "green", "stopped": "yellow", "failed": "red", "damaged": "red"}
_UNITS = ((86400, "d"), (3600, "h"), (60, "min"))


def runs_table(runs: Sequence[ListedRun], now: datetime) -> Table:
    """Return two lines for each run, or more, that fit 80 columns; times are relative to ``now``."""
    table = Table(box=None, pad_edge=False)
    for head in ("Run\ntrains on", "State\nmodel", "Updates\nwrote, ago", "Last evaluation"):
        table.add_column(head, overflow="fold", no_wrap=head.startswith("Updates"))
    for run in runs:
        table.add_row(
            _stacked(run.path.name, ", ".join(run.plays)),
            _stacked(run.state, os.path.basename(run.model), COLOURS[run.state]),
            _stacked(f"{run.updates}/{run.total}" if run.total else "", age_text(now, run.last_written)),
            Text(_figures_text(run)),
        )
    return table


def age_text(now: datetime, then: datetime) -> str:
    """Return how long ago something was, in its largest unit."""
    seconds = (now - then).total_seconds()
    return next((f"{seconds // length:.0f} {unit}" for length, unit in _UNITS if seconds >= length), "now")


def _stacked(above: str, below: str, style: str = "bold") -> Text:
    return Text.assemble((one_line(above), style), "\n", (one_line(below), "dim"))


def _figures_text(run: ListedRun) -> str:
    if run.problem:
        return one_line(run.problem)
    lines = []
    for figure in run.figures:
        name = str(figure.name) if len(run.plays) > 1 else figure.name.name
        if name.startswith(WINS):
            against = name.removeprefix(WINS).replace(" against ", " vs ", 1)
            lines.append(f"won {figure_text(figure)}{against}")
        else:
            lines.append(f"{name} {figure_text(figure)}")
    if lines and run.measured_at != run.updates:
        lines[-1] += f", at update {run.measured_at}"
    return "\n".join(map(one_line, lines))
