"""The cells of a ladder that others made: policy files of any framework, and models that play matches."""

import glob
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from shlex import join, split

from sparring.commands.ladder.cells import LadderCell, LadderGame
from sparring.commands.ladder.file import EntrySettings, LadderSettings
from sparring.commands.ladder.results import CellResult, Point
from sparring.core import InputError
from sparring.core.files import lock_directory, write_file
from sparring.core.play import FEWEST_GAMES
from sparring.engine.api_models import is_api_model
from sparring.evaluation.figures import MASS, figures_of
from sparring.evaluation.nash_conv import nash_conv_of_table
from sparring.evaluation.policy_file import read_policy
from sparring.evaluation.results import GameRecord, MatchResult, outcome_of, side_of
from sparring.evaluation.tournament_files import (
    GAMES,
    NASH_CONVS,
    PAYOFFS_JSON,
    SETTINGS,
    TournamentSettings,
    read_content,
    read_games,
)
from sparring.run.best import is_kept_by, is_smaller_better
from sparring.run.run_names import check_plain_name

GAMES_OF_TRAINING = "{games}"
"""In the name of a policy file: after so many games of training it is what was learned."""
RANDOM = "random"
_MADE = "made"
"""The file that says which command of an entry has ended."""


@dataclass(frozen=True)
class OtherCell(LadderCell):
    """An entry of others in one game, with one seed."""

    entry: EntrySettings

    def note_end(self) -> None:
        """Note which command ended well: what one left that was killed is not all that there should be."""
        self.path.mkdir(exist_ok=True)
        write_file(self.path / _MADE, join(self.words).encode())

    @property
    def has_ended(self) -> bool:
        """Whether this command ended well."""
        made = self.path / _MADE
        return made.is_file() and made.read_bytes() == join(self.words).encode()


@dataclass(frozen=True)
class PolicyCell(OtherCell):
    """Policy files of one game and seed: one, or one for each evaluation."""

    @property
    def words(self) -> Sequence[str]:
        """The command of the entry, with this game and seed."""
        return [self._filled(word) for word in split(self.entry.command or "")]

    @property
    def awaited(self) -> str:
        """The policy file."""
        return self._filled(self.entry.policies or "")

    @contextmanager
    def locked(self) -> Iterator[Sequence[int]]:
        """Lock its directory: a command outlives a ladder that is killed, and is not run twice at a time."""
        self.path.mkdir(exist_ok=True)
        lock = lock_directory(self.path)
        try:
            yield (lock,)
        finally:
            os.close(lock)

    def is_done(self) -> bool:
        """Whether there are files, which are complete and of this command."""
        return bool(self._files()) and (self.has_ended or not self.words)

    def measured(self, result: CellResult, measure: str) -> None:
        """Add NashConv of each file, and the hash of all."""
        digest, env_id = sha256(), self.game.env.id
        for games, path in self._files():
            result.points.append(Point(nash_conv_of_table(env_id, read_policy(path, env_id)), games))
            digest.update(path.read_bytes())
        result.smaller_is_better = True
        result.sha256 = digest.hexdigest()

    def _files(self) -> list[tuple[int | None, Path]]:
        """Return the files that there are, each with the games of training before it, fewest first."""
        before, games, after = self.awaited.partition(GAMES_OF_TRAINING)
        if not games:
            path = Path(before)
            return [(None, path)] if path.is_file() else []
        found = []
        for name in glob.glob(f"{glob.escape(before)}*{glob.escape(after)}"):
            number = name[len(before) : len(name) - len(after)]
            if number.isdecimal():
                found.append((int(number), Path(name)))
        return sorted(found)

    def _filled(self, text: str) -> str:
        texts = {"{game}": self.game.name, "{env}": self.game.env.env_id, "{seed}": str(self.seed)}
        texts["{out}"] = str(self.out)
        for name, value in texts.items():
            text = text.replace(name, value)
        return text


@dataclass(frozen=True)
class MemberCell(OtherCell):
    """A model that plays against one opponent, as a tournament of these two."""

    @property
    def words(self) -> Sequence[str]:
        """The command of the tournament, which goes on where it was stopped."""
        env = self.game.env
        played = ["--env", env.env_id, "--players", str(env.num_players), "--template", env.template]
        games = ["--games", str(_games(self.game)), "--seed", str(self.seed)]
        exact = ["--nash-conv"] if self.game.is_exact else []
        who = [str(self.entry.member), self._opponent]
        return ["sparring", "tournament", *who, *played, *games, *exact, "--out", str(self.path)]

    def is_done(self) -> bool:
        """Whether this tournament was held to the end."""
        return self.has_ended and (self.path / PAYOFFS_JSON).is_file()

    def measured(self, result: CellResult, measure: str) -> None:
        """Add the figure of its games, or its NashConv."""
        settings = read_content(self.path / SETTINGS, TournamentSettings, "Name another --out")
        if settings is None:
            raise InputError(str(self.path / SETTINGS), "is missing", "Restore it, or name another --out")
        uid = settings.members[0].uid
        if self.game.is_exact:
            values = (
                read_content(self.path / NASH_CONVS, dict[str, float], "Delete it and payoffs.json") or {}
            )
            result.points = [Point(values[uid])] if uid in values else []
            result.smaller_is_better = True
            return
        for figure in figures_of(self._match(uid)):
            if is_kept_by(figure, measure):
                result.points = [Point(figure.value)]
                result.smaller_is_better = is_smaller_better(figure, measure)
                result.is_share = figure.kind == "share"

    @property
    def _opponent(self) -> str:
        return RANDOM if self.game.is_exact or self.game.figure is None else self.game.figure.opponent

    def _match(self, uid: str) -> MatchResult:
        """Return the games as a match of the model; a tournament does not count moves."""
        env, config = self.game.env, self.game.config
        games, _ = read_games(self.path / GAMES)
        match = MatchResult(
            env_id=config.label(env),
            num_players=env.num_players,
            model=uid,
            opponent=self._opponent,
            seed=self.seed,
            requested_games=len(games),
        )
        for game in games.values():
            seat = game.players.index(uid)
            outcome = outcome_of(dict(enumerate(game.rewards)), seat)
            ended = side_of(game.invalid, seat)
            match.add(GameRecord(seat, game.rewards[seat], outcome, ended, False, 0, 0))
        return match


def other_cells(ladder: LadderSettings, games: Sequence[LadderGame], out: Path) -> list[LadderCell]:
    """Return the cells of what others made; raise an InputError if one cannot measure what is compared."""
    for name, entry in ladder.entries.items():
        for game in games:
            _check(f"entries.{name}", entry, game)
    cells: list[LadderCell] = [
        (PolicyCell if entry.policies else MemberCell)(game, name, "", seed, out, entry)
        for seed in ladder.seeds
        for game in games
        for name, entry in ladder.entries.items()
    ]
    for cell in cells:
        check_plain_name(cell.name)
    return cells


def _games(game: LadderGame) -> int:
    return game.env.games or game.config.evaluation.games


def _words(command: str) -> list[str]:
    """Return the words of a command; none if a quote is not closed."""
    try:
        return split(command)
    except ValueError:
        return []


def _check(field: str, entry: EntrySettings, game: LadderGame) -> None:
    if (entry.policies is None) == (entry.member is None):
        raise InputError(field, "needs either policies or a member", "Name one of the two")
    if entry.command is not None and entry.policies is None:
        raise InputError(f"{field}.command", "makes policy files", "Leave it out, or name policies")
    if entry.command is not None and not _words(entry.command):
        raise InputError(f"{field}.command", "is no command", "Close its quotes, or leave it out")
    if game.figure is None:
        raise InputError(field, f"{game.name} is a program, in which only runs are compared", "Leave it out")
    if entry.policies is not None and not game.is_exact:
        problem = f"a policy file is measured by NashConv, not by {game.figure.name}"
        raise InputError(f"{field}.policies", problem, 'Leave it out, or set measure = "NashConv"')
    if entry.member is None:
        return
    if game.env.num_players > 2:
        problem = f"plays against one opponent, but {game.name} is for {game.env.num_players}"
        raise InputError(f"{field}.member", problem, "Leave the entry out, or the game")
    if (games := _games(game)) < FEWEST_GAMES:
        problem = f"evaluation.games of {game.name} is {games}, and a member plays at least {FEWEST_GAMES}"
        raise InputError(f"{field}.member", problem, f"Set it to {FEWEST_GAMES} or more")
    if is_api_model(entry.member) and game.is_exact:
        problem = "a model behind an API gives no probabilities, which NashConv needs"
        raise InputError(
            f"{field}.member", problem, 'Choose a measure of matches: "mean reward against random"'
        )
    if game.figure.measure == MASS:
        raise InputError(f"{field}.member", f"{MASS} is not measured in matches", "Choose another measure")
