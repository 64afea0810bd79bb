"""The cells of a ladder that are runs: of ``sparring train``, or ``psro``, for each combination and seed."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from shlex import join

import msgspec

from sparring.collection import read_metrics
from sparring.commands.best_response import is_trained, without_places
from sparring.commands.ladder.file import LadderSettings, options_of
from sparring.commands.ladder.results import CellResult, Point, cell_name
from sparring.commands.psro import check_psro
from sparring.config import Config
from sparring.config.loading import differences_text, load_config
from sparring.config.play import EvaluatedGameSettings
from sparring.core import InputError
from sparring.core.adapters import ADAPTER_FILE
from sparring.core.files import is_locked
from sparring.evaluation.figures import NASH_CONV, Figure, FigureName, kind_of, read_figures
from sparring.evaluation.nash_conv import nash_conv_of_table
from sparring.evaluation.psro import read_state
from sparring.evaluation.results import evaluated_steps
from sparring.run.best import check_figure, is_kept_by, is_smaller_better
from sparring.run.checks import check_config
from sparring.run.run_directory import RunDirectory
from sparring.run.run_layout import PSRO_FILE
from sparring.run.run_names import check_plain_name

MEASURE = "measure"
"""The field that names the figure."""
ROUNDING = 1e-9
"""NashConv of an equilibrium is not more than this."""
_PLAYED = ("accounts/finished", "accounts/payoff_finished")
_SECONDS = ("time/play_seconds", "time/learn_seconds")


@dataclass(frozen=True)
class LadderGame:
    """A game of a ladder: its configuration, and the figure that is compared; ``None`` if not yet known."""

    name: str
    config: Config
    figure: FigureName | None

    @property
    def env(self) -> EvaluatedGameSettings:
        """The environment of the figure; a program has none."""
        label = self.figure.env_id if self.figure is not None else ""
        return next(env for env in self.config.evaluated if self.config.label(env) == label)

    @property
    def is_exact(self) -> bool:
        """Whether the figure is NashConv."""
        return self.figure is not None and self.figure.measure == NASH_CONV

    def scale(self) -> float:
        """Return what figures are divided by: NashConv of uniform play.

        It is 1 where uniform play is an equilibrium, and for other measures.
        """
        uniform = nash_conv_of_table(self.env.id) if self.is_exact else 1.0
        return uniform if uniform > ROUNDING else 1.0


@dataclass(frozen=True)
class LadderCell(ABC):
    """What is measured once: ``recipe`` and ``opponents``, or the name of an entry of others, with a seed."""

    game: LadderGame
    recipe: str
    opponents: str
    seed: int
    out: Path

    @property
    def name(self) -> str:
        """Its name, and that of its directory."""
        return cell_name(self.game.name, self.recipe, self.opponents, self.seed)

    @property
    def path(self) -> Path:
        """Its directory."""
        return self.out / self.name

    @property
    @abstractmethod
    def words(self) -> Sequence[str]:
        """The command that makes it; empty if it has none."""

    @property
    def words_now(self) -> Sequence[str]:
        """The command that makes it, or goes on with it."""
        return self.words

    @property
    def awaited(self) -> str:
        """The file that it waits for if no command makes it."""
        return ""

    def is_in_use(self) -> bool:
        """Whether another process makes it."""
        return is_locked(self.path)

    @contextmanager
    def locked(self) -> Iterator[Sequence[int]]:
        """Lock it while its command runs, which inherits these descriptors; most commands lock it."""
        yield ()

    def note_end(self) -> None:  # noqa: B027 - most cells know by themselves
        """Take note that its command has ended without an error."""

    @abstractmethod
    def is_done(self) -> bool:
        """Whether it is complete."""

    @abstractmethod
    def measured(self, result: CellResult, measure: str) -> None:
        """Add to a result what was measured, and the hash of the end, of a complete cell."""

    def result(self, measure: str, problem: str = "") -> CellResult:
        """Return what came of it: no figures if it is not complete, because of a ``problem``."""
        result = CellResult(
            game=self.game.name,
            recipe=self.recipe,
            opponents=self.opponents,
            seed=self.seed,
            command=join(self.words),
            problem=problem,
        )
        try:
            if problem or not self.is_done():
                return result
            self.measured(result, measure)
        except InputError as error:
            result.points, result.problem = [], str(error)
        if not (result.points or result.problem):
            result.problem = f"no evaluation measures {measure}"
        return result


@dataclass(frozen=True)
class RunCell(LadderCell):
    """A run; ``given`` are the words of its command."""

    config: Config
    given: tuple[str, ...]

    @property
    def words(self) -> Sequence[str]:
        """The command of a new run."""
        return self.given

    @property
    def words_now(self) -> Sequence[str]:
        """The command of a new run, or of one that has begun."""
        return ["sparring", "train", "--resume", str(self.path)] if self.config_file.is_file() else self.given

    @property
    def config_file(self) -> Path:
        """The configuration with which it began."""
        return self.run.config_file

    @cached_property
    def run(self) -> RunDirectory:
        """The directory of its run."""
        return RunDirectory(self.path)

    def check(self, measure: str) -> None:
        """Raise an InputError if it cannot start, or does not measure what is compared."""
        check_config(self.config)
        check_figure(self.config, measure, MEASURE)

    def is_done(self) -> bool:
        """Whether it was trained to the end."""
        return is_trained(self.run, self.config)

    def measured(self, result: CellResult, measure: str) -> None:
        """Add its evaluations, and the hash of its last adapters."""
        points = list(_points(self.run, measure))
        result.points = [point for point, _ in points]
        result.smaller_is_better = any(is_smaller_better(figure, measure) for _, figure in points)
        result.is_share = kind_of(figure for _, figure in points) == "share"
        result.sha256 = _hash_of_end(self.run)


class PsroCell(RunCell):
    """A PSRO, whose mixture is measured after each iteration.

    Its games are those of training and of the payoffs, of which no seconds are known.
    """

    @property
    def words_now(self) -> Sequence[str]:
        """The command, which goes on where it was stopped."""
        return self.given

    @property
    def config_file(self) -> Path:
        """The configuration with which it began."""
        return self.path / PSRO_FILE

    def check(self, measure: str) -> None:
        """Raise an InputError if it cannot start, or does not measure what is compared."""
        super().check(measure)
        check_psro(self.config)
        figure = check_figure(self.config, measure, MEASURE)
        if figure is None or figure.measure != NASH_CONV:
            problem = f"a PSRO is measured by NashConv, not by {measure}"
            raise InputError("psro", problem, 'Leave it out, or set measure = "NashConv"')

    def is_done(self) -> bool:
        """Whether all iterations were made."""
        state, settings = read_state(self.path), self.config.psro
        return state is not None and settings is not None and len(state.iterations) > settings.iterations

    def measured(self, result: CellResult, measure: str) -> None:
        """Add NashConv of each mixture, and the hash of all adapters and of the last mixture."""
        state, games, digest = read_state(self.path), 0, sha256()
        for number, one in enumerate(state.iterations if state is not None else ()):
            if number:
                run = RunDirectory(self.path / one.member)
                games += _played(read_metrics(run.metrics_file)[-1])
                digest.update(_hash_of_end(run).encode())
            digest.update(msgspec.json.encode(one.mixture))
            if one.nash_conv is not None:
                played = games + one.payoff_games
                result.points.append(Point(one.nash_conv, played, is_playable=one.is_playable))
        result.smaller_is_better = True
        result.sha256 = digest.hexdigest()


def games_of(ladder: LadderSettings) -> list[LadderGame]:
    """Return the games; raise an InputError if one cannot be played, or does not measure what is compared."""
    found = []
    for name, game in ladder.games.items():
        with _naming(name):
            source, recipe, fields = options_of(ladder.base, game)
            config = load_config(source, fields, recipe)
            found.append(LadderGame(name, config, check_figure(config, ladder.measure, MEASURE)))
    return found


def run_cells(ladder: LadderSettings, games: Sequence[LadderGame], out: Path) -> list[RunCell]:
    """Return the cells that are runs, with the first seed of all before the second.

    Raises:
        InputError: a run cannot start or does not measure what is compared, or its directory holds another.
    """
    cells = [
        _cell(ladder, game, recipe, opponents, seed, out)
        for seed in ladder.seeds
        for game in games
        for recipe in ladder.trained
        for opponents in ladder.opponents
    ]
    for cell in cells:
        with _naming(cell.name):
            if cell.seed == ladder.seeds[0]:
                cell.check(ladder.measure)
            _check_same(cell)
    return cells


def _cell(
    ladder: LadderSettings, game: LadderGame, recipe: str, opponents: str, seed: int, out: Path
) -> RunCell:
    name = cell_name(game.name, recipe, opponents, seed)
    tables = (ladder.base, ladder.games[game.name], ladder.trained[recipe], ladder.opponents[opponents])
    with _naming(name):
        source, laid_over, fields = options_of(*tables)
    fields |= {"model.threads": "1", "run.directory": str(out)}
    with _naming(name):
        check_plain_name(name)
        config = load_config(source, fields | {"seed": str(seed)}, laid_over)
    kind, command = (RunCell, "train") if config.psro is None else (PsroCell, "psro")
    given = ["sparring", command, source, "--name", name, "--seed", str(seed)]
    given += [] if laid_over is None else ["--recipe", laid_over]
    given += [f"--{field}={text}" for field, text in fields.items()]
    return kind(game, recipe, opponents, seed, out, config, tuple(given))


@contextmanager
def _naming(name: str) -> Iterator[None]:
    """Let an error say of which cell or game it is."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{name}: {error.field}", error.problem, error.fix) from error


def _check_same(cell: RunCell) -> None:
    if not cell.config_file.is_file():
        return
    found = without_places(load_config(str(cell.config_file), {}))
    if found != (wanted := without_places(cell.config)):
        problem = f"{cell.path} holds another run, which differs in {differences_text(found, wanted)}"
        raise InputError("--out", problem, "Name another directory, or undo the change")


def _points(run: RunDirectory, measure: str) -> Iterator[tuple[Point, Figure]]:
    """Yield what was measured after each evaluation."""
    games, seconds, gone = {0: 0}, {0: 0.0}, 0.0
    for line in read_metrics(run.metrics_file):
        gone += sum(line.get(name, 0.0) for name in _SECONDS)
        games[line["step"]] = _played(line)
        seconds[line["step"]] = gone
    for update in evaluated_steps(run.evaluation):
        if update not in games:
            raise InputError(str(run.metrics_file), f"lacks update {update}", "Restore it, or delete the run")
        for figure in read_figures(run.evaluation, update):
            if is_kept_by(figure, measure):
                yield Point(figure.value, games[update], seconds[update], figure.is_playable), figure


def _played(line: Mapping[str, float]) -> int:
    """Return the games that were played until an update, by its metrics."""
    return sum(int(line.get(name, 0)) for name in _PLAYED)


def _hash_of_end(run: RunDirectory) -> str:
    """Return the SHA-256 of the adapters in the last checkpoint: of their files in order of their names."""
    digest, checkpoint = sha256(), run.checkpoint(run.saved_steps()[-1])
    paths = sorted(checkpoint.rglob(ADAPTER_FILE))
    if not paths:
        raise InputError(str(checkpoint), "has no adapter", "Restore it, or delete the run")
    for path in paths:
        digest.update(path.read_bytes())
    return digest.hexdigest()
