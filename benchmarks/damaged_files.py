"""Damage every kind of file of an unfinished run, one at a time, and resume each copy.

    python benchmarks/damaged_files.py [--damages 100] [--seed 0]

A damage flips one bit, cuts the file at a random byte, sets a part of it to zero, or deletes it. A copy of
the run with one damage is resumed in this process, and its end is compared with that of a whole copy: the
bytes of all adapters and learners, the metrics apart from wall-clock fields, the rollouts and the
evaluations. The outcomes:

- fell back: a line names the damage, and the end is equal;
- noticed: a line names the damage, and what is trained is equal; the damaged file stays as it is;
- refused: one clear line, and no file is changed but the number of the start;
- harmless: no line, and the end is equal;
- anything else is a fault: an unequal end without a word, a damage that was trained on, or a stack trace.

The command ends with status 1 if there is a fault.
"""

import argparse
import hashlib
import io
import json
import random
import shutil
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rich.console import Console

from kill_resume import fingerprint
from sparring.core import SparringError
from sparring.run.single_process import resume

UPDATES = 4
"""With so many updates, a run that has made fewer is complete."""
BOOKKEEPING = (".epoch", ".lock")
TRAINED = ("adapters", "learners", "metrics")
NAMING = ("damaged", "is not what the run wrote", "but the checkpoint expects", "changed since")


def kinds(run: Path) -> dict[str, list[Path]]:
    """Return the files of a run by kind: their paths without numbers."""
    found = defaultdict(list)
    for path in sorted(run.rglob("*")):
        if path.is_file() and path.name not in BOOKKEEPING:
            name = path.relative_to(run).as_posix()
            found["".join("N" if one.isdigit() else one for one in name).replace("NN", "N")].append(path)
    return found


def damages(content: bytes, rng: random.Random) -> Iterator[tuple[str, bytes | None]]:
    """Yield damages of a file by name, without end; ``None`` stands for no file."""
    while True:
        place = rng.randrange(len(content)) if content else 0
        flipped = bytearray(content or b"\0")
        flipped[place] ^= 1 << rng.randrange(8)
        yield "flip", bytes(flipped)
        yield "cut", content[:place]
        zeroed = bytearray(content)
        zeroed[place : place + 512] = bytes(len(zeroed[place : place + 512]))
        yield "zeros", bytes(zeroed)
        yield "gone", None


def end_of(run: Path) -> dict[str, Any]:
    """Return everything at the end of a run that must be equal."""
    last = max((run / "checkpoints").glob("step-*"))
    learners = {
        path.relative_to(last).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(last.rglob("*.safetensors"))
    }
    bests = {
        path.relative_to(run).as_posix(): path.read_bytes()
        for path in sorted(run.glob("best/*/measured.json"))
    }
    return fingerprint(run) | {"learners": learners, "bests": bests}


def contents(run: Path) -> dict[str, bytes]:
    """Return all files of a run but those that count its starts."""
    files = (path for path in run.rglob("*") if path.is_file() and path.name not in BOOKKEEPING)
    return {path.relative_to(run).as_posix(): path.read_bytes() for path in files}


def outcome_of(run: Path, whole: dict[str, Any], updates: int = UPDATES) -> tuple[str, str]:
    """Resume a damaged copy of a run; return the outcome and what was printed."""
    before, text = contents(run), io.StringIO()
    try:
        resume(run, Console(file=text, width=10_000), {"learning.steps": str(updates)})
    except SparringError as error:
        one_line = "\n" not in str(error)
        return ("refused" if one_line and contents(run) == before else "FAULT: not a clean refusal"), str(
            error
        )
    except Exception as error:  # noqa: BLE001 (that is what is looked for)
        return "FAULT: stack trace", repr(error)
    said = text.getvalue()
    said = said.replace("changed since the last checkpoint: learning.steps\n", "")  # asked for, above
    line = next((line for line in said.splitlines() if any(word in line for word in NAMING)), "")
    try:
        end = end_of(run)
    except (OSError, ValueError, KeyError) as error:  # a damaged file that stays, and is no file of training
        end = dict.fromkeys(whole) | {"unreadable": repr(error)}
        adapters = sorted(max((run / "checkpoints").glob("step-*")).rglob("*.safetensors"))
        end["learners"] = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in adapters}
        end["adapters"], end["metrics"] = whole["adapters"], whole["metrics"]
    differing = [name for name in whole if end[name] != whole[name]]
    if not differing:
        return ("fell back" if line else "harmless"), line
    if line and not {*differing} & {"adapters", "learners"}:
        return "noticed", line
    return f"FAULT: another {', '.join(differing)}", line or said


def damage_all(
    unfinished: Path, scratch: Path, count: int, seed: int, say: Callable[[str], None], updates: int = UPDATES
) -> dict[str, Counter[str]]:
    """Make ``count`` damages, in turn over the kinds of files; return the outcomes by kind.

    Args:
        unfinished: the run, which is not changed.
        scratch: an empty directory.
        count: the number of damages.
        seed: determines them.
        say: is told of every fault.
        updates: the updates with which the run is complete.
    """
    rng = random.Random(seed)
    shutil.copytree(unfinished, scratch / "whole")
    resume(scratch / "whole", Console(file=io.StringIO()), {"learning.steps": str(updates)})
    whole = end_of(scratch / "whole")
    files = kinds(unfinished)
    streams = {
        kind: [(path, damages(path.read_bytes(), rng)) for path in rng.sample(paths, len(paths))]
        for kind, paths in files.items()
    }
    found: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for number in range(count):
        turn, place = divmod(number, len(streams))
        kind = list(streams)[place]
        path, stream = streams[kind][turn % len(streams[kind])]
        if turn < len(streams[kind]):
            for _ in range(place % 4):
                next(stream)  # kinds begin with different damages
        name, content = next(stream)
        copy = Path(shutil.copytree(unfinished, scratch / "copy"))
        target = copy / path.relative_to(unfinished)
        if content is None:
            target.unlink()
        else:
            target.write_bytes(content)
        outcome, said = outcome_of(copy, whole, updates)
        found[kind][outcome] += 1
        if outcome.startswith("FAULT"):
            say(f"{path.relative_to(unfinished)}, {name}: {outcome}: {said}")
        shutil.rmtree(copy)
    return found


def make_run(path: Path, model: Path, updates: int = 2) -> None:
    """Train a small run with frozen copies, a best adapter and an average, and two checkpoints."""
    from sparring.config import load_config
    from sparring.run.single_process import train

    settings = {
        "model.name": str(model),
        "model.dtype": "float32",
        "model.threads": "1",
        "lora.rank": "2",
        "inference.max_tokens": "4",
        "collection.games_per_step": "4",
        "learning.steps": str(updates),
        "learning.schedule": "constant",
        "learning.average_decay": "0.5",
        "evaluation.every": "1",
        "evaluation.games": "2",
        "evaluation.games_during": "2",
        "evaluation.nash_conv": "false",
        "population.sample_mode": "lagged",
        "population.add_every": "1",
        "run.keep_best": "mean reward against random",
        "run.save_every": "1",
    }
    train(load_config("kuhn", settings), path, Console(file=io.StringIO()))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--damages", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
    from tiny_models import roomy_model

    with tempfile.TemporaryDirectory() as scratch:
        unfinished = Path(scratch) / "run"
        make_run(unfinished, roomy_model())
        found = damage_all(unfinished, Path(scratch), options.damages, options.seed, print)
    outcomes = ["fell back", "noticed", "refused", "harmless"]
    print("| file | damages | " + " | ".join(outcomes) + " | faults |")
    print("|---|" + "---|" * (len(outcomes) + 2))
    total: Counter[str] = Counter()
    for kind, counts in [*sorted(found.items()), ("all", total)]:
        shown = [counts[one] for one in outcomes]
        row = [counts.total(), *shown, counts.total() - sum(shown)]
        print(f"| {kind} | " + " | ".join(map(str, row)) + " |")
        total += counts
    print(json.dumps({"seed": options.seed, "damages": total.total() // 2}))
    sys.exit(any(one not in outcomes for one in total))


if __name__ == "__main__":
    main()
