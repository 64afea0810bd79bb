"""``sparring export --rollouts``: the rollouts of a run as one Parquet file."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from sparring.collection import RolloutLog
from sparring.collection.sinks import read_metrics
from sparring.commands.rollout_rows import COLUMNS, Row, rows_of
from sparring.config import Config, load_config
from sparring.core import InputError, SparringError
from sparring.core.errors import imported
from sparring.core.files import replaced_users_file
from sparring.run.run_directory import RunDirectory
from sparring.run.run_names import find_run
from sparring.view.batches import BatchRewards

SUFFIX = ".parquet"
GROUP_BYTES = 32 * 2**20
"""So much of the table is held in memory before it is written."""
GROUP_ROLLOUTS = 2000
"""So many rollouts are, at most: however short they are, each takes 45 kB until then."""
MOST_NAMED = 20
"""So many damaged lines are named one by one."""


class Exported(NamedTuple):
    """The numbers of rows, rollouts and updates that were written, and how many rollouts were played.

    A run logs ``tracking.games_logged`` of an update, ``logged``, and every failed one. ``played`` is 0 where
    the run's metrics do not say.
    """

    rows: int
    rollouts: int
    updates: int
    played: int
    logged: int


def export_rollouts(name: str, out: Path, say: Callable[[str], None]) -> Exported:
    """Write every rollout that a run has logged, a row for each answer; see :data:`COLUMNS`.

    Only a part of the log is in memory at a time. ``say`` is told of each damaged line, which is left out.

    Raises:
        InputError: there is no such run, it has no rollouts, ``out`` exists or is no name of a Parquet file,
            or pyarrow is not installed.
        SparringError: ``out`` cannot be written.
    """
    if out.suffix != SUFFIX:
        raise InputError("OUT", f"{out} is no name of a Parquet file", f"End it in {SUFFIX}")
    if out.exists():
        raise InputError("OUT", f"{out} exists already", "Name a new file")
    imported("--rollouts", "parquet", "pyarrow", "pyarrow.parquet")
    run = RunDirectory.open(find_run(name))
    log = RolloutLog(run.rollouts)
    if not log.steps():
        raise InputError("RUN", f"{name} has logged no rollouts", "Name a run that has played an update")
    config = load_config(str(run.config_file), {})
    rows = rollouts = damaged = 0
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with replaced_users_file(out) as file, _written_to(file) as add:
            for found in _rows_by_rollout(run, config, log, add):
                if isinstance(found, int):
                    rows, rollouts = rows + found, rollouts + 1
                    continue
                damaged += 1
                if damaged <= MOST_NAMED:
                    say(f"left out: {found.field}: {found.problem}")
    except OSError as error:
        raise SparringError(f"{out} cannot be written ({error})") from error
    if damaged > MOST_NAMED:
        say(f"left out: {damaged - MOST_NAMED} more damaged lines")
    return Exported(rows, rollouts, len(log.steps()), _played(run), config.tracking.games_logged)


def _played(run: RunDirectory) -> int:
    last = (read_metrics(run.metrics_file) or [{}])[-1]
    return sum(int(last.get(f"accounts/{name}", 0)) for name in ("finished", "failed"))


def _rows_by_rollout(
    run: RunDirectory, config: Config, log: RolloutLog, add: Callable[[list[Row]], None]
) -> Iterator[int | InputError]:
    """Add all rollouts of a run; yield each one's number of rows, and for a damaged line its error."""
    batches = BatchRewards(
        run.path,
        has_buffer=config.uses_buffer,
        has_critic=lambda policy: config.learning.of_policy(policy).critic is not None,
        max_staleness=config.collection.max_staleness,
    )
    for update in log.steps():
        for line, found in enumerate(log.lines(update), 1):
            if isinstance(found, InputError):
                yield found
                continue
            batches.add_to(update, [found])
            try:
                rows = [*rows_of(update, line, found)]
                add(rows)
            except (ValueError, TypeError, OverflowError) as error:  # such as an id or a time of 100 digits
                place = f"{log.path(update)}, line {line}"
                yield InputError(place, f"the line is damaged: {error}", "Restore the file")
            else:
                yield len(rows)


@contextmanager
def _written_to(file: BinaryIO) -> Iterator[Callable[[list[Row]], None]]:
    """Provide what adds rows to a Parquet file; all that was added is written when the body ends.

    It raises a ValueError, TypeError or OverflowError for rows that do not fit, and adds none of them.
    """
    import pyarrow
    from pyarrow.parquet import ParquetWriter

    number, text = pyarrow.float64(), pyarrow.string()
    kinds = {
        "integer": pyarrow.int64(),
        "number": number,
        "truth": pyarrow.bool_(),
        "text": text,
        "integers": pyarrow.list_(pyarrow.int64()),
        "numbers": pyarrow.list_(number),
        "messages": pyarrow.list_(pyarrow.struct({"role": text, "content": text})),
        "json": text,
        "time": pyarrow.timestamp("us", "UTC"),
    }
    schema = pyarrow.schema([(column, kinds[kind]) for column, kind in COLUMNS.items()])
    waiting: list[Any] = []
    size = 0

    def add(rows: list[Row]) -> None:
        nonlocal size
        batch = pyarrow.RecordBatch.from_pylist(rows, schema)
        waiting.append(batch)
        size += batch.nbytes
        if size > GROUP_BYTES or len(waiting) == GROUP_ROLLOUTS:
            write()

    def write() -> None:
        nonlocal size
        writer.write_table(pyarrow.Table.from_batches(waiting, schema).combine_chunks())
        waiting.clear()
        size = 0

    with ParquetWriter(file, schema, compression="zstd") as writer:
        yield add
        write()
