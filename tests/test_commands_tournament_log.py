"""The log of a tournament: what counts as played, cut and damaged lines."""

import json
import shutil
import zlib
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparring.commands.tournament import tournament
from sparring.core import InputError
from sparring.evaluation.match import Progress
from sparring.evaluation.tournament_files import PlayedGame, TournamentFiles, TournamentSettings
from tournaments import few_resamples, payoffs, play  # noqa: F401 - a fixture


def test_games_that_were_played_count_whatever_is_asked_for_later(tmp_path):
    out = tmp_path / "out"
    play(out, "random", "optimal", "--games", 20, "--budget", 30)
    for others in ([], ["--budget", 20]):
        play(out, "random", "optimal", "--games", 10, *others)
        assert sum(row["games"] for row in payoffs(out)["payoffs"] if row["seat"] == 0) == 30


class Counted(Progress):
    """Keeps how many games were done, and of how many."""

    def __init__(self):
        self.counts = []

    @contextmanager
    def doing(self, text, unit="", total=None):
        yield lambda *count: self.counts.append(count)


def test_games_that_are_not_played_again_are_counted_as_done(tmp_path):
    for games, counts in ((2, [(0, 2), (1, 2), (2, 2)]), (4, [(2, 4), (3, 4), (4, 4)]), (4, [(4, 4)])):
        progress = Counted()
        tournament(["random", "optimal"], "kuhn_poker", tmp_path / "out", games=games, progress=progress)
        assert progress.counts == counts


def changed(line: str, **changes) -> str:
    """A line of the log with other values, and with their checksum unless that is given."""
    game = json.loads(line) | changes
    if "crc" not in changes:
        del game["crc"]
        game["crc"] = zlib.crc32(json.dumps([*game.values()], separators=(",", ":")).encode())
    return json.dumps(game)


@pytest.fixture(scope="module")
def four(tmp_path_factory) -> Path:
    """A tournament of four games."""
    out = tmp_path_factory.mktemp("four") / "out"
    play(out, "random", "optimal", "--games", 4)
    return out


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"players": ["random", "third"]}, "games.jsonl: game 0 is not one of random and optimal. Delete"),
        ({"rewards": [99.0, -99.0]}, "game 0 has rewards that kuhn_poker cannot pay, [99.0, -99.0]"),
        ({"rewards": [1.0, 1.0, 1.0]}, "no finished game is so"),
        ({"rewards": []}, "no finished game is so"),
        ({"rewards": [1e999, 0.0]}, "the line is damaged"),
        ({"game": -1}, "no finished game is so"),
        ({"game": 10**12}, "game 1000000000000 is none of this tournament"),
        ({"game": 10**30}, "none of this tournament"),
        ({"invalid": 2}, "no finished game is so"),
        ({"invalid": "0"}, "the line is damaged"),
        ({"crc": 1}, "no finished game is so"),
    ],
)
def test_a_line_that_no_game_writes_is_an_error_of_one_line(four, tmp_path, capsys, changes, said):
    out = shutil.copytree(four, tmp_path / "out")
    first, *others = (out / "games.jsonl").read_text().splitlines()
    (out / "games.jsonl").write_text("\n".join([changed(first, **changes), *others, ""]))
    play(out, "random", "optimal", "--games", 4, status=2)
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("games.jsonl", "games.jsonl, line 1: the line is damaged"),
        ("nash_conv.json", "nash_conv.json: is damaged"),
        ("tournament.json", "tournament.json: is damaged"),
    ],
)
def test_a_file_that_is_nested_too_deeply_is_an_error_of_one_line(four, tmp_path, capsys, name, said):
    out = shutil.copytree(four, tmp_path / "out")
    (out / name).write_text('{"played": ' + "[" * 100_000 + "]" * 100_000 + "}\n")
    play(out, "random", "optimal", "--games", 4, status=2)
    assert said in capsys.readouterr().err


def test_no_flipped_bit_in_the_log_counts_as_a_result(tmp_path):
    """A bit in a name that the reader does not know leaves the result as it was."""
    settings = TournamentSettings({}, {}, 0, [], 1)
    files = TournamentFiles.open(tmp_path, settings)
    files.add(PlayedGame(3, ["a", "b"], [1.0, -1.0], None))
    files.close()
    whole = (tmp_path / "games.jsonl").read_bytes()
    for bit in range(8 * (len(whole) - 1)):
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        (tmp_path / "games.jsonl").write_bytes(flipped)
        try:
            files = TournamentFiles.open(tmp_path, settings)
        except InputError:
            continue
        found = [(game.game, game.players, game.rewards, game.invalid) for game in files.played.values()]
        files.close()
        assert found in ([], [(3, ["a", "b"], [1.0, -1.0], None)])


@pytest.fixture(scope="module")
def alone(tmp_path_factory) -> Path:
    """A tournament of scripts that was left alone."""
    out = tmp_path_factory.mktemp("alone") / "out"
    play(out, "random", "optimal", "--games", 10, "--budget", 30)
    return out


@settings(max_examples=2, deadline=None)
@given(kept=st.data())
def test_a_tournament_whose_log_ends_anywhere_goes_on_to_the_same_payoffs(kept, alone, tmp_path_factory):
    out = tmp_path_factory.mktemp("cut") / "out"
    shutil.copytree(alone, out)
    log = (alone / "games.jsonl").read_bytes()
    (out / "games.jsonl").write_bytes(log[: kept.draw(st.integers(0, len(log)))])
    for name in ("payoffs.json", "payoffs.csv", "tournament.html"):
        (out / name).unlink()
    play(out, "random", "optimal", "--games", 10, "--budget", 30)
    for name in ("payoffs.json", "payoffs.csv", "tournament.html"):
        assert (out / name).read_bytes() == (alone / name).read_bytes()
    assert len((out / "games.jsonl").read_bytes().splitlines()) == len(log.splitlines())
