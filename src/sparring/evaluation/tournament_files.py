"""The directory of a tournament: its settings, every finished game, and games to read; files of payoffs."""

import json
import math
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path
from typing import Any, Self, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from sparring.collection.rollout_log import write_rollouts
from sparring.collection.serialization import UNREADABLE, CheckedLine
from sparring.core import InputError, Rollout
from sparring.core.errors import DamagedState
from sparring.core.files import (
    LOCK,
    append_at,
    check_kinds,
    lock_directory,
    read_regular,
    remove_partial,
    sync,
    write_file,
)
from sparring.core.manifest import sealed, unsealed
from sparring.envs.catalog import reward_bounds
from sparring.evaluation.schedule import ScheduledGame
from sparring.population import PayoffTable

Content = TypeVar("Content")
SETTINGS, GAMES, PAGE = "tournament.json", "games.jsonl", "tournament.html"
PAYOFFS_JSON, PAYOFFS_CSV = "payoffs.json", "payoffs.csv"
NASH_CONVS = "nash_conv.json"
MOST_BYTES = 1 << 30
"""The largest file of results that is read."""
SAMPLES = "games"
"""The directory of the games to read."""
_WRITTEN = r"tournament\.(json|html)|payoffs\.(json|csv)|nash_conv\.json"
_AGAIN = "Delete the line; its game is played again"


class TournamentMember(msgspec.Struct):
    """Who plays: its name, its kind, the fingerprint of its weights, its token limit of an answer, and how it
    draws, in words, if not as the tournament does."""

    uid: str
    kind: str
    weights: str
    max_tokens: int | None
    drawn: str = ""


class TournamentSettings(msgspec.Struct):
    """``tournament.json``: what a tournament that goes on must share with its beginning.

    Only members, games and the budget may grow. The ``base`` model matters as soon as a model takes part.
    """

    played: dict[str, Any]
    base: dict[str, Any]
    seed: int
    members: list[TournamentMember]
    games: int
    budget: int | None = None

    @property
    def has_models(self) -> bool:
        """Whether a model that is served here takes part."""
        return any(one.kind == "model" for one in self.members)


class PlayedGame(CheckedLine):
    """A line of ``games.jsonl``; ``invalid`` is the seat whose invalid move ended the game."""

    game: int
    players: list[str]
    rewards: list[float]
    invalid: int | None

    @property
    def is_possible(self) -> bool:
        """Whether the line is one that was written: by its checksum, and by what any game is like."""
        seats = len(self.players)
        possible = self.game >= 0 and len(self.rewards) == seats and all(map(math.isfinite, self.rewards))
        possible &= self.invalid is None or 0 <= self.invalid < seats
        return possible and self.is_whole


@dataclass
class TournamentFiles:
    """A tournament's directory, locked until :meth:`close`: finished games by number, NashConv by member."""

    path: Path
    played: dict[int, PlayedGame]
    nash_convs: dict[str, float]
    _log: FileIO = field(repr=False)
    _end: int
    _lock: int

    @classmethod
    def open(cls, path: Path, settings: TournamentSettings) -> Self:
        """Create the directory, or continue the tournament in it. More members and games may be asked for.

        A line that a kill left incomplete is cut off; its game is played again.

        Raises:
            InputError: the directory holds another tournament or something else, is in use, is damaged, or
                cannot be written.
        """
        lock = lock_results(path, SETTINGS, "out", "tournament")
        with ExitStack() as on_failure:
            on_failure.callback(os.close, lock)
            try:
                remove_partial(path, _WRITTEN)
                remove_partial(path / SAMPLES, r"game-\d+\.jsonl")
                played, end = read_games(path / GAMES)
                measured = (
                    read_content(path / NASH_CONVS, dict[str, float], "Delete it; it is measured again") or {}
                )
                if played:
                    _check_settings(path, settings)
                write_content(path / SETTINGS, settings)
                log = (path / GAMES).open("ab", buffering=0)
            except OSError as error:
                problem = f"{path} cannot be written ({error.strerror})"
                raise InputError("out", problem, "Name another directory") from error
            on_failure.pop_all()
        return cls(path, played, measured, log, end, lock)

    def add(self, game: PlayedGame) -> None:
        """Append a finished game. After a kill it is there, or only the beginning of its line."""
        line = game.line()
        append_at(self._log, self._end, line)
        self._end += len(line)
        self.played[game.game] = game

    def add_nash_conv(self, uid: str, value: float) -> None:
        """Write the NashConv of a member."""
        self.nash_convs[uid] = value
        write_content(self.path / NASH_CONVS, self.nash_convs)

    def check_rewards(self, env_id: str) -> None:
        """Raise an InputError if a finished game has rewards that the environment cannot pay."""
        bounds = reward_bounds(env_id) if self.played else None
        low, high = bounds if bounds is not None else (-math.inf, math.inf)
        for game in self.played.values():
            if min(game.rewards) < low or max(game.rewards) > high:
                problem = f"game {game.game} has rewards that {env_id} cannot pay, {game.rewards}"
                raise InputError(str(self.path / GAMES), problem, _AGAIN)

    def add_sample(self, game: ScheduledGame, rollout: Rollout) -> None:
        """Write a game to read, before :meth:`add` counts it."""
        write_rollouts(sample_path(self.path, game), game.index, [rollout])

    def close(self) -> None:
        """Sync the games to disk, and release the lock."""
        try:
            os.fsync(self._log.fileno())
            sync(self.path)
        finally:
            self._log.close()
            os.close(self._lock)


def sample_path(directory: Path, game: ScheduledGame) -> Path:
    """Return the file of a game to read."""
    return directory / SAMPLES / f"game-{game.number:010d}.jsonl"


def write_payoffs(
    directory: Path, about: Mapping[str, Any], table: PayoffTable, members: Sequence[str]
) -> None:
    """Write ``payoffs.json`` and ``payoffs.csv``: payoffs by seating and, in a game for two, the matrix.

    ``about`` is what else is known, JSON-able. The matrix has the members in this order.
    """
    content = {**about, "members": list(members), "payoffs": table.rows()}
    if all(len(seating) == 2 for seating, _ in table.items()):
        matrix = table.matrix(members)
        content["matrix"] = {
            "mean": _known(matrix.mean_MM, matrix.known_MM),
            "standard_error": _known(matrix.error_MM, matrix.known_MM),
            "games": matrix.games_MM.tolist(),
        }
    text = json.dumps(content, indent=1, allow_nan=False)
    write_file(directory / PAYOFFS_JSON, f"{text}\n".encode())
    write_file(directory / PAYOFFS_CSV, table.to_csv().encode())


def _known(number_MM: NDArray[np.float64], known_MM: NDArray[np.bool_]) -> list[list[float | None]]:
    """Return numbers as JSON has them: unknown ones are ``None``."""
    return [
        [float(number) if known else None for number, known in zip(*rows, strict=True)]
        for rows in zip(number_MM, known_MM, strict=True)
    ]


def lock_results(path: Path, marker: str, field: str, what: str) -> int:
    """Create a directory, or open one that has the file ``marker``; return its lock.

    Raises:
        InputError: it holds something else than a tournament, say, is in use, or cannot be written.
    """
    fix = "Choose another name"
    try:
        found = {one.name for one in path.iterdir()} if path.exists() else set()
        if marker not in found and not found <= {LOCK, f".{marker}.partial"}:
            raise InputError(field, f"{path} exists and is not a {what}", fix)
        path.mkdir(parents=True, exist_ok=True)
        check_kinds(path)
        return lock_directory(path)
    except BlockingIOError:
        raise InputError(field, f"{path} is in use by another process", "Wait for it or stop it") from None
    except OSError as error:
        raise InputError(field, f"{path} cannot be written ({error.strerror})", fix) from error


def _check_settings(path: Path, now: TournamentSettings) -> None:
    """Raise an InputError if the directory's tournament cannot go on with these settings."""
    before = read_content(path / SETTINGS, TournamentSettings, "Name another directory")
    if before is None:
        raise InputError(str(path / SETTINGS), "is missing", "Name another directory")
    fix = "Ask for the same, or name another directory"
    both_base = before.has_models and now.has_models  # else nothing was played on a base
    old, new = ({"seed": one.seed, **one.played, **(one.base if both_base else {})} for one in (before, now))
    for name, value in new.items():
        if old.get(name) != value:
            problem = f"the tournament in {path} has the {name} {old.get(name)}, not {value}"
            raise InputError("out", problem, fix)
    for was, one in zip(before.members, now.members, strict=False):
        if was.uid != one.uid:
            problem = f"{path} has a tournament of {_names(before)}, not of {_names(now)}"
            raise InputError("out", problem, fix)
        if was != one:
            changed = "other weights, another limit of tokens or another sampling"
            raise InputError("out", f"member {was.uid} of the tournament in {path} now has {changed}", fix)
    if len(before.members) > len(now.members):
        missing = before.members[len(now.members)].uid
        raise InputError("out", f"the tournament in {path} has the member {missing} too", fix)


def _names(settings: TournamentSettings) -> str:
    return ", ".join(one.uid for one in settings.members)


def read_content(file: Path, kind: type[Content], fix: str) -> Content | None:
    """Return what :func:`write_content` wrote to a file; ``None`` if there is none."""
    if not file.is_file():
        return None
    try:
        return msgspec.convert(unsealed(read_regular(file, MOST_BYTES)), kind)
    except UNREADABLE as error:
        raise DamagedState(str(file), "is damaged", fix) from error


def write_content(file: Path, content: object) -> None:
    """Write a struct or a dictionary as JSON that has its own hash, by which damage is noticed."""
    write_file(file, sealed(msgspec.to_builtins(content)))


def keep_same(file: Path, now: object, problem: str, fix: str) -> None:
    """Write what a directory's results are of, or check that they are of the same.

    Raises:
        InputError: they are of something else, which is the ``problem`` of the directory.
    """
    before = read_content(file, type(now), "Name another directory")
    if before is None:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_content(file, now)
    elif before != now:
        raise InputError("directory", f"{file.parent} has {problem}", fix)


def read_games(file: Path) -> tuple[dict[int, PlayedGame], int]:
    """Return the games by number, and the size of the complete lines in bytes."""
    content = file.read_bytes() if file.is_file() else b""
    end = content.rfind(b"\n") + 1
    decoder = msgspec.json.Decoder(PlayedGame)
    played: dict[int, PlayedGame] = {}
    for number, line in enumerate(content[:end].splitlines(), start=1):
        try:
            game = decoder.decode(line)
        except UNREADABLE as error:
            problem = "the line is damaged"
            raise InputError(f"{file}, line {number}", problem, _AGAIN) from error
        if not game.is_possible:
            raise InputError(f"{file}, line {number}", "no finished game is so", _AGAIN)
        played.setdefault(game.game, game)
    return played, end
