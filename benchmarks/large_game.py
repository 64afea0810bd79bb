"""A game of millions: exact exploitability in phantom tic-tac-toe, 5,990,669 information states.

- ``uniform``: build the arrays of phantom tic-tac-toe and of dark hex 3, and measure uniform play. For dark
  hex 3, exp-a-spiel (Rudolph et al., arXiv 2502.08938) publishes the same 6,072,917 states and, in single
  precision, the value 0.333684 and gains of 0.666318 and 1.166488, so that best responses are worth 1.000002
  and 0.832804. It is C++ that visits all histories, in about 75 s on 16 threads.
- ``rate``: how fast a model is asked, on blocks of neighbours from all over the game, until ``--seconds``
  have passed or 1% is done, and how long the whole would take at that rate, on one thread.
- ``whole``: ask for all states, streamed to ``--table``, and measure the model. Killed and started again, it
  goes on.

Times are seconds of the processor, which other processes may use too.

``--start`` are the actions after which the game starts, for a smaller one. ``--model random`` is a random
model of two layers and width 32, with SmolLM2's tokenizer.

Command:  python benchmarks/large_game.py uniform
          python benchmarks/large_game.py rate [--model smollm2-135m] [--seconds 400]
          python benchmarks/large_game.py whole --table FILE [--model NAME] [--start 4 0 8] [--device cuda]
Needs:    this package, and 2.3 GB.
"""

import argparse
import asyncio
import os
import resource
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter, process_time

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from measuring import pin_one_thread, print_table
from record_batches import auto_dtype
from sparring.core.adapters import BUNDLED_MODEL
from sparring.engine.engine import EmbeddedEngine
from sparring.envs.templates import get_template
from sparring.evaluation.board_policy import AnswersInOrder, board_rules, fill_table, policy_of
from sparring.evaluation.hidden_board import BoardRules, HiddenBoard, dark_hex
from sparring.evaluation.hidden_board_gains import BoardGains, gains, uniform_policy
from sparring.evaluation.policy_table import PolicyTable, TableHeader, read_table
from sparring.learn.model_files import load_tokenizer, resolve_model
from sparring.learn.policy import TRAINED, LoraSettings, PolicyModel

GAME, TEMPLATE, RANDOM = "phantom_ttt", "fewshot-chat", "random"
BLOCK_ROWS = 1024
SHARE = 0.01


def measured(name: str, rules: BoardRules) -> list[str]:
    started = process_time()
    board = HiddenBoard.build(rules)
    built = process_time()
    exact = gains(board, (uniform_policy(board.states[0]), uniform_policy(board.states[1])))
    seconds = [built - started, process_time() - built]
    pairs = sum(len(level.state_P) for states in board.states for level in states.pairs)
    sizes = [sum(map(len, board.states)), pairs]
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    numbers = [exact.values[0], *exact.best_response_values, *exact.exploitability, exact.nash_conv]
    return [
        name,
        *(f"{size:,}" for size in sizes),
        *(f"{number:.6f}" for number in numbers),
        *(f"{one:.0f} s" for one in seconds),
        f"{memory:.1f} GB",
    ]


def uniform() -> None:
    header = ["game", "states", "pairs", "value", "best 0", "best 1", "gain 0", "gain 1", "NashConv"]
    rows = [measured(GAME, board_rules(GAME)), measured("dark hex 3", dark_hex(3, 3))]
    print_table([*header, "build", "measure", "peak memory"], rows)


def random_model(directory: Path) -> str:
    """Save a tiny model with random weights and SmolLM2's tokenizer; return its directory."""
    tokenizer = load_tokenizer(resolve_model(BUNDLED_MODEL, print))
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        initializer_range=0.3,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    LlamaForCausalLM(config).save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return str(directory)


def load(name: str, device: str, scratch: Path) -> PolicyModel:
    model = random_model(scratch) if name == RANDOM else resolve_model(name, print)
    dtype = torch.float32 if name == RANDOM else auto_dtype() if device == "cpu" else torch.bfloat16
    return PolicyModel(model, LoraSettings(), dtype=dtype, device=device)


def asking(engine: EmbeddedEngine, board: HiddenBoard) -> AnswersInOrder:
    engine.publish(TRAINED, TRAINED, 0)
    return AnswersInOrder(engine, board, GAME, get_template(TEMPLATE), TRAINED)


async def rate(engine: EmbeddedEngine, board: HiddenBoard, limit: float) -> None:
    asked, rows = asking(engine, board), sum(map(len, board.states))
    blocks = rows // BLOCK_ROWS
    count = max(1, round(SHARE * blocks))
    # Every part of the game comes early, however soon time is over.
    order = [int(blocks * (place * 0.6180339887 % 1)) for place in range(count)]
    await asked.block(range(min(64, rows)))  # compiles and warms up
    engine.reset_stats()
    started, used, done = perf_counter(), process_time(), 0
    for block in order:
        await asked.block(range(block * BLOCK_ROWS, min((block + 1) * BLOCK_ROWS, rows)))
        done += BLOCK_ROWS
        if perf_counter() - started > limit:
            break
    seconds, used, stats = perf_counter() - started, process_time() - used, engine.stats
    print_table(
        ["states", "share", "seconds", "of the processor", "tokens a state", "states/s", "the whole"],
        [
            [
                f"{done:,}",
                f"{done / rows:.2%}",
                f"{seconds:.0f}",
                f"{used:.0f}",
                f"{stats.computed_tokens / done:.1f}",
                f"{done / used:.1f}",
                f"{rows / done * used / 3600:.1f} h",
            ]
        ],
    )


def print_gains(exact: BoardGains) -> None:
    print_table(
        ["seat", "value", "best response", "gain"],
        [
            [
                str(seat),
                *(
                    f"{one[seat]:.6f}"
                    for one in (exact.values, exact.best_response_values, exact.exploitability)
                ),
            ]
            for seat in (0, 1)
        ],
    )
    print(f"NashConv {exact.nash_conv:.6f}")


async def whole(engine: EmbeddedEngine, name: str, board: HiddenBoard, path: Path) -> None:
    model, rows = engine.model, sum(map(len, board.states))
    header = TableHeader(
        GAME, TEMPLATE, name, dict(model.base), str(model.dtype), rows, board.rules.cells,
        BLOCK_ROWS, board.start,
    )  # fmt: skip
    with PolicyTable(path, header) as table:
        before, started = table.done, perf_counter()
        await fill_table(table, asking(engine, board))
        seconds = perf_counter() - started
        print(f"{table.done - before:,} of {rows:,} information states in {seconds:,.0f} s")
    started = perf_counter()
    policy = policy_of(board, read_table(path)[1])
    exact = gains(board, policy.policies)
    print(f"read and measured in {perf_counter() - started:.0f} s; legal mass {policy.legal_mass:.4f}")
    print_gains(exact)
    print("uniform play:")
    print_gains(gains(board, (uniform_policy(board.states[0]), uniform_policy(board.states[1]))))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("what", choices=["uniform", "rate", "whole"])
    parser.add_argument("--model", default=BUNDLED_MODEL)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seconds", type=float, default=400.0)
    parser.add_argument("--start", type=int, nargs="*", default=[])
    parser.add_argument("--table", type=Path)
    given = parser.parse_args()
    print(f"load {os.getloadavg()[0]:.1f}")
    if given.what == "uniform":
        uniform()
        return
    if given.device == "cpu":
        pin_one_thread()
    with TemporaryDirectory() as scratch:
        engine = EmbeddedEngine(load(given.model, given.device, Path(scratch)))
        started = perf_counter()
        board = HiddenBoard.build(board_rules(GAME), given.start)
        print(f"built in {perf_counter() - started:.0f} s")
        if given.what == "rate":
            asyncio.run(rate(engine, board, given.seconds))
        else:
            asyncio.run(whole(engine, given.model, board, given.table or Path(scratch) / "table"))


if __name__ == "__main__":
    main()
