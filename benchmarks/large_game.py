"""A game of millions: exact exploitability in phantom tic-tac-toe, 5,990,669 information states.

- ``uniform``: build the arrays of phantom tic-tac-toe and of dark hex 3, and measure uniform play. For dark
  hex 3, exp-a-spiel (Rudolph et al., arXiv 2502.08938) publishes the same 6,072,917 states and, in single
  precision, the value 0.333684 and gains of 0.666318 and 1.166488, so that best responses are worth 1.000002
  and 0.832804. It is C++ that visits all histories, in about 75 s on 16 threads.
- ``rate``: how fast a model is asked, on blocks of neighbours from all over the game, until ``--seconds``
  have passed or 1% is done, and how long the whole would take at that rate, on one thread.

Times are seconds of the processor, which other processes may use too.

Command:  python benchmarks/large_game.py uniform
          python benchmarks/large_game.py rate [--model smollm2-135m] [--seconds 400]
Needs:    this package, and 2.3 GB.
"""

import argparse
import asyncio
import os
import resource
from time import perf_counter, process_time

from measuring import pin_one_thread, print_table
from record_batches import auto_dtype
from sparring.core.adapters import BUNDLED_MODEL
from sparring.engine.engine import EmbeddedEngine
from sparring.envs.templates import get_template
from sparring.evaluation.board_policy import AnswersInOrder, board_rules
from sparring.evaluation.hidden_board import BoardRules, HiddenBoard, dark_hex
from sparring.evaluation.hidden_board_gains import gains, uniform_policy
from sparring.learn.model_files import resolve_model
from sparring.learn.policy import TRAINED, LoraSettings, PolicyModel

GAME, TEMPLATE = "phantom_ttt", "fewshot-chat"
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


async def rate(engine: EmbeddedEngine, board: HiddenBoard, limit: float) -> None:
    engine.publish(TRAINED, TRAINED, 0)
    asked = AnswersInOrder(engine, board, GAME, get_template(TEMPLATE), (TRAINED, TRAINED))
    rows = sum(map(len, board.states))
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("what", choices=["uniform", "rate"])
    parser.add_argument("--model", default=BUNDLED_MODEL)
    parser.add_argument("--seconds", type=float, default=400.0)
    given = parser.parse_args()
    print(f"load {os.getloadavg()[0]:.1f}")
    if given.what == "uniform":
        uniform()
        return
    pin_one_thread()
    model = PolicyModel(resolve_model(given.model, print), LoraSettings(), dtype=auto_dtype())
    started = perf_counter()
    board = HiddenBoard.build(board_rules(GAME))
    print(f"built in {perf_counter() - started:.0f} s")
    asyncio.run(rate(EmbeddedEngine(model), board, given.seconds))


if __name__ == "__main__":
    main()
