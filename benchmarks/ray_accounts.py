"""Check the accounts of a run on a cluster: no step is trained twice or lost, every update is made once.

    python benchmarks/ray_accounts.py RUN [RUN ...]

It reads copies of the files that the actors keep in the run's directory.
"""

import json
import shutil
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

from sparring.collection.buffer import BufferService
from sparring.collection.buffers import EpisodeBuffer, StepBuffer
from sparring.collection.games_in_flight import GamesInFlight
from sparring.collection.pool import PoolService
from sparring.collection.rollout_log import BatchLog
from sparring.config import Config, load_config
from sparring.run.rewards import composed_transforms

STEP_FATES = ("stored", "evicted", "dropped_stale", "sampled", "cleared")


@dataclass(frozen=True)
class Books:
    """The records that the actors of a run have written.

    ``lines`` are the lines of the trained batches, by update.
    """

    config: Config
    metrics: list[dict[str, Any]]
    lines: dict[int, list[dict[str, Any]]]
    ledger: GamesInFlight
    buffer: BufferService
    trained_records: int


def read_books(run: Path) -> Books:
    """Read the directory of a run that is not running."""
    config = load_config(str(run / "config.toml"), {})
    log = BatchLog(run / "batches")
    numbers = [int(path.name[6:12]) for path in (run / "batches").glob("batch-*.jsonl.gz")]
    saved = max(path for path in (run / "learner").glob("*") if path.name.isdigit())
    with tempfile.TemporaryDirectory() as scratch:
        state = shutil.copytree(run / "state", Path(scratch) / "state")
        pool = PoolService("mirror", 1, policies=config.policies, directory=str(state / "ModelPool"))
        kind = StepBuffer if config.buffer.type == "step" else EpisodeBuffer
        buffer = BufferService(
            kind(config.buffer.max_size, None, *composed_transforms(config)),
            max_staleness=config.collection.max_staleness,
            in_order=config.collection.max_staleness == 0,
            directory=str(state / "Buffer"),
        )
    return Books(
        config=config,
        metrics=[json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()],
        lines={number: log.read(number) for number in sorted(numbers)},
        ledger=pool.ledger,
        buffer=buffer,
        trained_records=json.loads((saved / "state.json").read_text())["trained_records"],
    )


def problems_of(run: Path) -> list[str]:
    """Return, in words, what does not add up in a finished run; empty if everything does."""
    books = read_books(run)
    found = [*_of_updates(run, books), *_of_training(books), *_of_games(books), *_of_steps(books)]
    if books.config.collection.max_staleness == 0:
        found += _of_lockstep(books)
    return found


def problems_of_program(run: Path, undisturbed: Path) -> list[str]:
    """Return, in words, what does not add up in a finished run of a program; empty if everything does.

    In lockstep, the adapters must be those of a run that nothing disturbed, up to rounding.
    """
    config = load_config(str(run / "config.toml"), {})
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    found = []
    if [line["step"] for line in lines] != list(range(1, config.learning.steps + 1)):
        found.append(f"the updates are {[line['step'] for line in lines]}")
    each = lines[0]["accounts/started"]
    for line in lines:
        fates = [line[f"accounts/{name}"] for name in ("started", "finished", "failed", "dropped")]
        if fates != [each * line["step"], each * line["step"], 0, 0]:
            found.append(f"update {line['step']}: {fates} episodes started, finished, failed and dropped")
    if config.collection.max_staleness == 0:
        found += [f"the adapter {name} differs" for name in _other_adapters(run, undisturbed)]
    return found


def _other_adapters(run: Path, undisturbed: Path) -> list[str]:
    """Return the adapters of the last checkpoint that are not those of the other run."""
    last = max((run / "checkpoints").iterdir())
    files = sorted(path.relative_to(run) for path in last.rglob("adapter_model.safetensors"))
    return [str(file) for file in files if not _close(load_file(run / file), load_file(undisturbed / file))]


def _close(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> bool:
    return one.keys() == other.keys() and all(np.allclose(one[k], other[k], atol=1e-5) for k in one)


def _of_updates(run: Path, books: Books) -> list[str]:
    steps, updates = [line["step"] for line in books.metrics], books.config.learning.steps
    found = []
    if steps != list(range(1, updates + 1)):
        found.append(f"metrics.jsonl has steps {steps}")
    if list(books.lines) != steps:
        found.append(f"there are batches {list(books.lines)}")
    for needed in ("report.html", f"checkpoints/step-{updates:06d}"):
        if not (run / needed).exists():
            found.append(f"there is no {needed}")
    return found


def _of_training(books: Books) -> list[str]:
    keys = Counter(
        (line["rollout_id"], line["role_id"], line["step_index"])
        for lines in books.lines.values()
        for line in lines
    )
    found = [f"{key} was trained {times} times" for key, times in keys.items() if times > 1][:3]
    if keys.total() != books.trained_records:
        found.append(f"{keys.total()} records in batches and {books.trained_records} trained")
    bound = books.config.collection.max_staleness
    for update, lines in books.lines.items():
        ages = {update - 1 - line["policy_version"] for line in lines}
        if not ages <= set(range(bound + 1)):
            found.append(f"update {update} has records of ages {sorted(ages)}")
    return found


def _of_games(books: Books) -> list[str]:
    accounts = books.ledger.accounts
    unfinished = [job for _, job in books.ledger.in_flight.values()] + books.ledger.again
    training = [job for job in unfinished if job.meta.type == "train"]
    found = []
    if accounts["started"] != accounts["finished"] + accounts["failed"] + len(training):
        found.append(f"{accounts} and {len(training)} games in flight do not add up")
    if accounts["failed"] or accounts["eval_failed"]:
        found.append(f"{accounts['failed'] + accounts['eval_failed']} games failed")
    known = [job for job in training if job.meta.index in books.buffer.seen]
    if len(books.buffer.seen) != accounts["finished"] + accounts["failed"] + len(known):
        found.append(
            f"the buffer knows {len(books.buffer.seen)} games, the pool {accounts['finished']} that finished"
        )
    return found


def _of_steps(books: Books) -> list[str]:
    counts = books.buffer.counts()
    found = []
    if counts["added"] != sum(counts[fate] for fate in STEP_FATES):
        found.append(f"steps do not add up: {counts}")
    if counts["sampled"] != books.trained_records:
        found.append(f"{counts['sampled']} steps left the buffer and {books.trained_records} were trained")
    return found


def _of_lockstep(books: Books) -> list[str]:
    """Every game that finished is trained, and no other game was ever started."""
    games = books.config.collection.games_per_step * books.config.learning.steps
    trained = {line["rollout_id"] for lines in books.lines.values() for line in lines}
    expected = {f"train-{index:08d}" for index in range(games)}
    found = []
    if trained != expected:
        missing, more = len(expected - trained), len(trained - expected)
        found.append(f"{missing} games were never trained, {more} should not have been")
    if books.ledger.accounts["finished"] != games:
        found.append(f"{books.ledger.accounts['finished']} games finished instead of {games}")
    return found


def main() -> None:
    """Check the runs named on the command line."""
    failed = False
    for name in sys.argv[1:]:
        problems = problems_of(Path(name))
        failed = failed or bool(problems)
        print(f"{name}: {'; '.join(problems) or 'everything adds up'}")
    sys.exit(failed)


if __name__ == "__main__":
    main()
