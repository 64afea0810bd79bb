"""Long answers: many conversations in flight whose answers together exceed the cache many times.

Each conversation asks twice: its second prompt is the first, the answer to it, and one more turn, by token
history. An answer ends at its stop token or after the limit. Reported are the largest number of tokens whose
keys and values were cached at once, which must not exceed ``max_cached_tokens``; how many answers ended, and
how long they are; the share of prompt tokens that were computed again because their place was needed; and
generated tokens per second. The model is a random one of two layers, whose forward passes take little time:
the figures are about the engine's bookkeeping.

Command:  python benchmarks/long_answers.py [--conversations 256] [--max-tokens 1024] [--cached 65536]
Needs:    a checkout with tests/. A few minutes on one core.
"""

import argparse
import asyncio
import random
import sys
from pathlib import Path
from statistics import median
from time import perf_counter

from measuring import pin_one_thread, print_table
from sparring.core import Message, ModelResponse
from sparring.engine.engine import EmbeddedEngine
from sparring.learn.policy import TRAINED, LoraSettings, PolicyModel

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from tiny_models import roomy_model

PROMPT_CHARACTERS = 300
LIMIT_SECONDS = 3600.0


async def converse(engine: EmbeddedEngine, number: int) -> list[ModelResponse]:
    """Ask twice; return the answers."""
    draw = random.Random(number)
    messages: list[Message] = []
    answers = []
    for turn in range(2):
        text = "".join(draw.choices("abcdefgh ", k=PROMPT_CHARACTERS))
        messages.append({"role": "user", "content": text})
        answers.append(await engine.complete(messages, seed=2 * number + turn))
        messages += answers[-1].completion
    return answers


async def play(engine: EmbeddedEngine, conversations: int) -> list[ModelResponse]:
    """Return the answers of all conversations."""
    asked = (converse(engine, number) for number in range(conversations))
    found = await asyncio.wait_for(asyncio.gather(*asked), LIMIT_SECONDS)
    return [answer for answers in found for answer in answers]


def main() -> None:
    parser = argparse.ArgumentParser(description="Play long answers within a bounded cache.")
    parser.add_argument("--conversations", type=int, default=256)
    parser.add_argument("--max-tokens", type=int, default=1024)
    parser.add_argument("--cached", type=int, default=65_536)
    arguments = parser.parse_args()
    pin_one_thread()
    policy = PolicyModel(str(roomy_model()), LoraSettings())
    engine = EmbeddedEngine(
        policy,
        max_tokens=arguments.max_tokens,
        max_cached_tokens=arguments.cached,
        max_queue=2 * arguments.conversations,
    )
    engine.publish("default", TRAINED, 0)
    started = perf_counter()
    answers = asyncio.run(play(engine, arguments.conversations))
    seconds = perf_counter() - started
    stats = engine.stats
    if stats.most_cached_tokens > arguments.cached:
        raise SystemExit(f"{stats.most_cached_tokens} tokens were cached, more than {arguments.cached}")
    lengths = [len(answer.completion_token_ids or []) for answer in answers]
    contexts = sum(lengths) + sum(len(answer.prompt_token_ids or []) for answer in answers[::2])
    print_table(
        [
            "conversations",
            "answers that ended",
            "tokens of an answer, median and most",
            "most cached",
            "all contexts",
            "computed / tokens there are",
            "tokens/s",
        ],
        [
            [
                str(arguments.conversations),
                f"{len(answers)} of {2 * arguments.conversations}",
                f"{median(lengths):.0f}, {max(lengths)}",
                f"{stats.most_cached_tokens:,}",
                f"{contexts:,}",
                f"{stats.computed_tokens / contexts:.2f}",
                f"{stats.generated_tokens / seconds:.0f}",
            ]
        ],
    )


if __name__ == "__main__":
    main()
