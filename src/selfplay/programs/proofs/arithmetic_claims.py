"""Claims on arithmetic: worked sums, differences and products, half of them with one slip.

A claim works column by column, from the ones, and ends with the result: ``7 + 8 = 15. 4 + 3 + 1 = 8. So 47 +
38 = 85.`` A wrong claim makes one slip and goes on from it without another, and its result is always wrong:

- wrong digit: one step has a wrong result;
- lost carry: one step leaves out the carry, or the borrow of a difference;
- swapped operand: one step uses the digit of the next place, or subtracts the wrong way round;
- lost place: one part of a product is ten times too small.
"""

import random
from dataclasses import dataclass
from typing import Literal

from selfplay.core import InputError, derive_seed
from selfplay.programs.proofs.claims import Claim

Slip = Literal["wrong digit", "lost carry", "swapped operand", "lost place"]
_MAX_MISSES = 1000


@dataclass(frozen=True)
class _Worked:
    """The steps of a calculation, and its result."""

    steps: list[str]
    result: int


def arithmetic_claims(count: int, difficulty: int = 2, seed: int = 0) -> list[Claim]:
    """Return claims on ``count`` different questions, every second one wrong.

    Args:
        count: how many.
        difficulty: 1: numbers of two digits with numbers of one digit; n from 2: numbers of n digits. The
            second factor of a product has one digit.
        seed: decides all of them.

    Raises:
        InputError: the difficulty is less than 1, or there are not as many questions.
    """
    if difficulty < 1:
        raise InputError("difficulty", f"{difficulty} is too low", "Give 1 or more")
    rng = random.Random(derive_seed(seed, "arithmetic", difficulty))
    claims: dict[str, Claim] = {}
    misses = 0
    while len(claims) < count:
        number = len(claims)
        sign = "+-*"[number // 2 % 3]
        left, right = _operands(rng, sign, difficulty)
        text = f"{left} {sign} {right}"
        misses = misses + 1 if text in claims else 0
        if misses == _MAX_MISSES:
            problem = f"there are not {count} questions of difficulty {difficulty}"
            raise InputError("count", problem, "Ask for fewer, or for a greater difficulty")
        if not misses:
            claims[text] = _claim(rng, text, left, sign, right, y=1 - number % 2)
    return list(claims.values())


def _operands(rng: random.Random, sign: str, difficulty: int) -> tuple[int, int]:
    def drawn(digits: int) -> int:
        return rng.randint(10 ** (digits - 1) + (digits == 1), 10**digits - 1)

    left = drawn(max(2, difficulty))
    if sign == "*":
        return left, drawn(1)
    right = drawn(1 if difficulty == 1 else difficulty)
    return (max(left, right), min(left, right)) if sign == "-" else (left, right)


def _claim(rng: random.Random, text: str, left: int, sign: str, right: int, *, y: int) -> Claim:
    work = {"+": _sum, "-": _difference, "*": _product}[sign]
    worked, slip = work(left, right, None, 0, rng), None
    if not y:
        truth = worked.result
        kinds: list[Slip] = ["wrong digit", "lost carry" if sign != "*" else "lost place", "swapped operand"]
        places = list(range(len(worked.steps)))
        tries = [(kind, place) for kind in rng.sample(kinds, 3) for place in rng.sample(places, len(places))]
        slip, place = next(one for one in tries if work(left, right, *one, rng).result != truth)
        worked = work(left, right, slip, place, rng)
    claim = " ".join(f"{step}." for step in [*worked.steps, f"So {text} = {worked.result}"])
    return Claim(f"What is {text}?", claim, y, text, {"slip": slip})


def _digits(number: int, places: int) -> list[int]:
    """Return the last ``places`` digits of a number, the ones first."""
    return [number // 10**place % 10 for place in range(places)]


def _off_by(rng: random.Random, number: int, least: int, most: int) -> int:
    """Return a number near another one."""
    near = [number + change for change in (-2, -1, 1, 2)]
    return rng.choice([one for one in near if least <= one <= most])


def _sum(left: int, right: int, slip: Slip | None, at: int, rng: random.Random) -> _Worked:
    places = max(len(str(left)), len(str(right)))
    upper, lower = _digits(left, places), _digits(right, places)
    steps, result, carry = [], 0, 0
    for place in range(places):
        here = slip if place == at else None
        second = lower[(place + 1) % places] if here == "swapped operand" else lower[place]
        if here == "lost carry":
            carry = 0
        column = upper[place] + second + carry
        if here == "wrong digit":
            column = _off_by(rng, column, 0, 19)
        steps.append(f"{upper[place]} + {second}{' + 1' * carry} = {column}")
        last = place == places - 1
        result += (column if last else column % 10) * 10**place
        carry = column // 10
    return _Worked(steps, result)


def _difference(left: int, right: int, slip: Slip | None, at: int, rng: random.Random) -> _Worked:
    places = len(str(left))
    upper, lower = _digits(left, places), _digits(right, places)
    steps, result, borrow = [], 0, 0
    for place in range(places):
        here = slip if place == at else None
        if here == "lost carry":
            borrow = 0
        first, second = upper[place], lower[place]
        if here == "swapped operand":
            first, second = max(first, second), min(first, second)
        owed = borrow
        borrow = int(first - second - owed < 0)
        column = first + 10 * borrow - second - owed
        if here == "wrong digit":
            column = _off_by(rng, column, 0, 9)
        steps.append(f"{first + 10 * borrow} - {second}{' - 1' * owed} = {column}")
        result += column * 10**place
    return _Worked(steps, result)


def _product(left: int, right: int, slip: Slip | None, at: int, rng: random.Random) -> _Worked:
    digits = _digits(left, len(str(left)))
    steps, result = [], 0
    for place, digit in enumerate(digits):
        here = slip if place == at else None
        used = digits[(place + 1) % len(digits)] if here == "swapped operand" else digit
        factor = used * 10 ** (place - (here == "lost place" and place > 0))
        part = factor * right
        if here == "wrong digit":
            part = _off_by(rng, used * right, 0, 99) * 10**place
        steps.append(f"{factor} * {right} = {part}")
        if place:
            steps.append(f"{result} + {part} = {result + part}")
        result += part
    return _Worked(steps, result)
