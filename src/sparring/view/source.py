"""RunDirectorySource: reads a run's directory repeatedly while it grows, or after the run has finished."""

import contextlib
import os
from pathlib import Path
from typing import Any

from sparring.config.loading import config_problems
from sparring.config.toml_files import read_toml
from sparring.core import InputError
from sparring.core.files import is_locked
from sparring.view.episodes import LoggedEpisode, last_episode
from sparring.view.evaluations import EvaluationFiles
from sparring.view.files import Folder
from sparring.view.fine_tuning import FineTuning, FineTuningFiles
from sparring.view.metrics import MetricsTail
from sparring.view.population import PopulationTail
from sparring.view.run_view import RunView

TAIL_BYTES = 1 << 23
"""At most this many bytes at the end of a rollout log are read."""
MAX_PARTS = 12
"""At most this many sub-episodes of an episode are kept."""


class RunDirectorySource:
    """A :class:`sparring.view.run_view.ViewSource` of a run directory.

    Missing or damaged files are left out. Nothing is ever written.

    Args:
        path: the run's directory.
        whole: keep the long fields of evaluations, and the pairs of every moment of the population.
    """

    def __init__(self, path: Path, *, whole: bool = False) -> None:
        self.path = path
        self._config: dict[str, Any] = {}
        self._config_problem = ""
        self._metrics = MetricsTail(path / "metrics.jsonl")
        self.evaluations = EvaluationFiles(path / "evaluation", whole=whole)
        self.tasks = EvaluationFiles(path / "tasks", whole=whole)
        self._population = PopulationTail(path / "standings.jsonl", whole=whole)
        self._logs = Folder(path / "rollouts")
        self._game: LoggedEpisode | None = None
        self._game_of: tuple[Path, int] | None = None
        self._tuning_files = FineTuningFiles(path)
        self._tuning: FineTuning | None = None

    def read(self) -> RunView:
        """Read what is new; see :meth:`sparring.view.run_view.ViewSource.read`."""
        trouble, in_use = "", True
        try:
            in_use = is_locked(self.path)  # asked first: what a process wrote before it ended is read
            os.stat(self.path)
            self._read_config()
            self._metrics.read()
            self.evaluations.read()
            self.tasks.read()
            self._population.read()
            self._tuning = self._tuning_files.read()
            self._read_game()
        except OSError as error:
            trouble = f"{self.path} cannot be read ({error.strerror})"
        metrics = self._metrics
        read = (metrics, self.evaluations, self.tasks, self._population, self._tuning_files)
        return RunView(
            name=self.path.resolve().name,
            config=self._config,
            config_problem=self._config_problem,
            series=metrics.series(),
            latest=dict(metrics.latest),
            lines=metrics.lines,
            damaged_lines=metrics.damaged,
            figures=self.evaluations.figures() | self.tasks.figures(),
            damaged_evaluations=[*self.evaluations.damaged(), *self.tasks.damaged()],
            moments=self._population.moments(),
            game=self._game,
            share_read=1.0 if trouble else min(one.share_read for one in read),
            trouble=trouble,
            in_use=in_use,
            tuning=self._tuning,
        )

    def _read_config(self) -> None:
        file = self.path / "config.toml"
        if self._config or not file.is_file():
            return
        self._config_problem = config_problem(file)
        with contextlib.suppress(InputError):  # which is the problem
            self._config = read_toml(str(file))

    def _read_game(self) -> None:
        newest = self._newest_log() if self._tuning is None else self._tuning_files.newest_log()
        if newest is None or newest == self._game_of:
            return
        try:
            game = last_episode(newest[0], TAIL_BYTES)
        except FileNotFoundError:
            return
        self._game = _shortened(game) if game is not None else self._game
        self._game_of = newest

    def _newest_log(self) -> tuple[Path, int] | None:
        """Return the newest log and when it was written; ``None`` if no log has changed."""
        if not self._logs.look():
            return None
        newest = self._logs.newest(".jsonl")
        return None if newest is None else (newest, self._logs.entries[newest.name])


def config_problem(file: Path) -> str:
    """Return the first thing that is wrong with a configuration; empty if nothing is."""
    for problem in config_problems(str(file), {}):
        return problem.problem if problem.field == str(file) else f"{problem.field}: {problem.problem}"
    return ""


def read_to_end(source: RunDirectorySource) -> RunView:
    """Read a run directory to its end. Whoever names the directory has checked what kind its files are.

    Raises:
        InputError: it is not a directory, or it cannot be read.
    """
    if not source.path.is_dir():
        raise InputError(str(source.path), "is not a run directory", "Name a directory under runs/.")
    view = source.read()
    while view.share_read < 1:
        view = source.read()
    if view.trouble:
        raise InputError("run directory", view.trouble, "Make it readable.")
    return view


def _shortened(episode: LoggedEpisode) -> LoggedEpisode:
    """Return an episode as a view carries it: of a prompt the last message, no ids, and not every part."""
    for step in episode.rollout.steps:
        step.prompt = step.prompt[-1:]
        step.prompt_token_ids = step.completion_token_ids = None
    episode.left_out += len(episode.children[MAX_PARTS:])
    episode.children = [_shortened(child) for child in episode.children[:MAX_PARTS]]
    return episode
