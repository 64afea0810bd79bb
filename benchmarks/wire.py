"""What a run on Ray sends between its actors: messages and bytes of an update, by actors and kind.

    python benchmarks/wire.py [--cases kuhn ...] [--updates 3]

Each case is a run on Ray with its actors in one process (``counted_cluster.py``), so that any machine can
tell; the bytes are those of arguments, answers and fetched objects as Ray pickles them, and of the adapters
that engines read. Ray's own frames come on top. The model is tiny and random, with the tokenizer of SmolLM2
(``--smollm2``: SmolLM2 itself), and has learned the words of the game. Figures are means of the updates after
the first, without start and end. To compare two versions, set PYTHONPATH to the package of the other.
"""

import argparse
import shutil
import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from rich.console import Console
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from sparring.cluster.connect import import_ray

import_ray(silent=True)

from counted_cluster import CountedCluster, Sent  # noqa: E402
from measuring import print_table  # noqa: E402
from playing_model import CONTEXT_LENGTH, teach  # noqa: E402
from sparring.cluster.run import train  # noqa: E402
from sparring.config import load_config  # noqa: E402

COMMON = {
    "model.threads": "1",
    "run.runtime": "ray",
    "run.save_every": "1000",
    "evaluation.every": "0",
}
OF_GAMES = {"evaluation.games": "4", "evaluation.opponents": "[]"}
CASES = {
    "kuhn": ("quickstart", OF_GAMES | {"collection.games_per_step": "256", "evaluation.nash_conv": "false"}),
    "tictactoe": ("tictactoe", OF_GAMES | {"collection.games_per_step": "48"}),
    "debate": ("debate", {"program.evaluation_debates": "1"}),
    "long debate": ("debate", {"program.evaluation_debates": "1", "program.num_rounds": "10"}),
}
LESSONS = {
    "kuhn": ("kuhn_poker", ("check", "bet", "fold", "call")),
    "tictactoe": ("TicTacToe-v0-train", tuple(f"[{place}]" for place in range(9))),
}
Pair = tuple[str, str, str]


def save_model(directory: Path, tokenizer: Path, case: str) -> Path:
    """Save a tiny Llama with a tokenizer; it knows the words of a case's game, if it is one."""
    if directory.exists():
        return directory
    directory.mkdir(parents=True)
    for file in tokenizer.iterdir():
        if file.is_file() and file.suffix != ".safetensors" and file.name != "config.json":
            shutil.copy(file, directory)
    known = AutoTokenizer.from_pretrained(directory)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(known),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT_LENGTH,
        eos_token_id=known.eos_token_id,
    )
    model = LlamaForCausalLM(config)
    if case in LESSONS:
        teach(model, known, *LESSONS[case])
    model.save_pretrained(directory)
    return directory


def measure(case: str, model: Path, run: Path, more: dict[str, str]) -> list[Sent]:
    """Train; return what was sent from the first update to the last."""
    preset, changes = CASES[case]
    config = load_config(preset, COMMON | changes | {"model.name": str(model)} | more)
    cluster = CountedCluster()
    with cluster.in_place_of_ray():
        train(config, run, Console(file=sys.stderr))
    updates = [place for place, one in enumerate(cluster.sent) if one.what == "update"]
    return cluster.sent[updates[0] + 1 : updates[-1] + 1]


def print_figures(sent: list[Sent], updates: int, least: float) -> None:
    """Print a table; pairs with a smaller share of the bytes than ``least`` are one line."""
    sizes = Counter[Pair]()
    for one in sent:
        sizes[one.sender, one.receiver, one.what] += one.size
    messages, kinds = Counter[Pair](), defaultdict[Pair, Counter[str]](Counter)
    for one in sent:
        pair = one.sender, one.receiver, one.what
        for key in [pair if sizes[pair] >= least * sizes.total() else ("others", "", ""), ("all", "", "")]:
            messages[key] += 1
            kinds[key].update(one.kinds)
    names = sorted({kind for one in kinds.values() for kind in one})
    rows = [
        [*key, f"{messages[key] / updates:,.0f}", f"{own.total() / updates:,.0f}"]
        + [f"{own[name] / own.total():.0%}" for name in names]
        for key, own in sorted(kinds.items(), key=lambda item: -item[1].total())
    ]
    print_table(["from", "to", "what", "messages", "bytes", *names], rows)


def adapter_of(run: Path) -> str:
    """Return a hash of the adapters of the last checkpoint, to see that two versions compute the same."""
    last = max((run / "checkpoints").iterdir())
    files = sorted(last.rglob("adapter_model.safetensors"))
    return sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:12]


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure each case."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--cases", nargs="*", choices=CASES, default=list(CASES))
    parser.add_argument("--updates", type=int, default=3)
    parser.add_argument("--engines", default="2")
    parser.add_argument("--collectors", default="2")
    parser.add_argument("--tokenizer", type=Path, default=Path.home() / ".cache/sparring/smollm2-135m")
    parser.add_argument("--smollm2", action="store_true")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--models", type=Path, help="where models are kept for the next time")
    given = parser.parse_args(arguments)
    more = {
        "model.dtype": given.dtype,
        "learning.steps": str(given.updates),
        "ray.engines": given.engines,
        "ray.collectors": given.collectors,
    }
    for case in given.cases:
        with TemporaryDirectory() as scratch:
            there = Path(scratch)
            model = given.tokenizer
            if not given.smollm2:
                model = save_model((given.models or there) / case, given.tokenizer, case)
            sent = measure(case, model, there / "run", more)
            print(f"\n{case}: {given.updates - 1} updates, adapter {adapter_of(there / 'run')}")
            print_figures(sent, given.updates - 1, 0.01)


if __name__ == "__main__":
    main()
