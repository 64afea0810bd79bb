"""Run a ladder: play the cells that are missing, and write what all of them come to."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sparring.commands.ladder.cells import LadderCell, LadderGame, games_of, run_cells
from sparring.commands.ladder.file import read_ladder
from sparring.commands.ladder.others import other_cells
from sparring.commands.ladder.page import ladder_html
from sparring.commands.ladder.results import PAGE, RESULTS, CellResult, LadderResult, machine, value_text
from sparring.commands.ladder.running import Play, play_cells
from sparring.commands.ladder.standings import standings_of
from sparring.core.files import unwritable, write_file
from sparring.core.text import counted, one_line, precise_duration_text
from sparring.evaluation.match import Progress
from sparring.evaluation.tournament_files import lock_results
from sparring.run.hardware import available_cores

MOST_JOBS = 2


@dataclass
class _Board:
    """The cells so far, and the files about them."""

    name: str
    measure: str
    games: Sequence[LadderGame]
    cells: Sequence[LadderCell]
    out: Path
    progress: Progress

    def __post_init__(self) -> None:
        self._problems = dict[str, str]()
        self._complete = dict[str, CellResult]()
        scales = {game.name: game.scale() for game in self.games}
        self.result = LadderResult(measure=self.measure, scales=scales, cells=[], **machine())
        self.write()

    def ended(self, cell: LadderCell, problem: str) -> None:
        """Take note of a cell that has ended."""
        self._problems[cell.name] = problem
        self.write()
        last = next(one for one in self.result.cells if one.name == cell.name)
        self.progress.say(f"{cell.name}: {_outcome(last, self.measure)}")

    def write(self) -> None:
        """Write what is known."""
        self.result.cells = list(map(self._found, self.cells))
        self.result.write(self.out)
        page = ladder_html(self.name, self.result, standings_of(self.result))
        write_file(self.out / PAGE, page.encode())

    def _found(self, cell: LadderCell) -> CellResult:
        if cell.name in self._complete:
            return self._complete[cell.name]
        found = cell.result(self.measure, self._problems.get(cell.name, ""))
        if found.points:
            self._complete[cell.name] = found
        return found


def run_ladder(
    file: Path,
    out: Path,
    *,
    jobs: int | None = None,
    progress: Progress | None = None,
    play: Play | None = None,
) -> LadderResult:
    """Play the cells of a ladder that are missing in a directory, and return all of them.

    Args:
        jobs: cells at a time; by default two, or one on a single core.
        play: runs a cell's command; by default in a process of its own.

    Raises:
        InputError: the file is wrong, or the directory holds something else or is in use.
        SparringError: the directory cannot be written.
        KeyboardInterrupt: it was interrupted; the cells have saved what they learned.
    """
    progress = progress or Progress()
    ladder = read_ladder(file)
    games = games_of(ladder)
    cells = [*run_cells(ladder, games, out), *other_cells(ladder, games, out)]
    lock = lock_results(out, RESULTS, "--out", "ladder")
    try:
        board = _Board(file.stem, ladder.measure, games, cells, out, progress)
        missing = [cell for cell, found in zip(cells, board.result.cells, strict=True) if not found.points]
        if missing:
            progress.say(f"{len(cells) - len(missing)} of {len(cells)} cells are complete")
            with progress.doing("playing", "cells", len(missing)) as count:
                ended = 0

                def done(cell: LadderCell, problem: str) -> None:
                    nonlocal ended
                    ended += 1
                    board.ended(cell, problem)
                    count(ended, len(missing))

                play_cells(missing, jobs or min(MOST_JOBS, available_cores()), done, play)
        return board.result
    except KeyboardInterrupt:
        progress.say("stopped; give the same command again, and it goes on")
        raise
    except OSError as error:
        raise unwritable(out, error) from error
    finally:
        os.close(lock)


def _outcome(cell: CellResult, measure: str) -> str:
    if cell.problem:
        return f"failed: {one_line(cell.problem)}"
    last = cell.points[-1]
    after = [] if last.games is None else [counted(last.games, "game")]
    after += [] if last.seconds is None else [precise_duration_text(last.seconds)]
    value = value_text(last.value, is_share=cell.is_share)
    return f"{measure} {value}" + (f" after {', '.join(after)}" if after else "")
