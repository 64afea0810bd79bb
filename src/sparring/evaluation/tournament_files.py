"""The directory of a tournament: its settings, every finished game, and games to read; files of payoffs."""

import json
import math
import os
import zlib
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path
from typing import Any, Self

import msgspec
import numpy as np
from numpy.typing import NDArray

from sparring.collection.rollout_log import write_rollouts
from sparring.core import InputError, Rollout
from sparring.core.files import LOCK, append_at, check_kinds, lock_directory, remove_partial, sync, write_file
from sparring.envs.catalog import reward_bounds
from sparring.evaluation.schedule import ScheduledGame
from sparring.population import PayoffTable

SETTINGS, GAMES, PAGE = "tournament.json", "games.jsonl", "tournament.html"
PAYOFFS_JSON, PAYOFFS_CSV = "payoffs.json", "payoffs.csv"
NASH_CONVS = "nash_conv.json"
SAMPLES = "games"
"""The directory of the games to read."""
_WRITTEN = r"tournament\.(json|html)|payoffs\.(json|csv)|nash_conv\.json"
_AGAIN = "Delete the line; its game is played again"
_MAY_GROW = ("members", "games", "budget")
_OF_THE_BASE = ("base_model", "dtype", "quantization")
"""The settings of the base, which matter as soon as a model takes part."""


class PlayedGame(msgspec.Struct):
    """A line of ``games.jsonl``: a finished game, by its number in the tournament.

    ``invalid`` is the seat whose invalid move ended it, and ``crc`` a checksum of the rest.
    """

    game: int
    players: list[str]
    rewards: list[float]
    invalid: int | None
    crc: int

    @classmethod
    def of(cls, game: int, players: Sequence[str], rewards: Sequence[float], invalid: int | None) -> Self:
        """Return the game with its checksum."""
        crc = _checksum(game, players, rewards, invalid)
        return cls(game, list(players), list(rewards), invalid, crc)

    def is_possible(self) -> bool:
        """Whether the line is one that was written: by its checksum, and by what any game is like."""
        seats = len(self.players)
        possible = self.game >= 0 and len(self.rewards) == seats and all(map(math.isfinite, self.rewards))
        possible &= self.invalid is None or 0 <= self.invalid < seats
        return possible and self.crc == _checksum(self.game, self.players, self.rewards, self.invalid)


def _checksum(*fields: Any) -> int:
    return zlib.crc32(msgspec.json.encode(fields))


@dataclass
class TournamentFiles:
    """A tournament's directory, locked until the process ends.

    Attributes:
        path: the directory.
        played: the finished games by number.
        nash_convs: the NashConv of the members that it was computed for; members never change.
    """

    path: Path
    played: dict[int, PlayedGame]
    nash_convs: dict[str, float]
    _log: FileIO = field(repr=False)
    _end: int
    _lock: int

    @classmethod
    def open(cls, path: Path, settings: dict[str, Any]) -> Self:
        """Create the directory, or continue the tournament in it. More members and games may be asked for.

        A line that a kill left incomplete is cut off; its game is played again.

        Raises:
            InputError: the directory holds another tournament or something else, is in use, is damaged, or
                cannot be written.
        """
        with ExitStack() as on_failure:
            try:
                if path.exists() and not (path / SETTINGS).is_file() and any(_foreign(path)):
                    raise InputError("out", f"{path} is not a tournament's directory", "Name a new one")
                path.mkdir(parents=True, exist_ok=True)
                check_kinds(path)
                lock = _locked(path)
                on_failure.callback(os.close, lock)
                remove_partial(path, _WRITTEN)
                remove_partial(path / SAMPLES, r"game-\d+\.jsonl")
                played, end = _read_games(path / GAMES)
                measured = _read_nash_convs(path / NASH_CONVS)
                if played:
                    _check_settings(path / SETTINGS, settings)
                write_file(path / SETTINGS, f"{json.dumps(settings, indent=1)}\n".encode())
                log = (path / GAMES).open("ab", buffering=0)
            except OSError as error:
                problem = f"{path} cannot be written ({error.strerror})"
                raise InputError("out", problem, "Name another directory") from error
            on_failure.pop_all()
        return cls(path, played, measured, log, end, lock)

    def add(self, game: PlayedGame) -> None:
        """Append a finished game. After a kill of the process it is there, or only the beginning of its line.

        Raises:
            OSError: the file cannot be written.
        """
        line = msgspec.json.encode(game) + b"\n"
        append_at(self._log, self._end, line)
        self._end += len(line)
        self.played[game.game] = game

    def add_nash_conv(self, uid: str, value: float) -> None:
        """Write the NashConv of a member.

        Raises:
            OSError: the file cannot be written.
        """
        self.nash_convs[uid] = value
        write_file(self.path / NASH_CONVS, f"{json.dumps(self.nash_convs, indent=1)}\n".encode())

    def check_rewards(self, env_id: str) -> None:
        """Raise an InputError if a finished game has rewards that the environment cannot pay."""
        bounds = reward_bounds(env_id) if self.played else None
        low, high = bounds if bounds is not None else (-math.inf, math.inf)
        for game in self.played.values():
            if min(game.rewards) < low or max(game.rewards) > high:
                problem = f"game {game.game} has rewards that {env_id} cannot pay, {game.rewards}"
                raise InputError(str(self.path / GAMES), problem, _AGAIN)

    def sample_path(self, game: ScheduledGame) -> Path:
        """Return the file of a game to read."""
        return self.path / SAMPLES / f"game-{game.number:010d}.jsonl"

    def add_sample(self, game: ScheduledGame, rollout: Rollout) -> None:
        """Write a game to read, before :meth:`add` counts it."""
        write_rollouts(self.sample_path(game), game.index, [rollout])

    def close(self) -> None:
        """Sync the games to disk, and release the lock."""
        try:
            os.fsync(self._log.fileno())
            sync(self.path)
        finally:
            self._log.close()
            os.close(self._lock)


def write_payoffs(
    directory: Path, about: Mapping[str, Any], table: PayoffTable, members: Sequence[str]
) -> None:
    """Write ``payoffs.json`` and ``payoffs.csv``: payoffs by seating and, in a game for two, the matrix.

    Args:
        directory: where the two files go.
        about: what else is known, JSON-able.
        table: the payoffs.
        members: the members, in the order of the matrix.

    Raises:
        OSError: a file cannot be written.
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


def _foreign(path: Path) -> list[Path]:
    return [one for one in path.iterdir() if one.name != LOCK] if path.is_dir() else [path]


def _locked(path: Path) -> int:
    try:
        return lock_directory(path)
    except BlockingIOError:
        raise InputError("out", f"{path} is in use by another process", "Wait for it or stop it") from None


def _check_settings(file: Path, settings: dict[str, Any]) -> None:
    """Raise an InputError if the directory's tournament cannot go on with these settings."""
    try:
        earlier = json.loads(file.read_text(encoding="utf-8"))
        old = [{"uid": str(one["uid"])} | one for one in earlier["members"]]
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(str(file), "is damaged", "Name another directory") from error
    if not (_has_models(old) and _has_models(settings["members"])):
        earlier |= {name: settings[name] for name in _OF_THE_BASE}  # nothing was played on a base
    fix = "Ask for the same, or name another directory"
    for name, value in settings.items():
        if name not in _MAY_GROW and earlier.get(name) != value:
            problem = f"the tournament in {file.parent} has the {name} {earlier.get(name)}, not {value}"
            raise InputError("out", problem, fix)
    for before, now in zip(old, settings["members"], strict=False):
        if before != now:
            problem = f"{file.parent} has a tournament of {_names(old)}, not of {_names(settings['members'])}"
            if before["uid"] == now["uid"]:
                changed = "other weights or another limit of tokens"
                problem = f"member {before['uid']} of the tournament in {file.parent} now has {changed}"
            raise InputError("out", problem, fix)
    if len(old) > len(settings["members"]):
        problem = f"the tournament in {file.parent} has the member {old[len(settings['members'])]['uid']} too"
        raise InputError("out", problem, fix)


def _has_models(members: Sequence[dict[str, Any]]) -> bool:
    return any(one.get("kind") == "model" for one in members)


def _names(members: Sequence[dict[str, Any]]) -> str:
    return ", ".join(str(one["uid"]) for one in members)


def _read_games(file: Path) -> tuple[dict[int, PlayedGame], int]:
    """Return the games by number, and the size of the complete lines in bytes."""
    content = file.read_bytes() if file.is_file() else b""
    end = content.rfind(b"\n") + 1
    decoder = msgspec.json.Decoder(PlayedGame)
    played: dict[int, PlayedGame] = {}
    for number, line in enumerate(content[:end].splitlines(), start=1):
        try:
            game = decoder.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            problem = "the line is damaged"
            raise InputError(f"{file}, line {number}", problem, _AGAIN) from error
        if not game.is_possible():
            raise InputError(f"{file}, line {number}", "no finished game is so", _AGAIN)
        played.setdefault(game.game, game)
    return played, end


def _read_nash_convs(file: Path) -> dict[str, float]:
    if not file.is_file():
        return {}
    try:
        return {str(uid): float(value) for uid, value in json.loads(file.read_text(encoding="utf-8")).items()}
    except (ValueError, TypeError, AttributeError) as error:
        raise InputError(str(file), "is damaged", "Delete it; it is measured again") from error
