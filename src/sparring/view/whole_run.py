"""WholeRun: a run read to its end, with games or conversations to show. Damaged files are left out."""

from dataclasses import dataclass, field, replace
from pathlib import Path

from sparring.collection.start_log import Session, read_sessions
from sparring.core import InputError
from sparring.core.files import check_kinds
from sparring.evaluation.figures import FigureName
from sparring.evaluation.results import MatchResult, NashConvResult
from sparring.evaluation.task_result import TaskResult
from sparring.view.batches import BatchRewards
from sparring.view.episodes import LoggedEpisode, first_episodes, select_episodes
from sparring.view.evaluations import EvaluationFiles
from sparring.view.files import number_of
from sparring.view.findings.played import PlayedGames, read_played
from sparring.view.run_view import RunView
from sparring.view.source import RunDirectorySource, read_to_end

MAX_TRANSCRIPT = 8
"""The number of games or conversations kept of an evaluation."""


@dataclass(frozen=True)
class Transcript:
    """The logged games of one evaluation against an opponent, a program's conversations, or the questions of
    a task, whose name is then ``env_id``."""

    step: int
    env_id: str
    opponent: str
    episodes: list[LoggedEpisode]


@dataclass(frozen=True)
class WholeRun(RunView):
    """A run with everything that a report shows.

    Args:
        config_text: the configuration as it was written.
        sessions: the starts of the run, oldest first.
        episodes: games or conversations of training, chosen by :func:`select_episodes`.
        episodes_in_log: the number from which they were chosen.
        transcripts: the logged games or conversations of the first and the last evaluation, by step.
        asked: the logged questions of tasks, when each was asked first and last, by step.
        exact: the exact evaluations by environment and update.
        played: what its newest updates played, for the diagnoses.
    """

    config_text: str = ""
    sessions: list[Session] = field(default_factory=list)
    episodes: list[LoggedEpisode] = field(default_factory=list)
    episodes_in_log: int = 0
    transcripts: list[Transcript] = field(default_factory=list)
    asked: list[Transcript] = field(default_factory=list)
    exact: dict[str, dict[int, NashConvResult]] = field(default_factory=dict)
    played: PlayedGames = field(default_factory=PlayedGames)

    def roles(self) -> list[str]:
        """Return every role of a program that metrics or conversations name, sorted."""
        found = set(super().roles())
        read = [one for transcript in self.transcripts for one in transcript.episodes]
        for episode in [*self.episodes, *read]:
            for rollout in episode.all_rollouts():
                found |= {step.role_id for step in rollout.steps} | set(rollout.rewards)
        return sorted(found - {""})


def load_run(run_dir: Path) -> WholeRun:
    """Read a run directory.

    Raises:
        InputError: it is not a directory, or it cannot be read.
    """
    source = RunDirectorySource(run_dir, whole=True)
    view = read_to_end(source)
    config = run_dir / "config.toml"
    logs = sorted((run_dir / "rollouts").glob("step-*.jsonl"), key=number_of)
    if view.tuning is not None:
        logs = sorted((run_dir / "rollouts").glob("test-*.jsonl"), key=number_of) or logs
    episodes, in_log = select_episodes(logs, of_program=view.is_program)
    # Where no batches are logged, a buffer may have made other advantages than the log's.
    may_have_buffer = not view.is_program or view.setting("buffer", "log_batches", bool) is False
    batches = BatchRewards(
        run_dir,
        has_buffer=may_have_buffer or any(run_dir.glob("batches/*.gz")),
        has_critic=view.has_critic,
        max_staleness=view.setting("collection", "max_staleness", int) or 0,
    )
    for episode in episodes:
        batches.add_to(episode.step, episode.all_rollouts())
    return WholeRun(
        **vars(view),
        config_text=config.read_text(encoding="utf-8", errors="replace") if config.exists() else "",
        sessions=read_sessions(run_dir),
        episodes=episodes,
        episodes_in_log=in_log,
        transcripts=_transcripts(source.evaluations),
        asked=_asked(source.tasks),
        exact=source.evaluations.exact(),
        played=read_played(run_dir),
    )


def beside_solo(run: WholeRun, solo: Path) -> WholeRun:
    """Return a fine-tuning run with the accuracy of a solo verifier's run beside its own.

    Raises:
        InputError: the run is of another kind, or the other run measured no accuracy.
    """
    if run.tuning is None:
        raise InputError("--solo", f"{run.name} is not a run of sparring finetune", "Leave it out")
    check_kinds(solo)
    figures = read_to_end(RunDirectorySource(solo)).figures
    found = figures.get(FigureName("accuracy")) or figures.get(FigureName("training accuracy"))
    if not found:
        raise InputError("--solo", f"{solo} has measured no accuracy", "Name a run of a solo verifier")
    accuracy = {float(step): figure.interval for step, figure in found.items()}
    return replace(run, tuning=replace(run.tuning, solo=accuracy))


def _transcripts(evaluations: EvaluationFiles) -> list[Transcript]:
    logs = evaluations.folder.path.glob("step-*.jsonl")
    paths = sorted(logs, key=lambda path: (number_of(path), path.name))
    ends = {number_of(path) for path in (*paths[:1], *paths[-1:])}
    found = []
    for path in paths:
        if number_of(path) in ends:
            match = evaluations.result(f"{path.stem}.json")
            played = (match.env_id, match.opponent) if isinstance(match, MatchResult) else ("", path.stem)
            found.append(Transcript(number_of(path), *played, first_episodes(path, MAX_TRANSCRIPT)))
    return found


def _asked(tasks: EvaluationFiles) -> list[Transcript]:
    by_task: dict[str, list[tuple[int, Path]]] = {}
    for path in tasks.folder.path.glob("step-*.jsonl"):
        result = tasks.result(f"{path.stem}.json")
        if isinstance(result, TaskResult):
            by_task.setdefault(result.task, []).append((number_of(path), path))
    found = [
        Transcript(step, task, "", first_episodes(path, MAX_TRANSCRIPT))
        for task, paths in by_task.items()
        for step, path in sorted({min(paths), max(paths)})
    ]
    return sorted(found, key=lambda one: (one.step, one.env_id))
