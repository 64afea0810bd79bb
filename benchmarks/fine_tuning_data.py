"""Examples for the benchmark of fine-tuning jobs: transcripts in which a prover convinces a verifier.

The words are drawn at random, since speed does not depend on them; lengths and what is shared are those of
short proofs: an instruction, a claim, and turns of some thirty words each.
"""

import random
from collections.abc import Iterator

from sparring.core import Messages
from sparring.learn.fine_tuning.examples import (
    Conversation,
    Preference,
    Renderer,
    families,
    given_answer,
    opening,
)
from sparring.learn.fine_tuning.job import Data
from sparring.learn.policy import PolicyModel

TEXT = (
    "the sum of a and b is even because both are odd so we can write each as twice some number plus one "
    "then add them to get an even result which shows that the claim holds but what if one is zero please "
    "check this step again I think it fails for small cases let me look at the second line of your proof"
)
WORDS = TEXT.split()
INSTRUCTION, CLAIM, TURN = 90, 40, 30
"""Words of each part."""
DEPTH = 4
"""Turns of the trained speaker in a transcript."""
DATA = ("pairs", "proofs", "unshared-pairs", "unshared-answers")


def method_of(name: str) -> str:
    """Return the method that a data set is for."""
    return "dpo" if name in ("pairs", "unshared-pairs") else "supervised"


def make_data(name: str, policy: PolicyModel, claims: int) -> Data:
    """Return rendered examples about ``claims`` claims."""
    renderer = Renderer(policy.tokens, policy.context_length)
    draw = random.Random(name)
    if name == "pairs":
        preferences = [one for _ in range(claims) for one in tree_of_pairs(draw)]
        return Data(
            [renderer.preference(one) for one in preferences],
            families([opening(one.messages) for one in preferences]),
        )
    if name == "proofs":
        lines = [one for _ in range(claims) for one in lines_of_proof(draw)]
        return Data(
            [renderer.conversation(one) for one in lines],
            families([opening(one.messages) for one in lines]),
        )
    vocabulary = policy.tokenizer.vocab_size
    ids = [[draw.randrange(vocabulary) for _ in range(draw.randint(256, 512))] for _ in range(8 * claims)]
    if name == "unshared-pairs":
        # The answers of a pair always share their prompt; here it is a tenth of the tokens.
        cuts = [(one[: len(one) // 10], one[len(one) // 10 :]) for one in ids]
        pairs = [
            [given_answer(prompt, rest[: len(rest) // 2]), given_answer(prompt, rest[len(rest) // 2 :])]
            for prompt, rest in cuts
        ]
        return Data(pairs, range(len(pairs)))
    answers = [[given_answer(one[: len(one) // 4], one[len(one) // 4 :])] for one in ids]
    return Data(answers, range(len(answers)))


def tree_of_pairs(draw: random.Random) -> Iterator[Preference]:
    """Yield a preference for each node of a binary tree of answers, as MALT makes them for one claim."""
    level: list[Messages] = [_begin(draw)]
    for _ in range(DEPTH):
        following = []
        for messages in level:
            good, bad = ({"role": "assistant", "content": _words(draw, TURN)} for _ in range(2))
            yield Preference(0, messages, good, bad)
            following += [[*messages, one, _user(draw, TURN)] for one in (good, bad)]
        level = following


def lines_of_proof(draw: random.Random) -> Iterator[Conversation]:
    """Yield a line for each turn of the trained speaker in one transcript: all before it is the prompt."""
    messages = _begin(draw)
    for _ in range(DEPTH):
        messages = [*messages, {"role": "assistant", "content": _words(draw, TURN)}]
        yield Conversation(0, messages, (len(messages) - 1,))
        messages = [*messages, _user(draw, TURN)]


def _begin(draw: random.Random) -> Messages:
    # Every proof has the same instruction.
    instruction = _words(random.Random(0), INSTRUCTION)
    return [{"role": "system", "content": instruction}, _user(draw, CLAIM)]


def _user(draw: random.Random, words: int) -> dict[str, str]:
    return {"role": "user", "content": _words(draw, words)}


def _words(draw: random.Random, number: int) -> str:
    return " ".join(draw.choice(WORDS) for _ in range(number))
