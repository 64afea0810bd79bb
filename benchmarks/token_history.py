"""Token history: how much of a conversation its next prompt shares, with answers as text and as drawn ids.

A model answers at temperature 1, up to the longest limit; a shorter limit cuts the same answers. Each answer
is then followed by a question, and the next prompt is made twice: from the answer's text, as before, and from
its token ids. A prefix is whole if the next prompt begins with the last prompt and all of the answer; what
comes after the first other token is shared by no cache and no tree.

Command:  python benchmarks/token_history.py [--model smollm2-135m] [--answers 64] [--limits 40 200 1000]
Needs:    this package. With SmolLM2 on two cores, about ten minutes.
"""

import argparse
import asyncio

import torch

from measuring import print_table
from sparring.core.adapters import BASE
from sparring.core.messages import as_text, said
from sparring.engine.engine import EmbeddedEngine
from sparring.learn.model_files import resolve_model
from sparring.learn.policy import LoraSettings, PolicyModel

TOPICS = (
    "a river",
    "two kings",
    "prime numbers",
    "a debate about taxes",
    "a city on the sea",
    "cooking rice",
)


async def answers_of(policy: PolicyModel, count: int, limit: int) -> list[tuple[list[int], list[int]]]:
    """Return the prompts and the ids of ``count`` answers."""
    engine = EmbeddedEngine(policy, max_tokens=limit)
    engine.publish(BASE, BASE, 0)
    asked = (
        engine.complete([said("user", question(number))], max_tokens=limit, model=BASE, seed=number)
        for number in range(count)
    )
    responses = await asyncio.gather(*asked)
    return [(one.prompt_token_ids or [], one.completion_token_ids or []) for one in responses]


def question(number: int) -> str:
    """Return what the model is asked."""
    return (
        f"Write a long text of many paragraphs about {TOPICS[number % len(TOPICS)]}. It is number {number}."
    )


def shared_tokens(policy: PolicyModel, number: int, drawn: list[int], *, as_drawn: bool) -> float:
    """Return the share of an answer's tokens that the next prompt has unchanged from the beginning."""
    talk = [said("user", question(number)), said("assistant", policy.tokens.decode(drawn), drawn)]
    talk.append(said("user", "Go on."))
    prompt = policy.tokens.render(talk[:1])
    following = policy.tokens.render(talk if as_drawn else as_text(talk))[len(prompt) :]
    same = next((n for n, (a, b) in enumerate(zip(drawn, following, strict=False)) if a != b), len(drawn))
    return same / len(drawn)


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--answers", type=int, default=64)
    parser.add_argument("--limits", nargs="+", type=int, default=[40, 200, 1000])
    options = parser.parse_args()
    policy = PolicyModel(resolve_model(options.model), LoraSettings(4, 8.0), dtype=torch.bfloat16)
    found = asyncio.run(answers_of(policy, options.answers, max(options.limits)))
    rows = []
    for limit in options.limits:
        for name, as_drawn in (("as text", False), ("as drawn", True)):
            shares = [
                shared_tokens(policy, number, drawn[:limit], as_drawn=as_drawn)
                for number, (_, drawn) in enumerate(found)
            ]
            whole = sum(share == 1.0 for share in shares)
            mean = sum(shares) / len(shares)
            rows.append([str(limit), name, f"{whole} of {len(shares)}", f"{mean:.1%}"])
    print_table(["tokens at most", "history", "whole prefixes", "tokens of the answer shared"], rows)


if __name__ == "__main__":
    main()
