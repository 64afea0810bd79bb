"""Train a tiny run of every kind and compare its numbers with those that an earlier commit gave.

Kinds: a game, a game with two policies, a league, a debate, a proof (each in one process and on Ray), and
fine-tuning through a server of our own. What is kept of a run: every metric of every update (without
wall-clock times), the figures of its evaluations, and a hash of every tensor of every adapter that it saved.

    python benchmarks/golden_runs.py record FILE [KIND ...]
    python benchmarks/golden_runs.py check FILE [KIND ...]     exit code 1 where a number differs
    python benchmarks/golden_runs.py ray FILE [KIND ...]       the kinds on Ray against FILE's in one process

Numbers repeat to the last digit on the same machine with the same libraries; on Ray they agree up to the
rounding of other batch sizes.
"""

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from safetensors.numpy import load_file

from finetune_kills import REPEATING, config_of, running

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from program_runs import PROOFS
from tiny_models import roomy_model

PACKAGE = next((Path(__file__).parent.parent / "src").glob("*/__init__.py")).parent.name
PROGRAM = [sys.executable, "-c", f"from {PACKAGE}.cli.main import run; run()"]
LIMIT_SECONDS = 900.0
TINY = {
    "model.dtype": "float32",
    "model.threads": "1",
    "lora.rank": "2",
    "inference.max_tokens": "4",
    "learning.steps": "3",
    "learning.learning_rate": "0.003",
    "evaluation.every": "1",
    "run.save_every": "1",
    "run.keep_checkpoints": "8",
}
GAME = {
    "evaluation.games": "4",
    "evaluation.games_during": "4",
    "collection.games_per_step": "16",
    "evaluation.opponents": "['random', 'optimal']",
    "population.sample_mode": "random",
    "population.add_every": "1",
    "population.fixed_opponents": "['random']",
    "tracking.games_logged": "1000",
}
DILEMMA = """
[[envs]]
id = "IteratedPrisonersDilemma-v0-train"
template = "default"
max_turns = 6
policies = ["first", "second"]
[collection]
games_per_step = 8
[evaluation]
games = 4
games_during = 4
opponents = ["base"]
nash_conv = false
[learning]
average_decay = 0.5
[population]
sample_mode = "random"
add_every = 1
max_active_lora = 2
fixed_opponents = ["base"]
[tracking]
games_logged = 1000
[rewards]
final = [{type = "win_draw_loss", win = 1.0, draw = 0.5, loss = -1.0}]
sampling = []
"""
LEAGUE = """
[[envs]]
id = "kuhn_poker"
[league]
snapshot_updates = 2
[league.players]
default = {role = "main", share = 2.0}
attacker = {role = "main_exploiter"}
finder = {role = "league_exploiter"}
[population]
add_every = 2
max_active_lora = 2
[collection]
games_per_step = 40
[learning]
average_decay = 0.9
[learning.algorithm]
regulariser = "uniform"
[evaluation]
games = 4
games_during = 4
nash_conv = false
[tracking]
games_logged = 1000
"""
DEBATE = {
    "inference.max_tokens": "6",
    "program.max_tokens": "6",
    "program.evaluation_debates": "4",
    "learning.steps": "2",
    "learning.algorithm.kl_weight": "0.05",
}
KINDS = {
    "game": ("quickstart", GAME),
    "policies": (DILEMMA, {}),
    "league": (LEAGUE, {}),
    "debate": ("debate", DEBATE),
    "proof": ("nip", PROOFS),
}
"""The preset or the configuration of each kind of training run, and its settings."""
STAGES = {"finetune-ei": "pure_text_ei", "finetune-malt": "pure_text_malt"}
RAY = {"run.runtime": "ray", "ray.collectors": "2"}


def main() -> int:
    """Read the arguments, train, and record or compare."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("action", choices=["record", "check", "ray"])
    parser.add_argument("file", type=Path)
    parser.add_argument("kinds", nargs="*", help=f"of {', '.join([*KINDS, *STAGES])}; default: all")
    arguments = parser.parse_args()
    kinds = arguments.kinds or [*KINDS, *([] if arguments.action == "ray" else STAGES)]
    known = json.loads(arguments.file.read_text()) if arguments.file.exists() else {}
    failed = False
    for kind in kinds:
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="golden-") as folder:
            if kind in KINDS:
                found = trained(kind, Path(folder), RAY if arguments.action == "ray" else {})
            else:
                found = fine_tuned(STAGES[kind], Path(folder))
        seconds = f"{time.monotonic() - began:.0f} s"
        if arguments.action == "record":
            known[kind] = found
            arguments.file.write_text(json.dumps(known, indent=0, sort_keys=True))
            print(f"{kind}: recorded, {len(found)} numbers and hashes, {seconds}", flush=True)
            continue
        problems = differences(known[kind], found, exact=arguments.action == "check")
        failed |= bool(problems)
        print(f"{kind}: {'DIFFERS' if problems else 'the same'} ({len(found)} values, {seconds})", flush=True)
        print("".join(f"  {problem}\n" for problem in problems[:20]), end="", flush=True)
    return int(failed)


def trained(kind: str, folder: Path, more: dict[str, str]) -> dict[str, Any]:
    """Train a run of a kind and return what is kept of it."""
    preset, settings = KINDS[kind]
    if "\n" in preset:
        (folder / "run.toml").write_text(preset)
        preset = str(folder / "run.toml")
    settings = TINY | settings | more | {"model.name": str(roomy_model()), "run.directory": str(folder)}
    command = ["train", preset, "--name", "run", *(f"--{field}={value}" for field, value in settings.items())]
    execute(command)
    return kept_of(folder / "run")


def fine_tuned(trainer: str, folder: Path) -> dict[str, Any]:
    """Fine-tune through a server of our own and return what is kept of the run and of its adapters."""
    config = config_of(trainer, iterations=2, epochs=3)
    with running(folder / "system", str(roomy_model()), config, REPEATING) as system:
        if system.end(LIMIT_SECONDS):
            sys.exit(f"the run stopped:\n{(system.directory / 'log').read_text()[-3000:]}")
    drawn: dict[str, str] = {}
    kept: dict[str, Any] = {}
    for path in sorted(
        (system.directory / "jobs").rglob("adapter_model.safetensors"), key=lambda path: path.stat().st_mtime
    ):
        hashes = "".join(hash_of(path).values())
        drawn[hashes] = path.parent.name
    kept["adapters"] = sorted(hashlib.sha256(hashes.encode()).hexdigest() for hashes in drawn)
    for path in sorted(system.run.rglob("metrics.jsonl")):
        kept |= numbers_of(path, str(path.relative_to(system.run)))
    return kept


def environment() -> dict[str, str]:
    """The environment of a command: one thread."""
    return os.environ | {"OMP_NUM_THREADS": "1"}


def execute(command: list[str]) -> None:
    """Run a command of ours; it must succeed."""
    ended = subprocess.run(
        [*PROGRAM, *command], capture_output=True, text=True, timeout=LIMIT_SECONDS, env=environment()
    )
    if ended.returncode:
        sys.exit(f"{' '.join(command[:2])} failed:\n{ended.stdout[-3000:]}{ended.stderr[-3000:]}")


def kept_of(run: Path) -> dict[str, Any]:
    """The metrics, the evaluations' figures and the adapters' hashes of a run."""
    kept = numbers_of(run / "metrics.jsonl", "metrics")
    for path in sorted((run / "evaluation").glob("*.json")):
        kept |= {
            f"evaluation {path.stem} {name}": value for name, value in flat(json.loads(path.read_text()))
        }
    for path in sorted((run / "checkpoints").glob("step-*/**/adapter_model.safetensors")):
        name = path.parent.relative_to(run / "checkpoints")
        kept |= {f"adapter {name} {tensor}": value for tensor, value in hash_of(path).items()}
    return kept


def numbers_of(path: Path, label: str) -> dict[str, Any]:
    """Every number of every line of a file of metrics, without wall-clock times."""
    times = re.compile(r"wall_time|time/|.*(_seconds|_per_second|idle_share|/tok_s|seconds)$|memory|system")
    kept = {}
    for number, line in enumerate(path.read_text().splitlines()):
        for name, value in json.loads(line).items():
            if isinstance(value, int | float) and not times.match(name):
                kept[f"{label} {number} {name}"] = value
    return kept


def flat(value: Any, name: str = "") -> Iterator[tuple[str, float]]:
    """Every number in a JSON value, with its path."""
    if isinstance(value, dict):
        for key, one in value.items():
            yield from flat(one, f"{name}.{key}")
    elif isinstance(value, list):
        for number, one in enumerate(value):
            yield from flat(one, f"{name}[{number}]")
    elif isinstance(value, int | float) and "seconds" not in name and "time" not in name:
        yield name, value


def hash_of(path: Path) -> dict[str, str]:
    """A hash of every tensor of a file."""
    return {
        name: hashlib.sha256(tensor.tobytes()).hexdigest()[:16]
        for name, tensor in sorted(load_file(path).items())
    }


def differences(before: dict[str, Any], now: dict[str, Any], *, exact: bool) -> list[str]:
    """Say which values differ, by name, and then which are gone and which are new.

    On Ray (not ``exact``) values agree up to rounding, hashes are not compared, and the engine's own
    statistics, accounts of replays and what only one of the runtimes logs are left out.
    """
    problems = []
    for name in before.keys() & now.keys():
        one, other = before[name], now[name]
        if exact or (isinstance(one, list | str) and "hash" not in name and not name.startswith("adapter")):
            equal = one == other
        elif name.startswith("adapter") or " inference/" in name or " overlap/" in name:
            equal = True
        else:
            equal = abs(one - other) <= 1e-4 + 1e-3 * abs(one)
        if not equal:
            problems.append(f"{name}: {one} -> {other}")
    if not exact:
        return sorted(problems)
    gone = [f"gone: {name}" for name in before.keys() - now.keys()]
    new = [f"new: {name} = {now[name]}" for name in now.keys() - before.keys()]
    return [*sorted(problems), *sorted(gone), *sorted(new)]


if __name__ == "__main__":
    sys.exit(main())
