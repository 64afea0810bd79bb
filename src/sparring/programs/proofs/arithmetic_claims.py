"""Claims on arithmetic: worked sums, differences and products, half of them with one slip.

A claim works column by column, from the ones, and ends with the result: ``7 + 8 = 15. 4 + 3 + 1 = 8. So 47 +
38 = 85.`` Each question has two claims. One is right; the other makes one slip and goes on from it without
another, and its result is wrong. All slips are equally frequent in sums and differences, and in products:

- wrong digit: one step has a wrong result;
- swapped operand: one step uses the digit of the next place, or subtracts the wrong way round;
- lost carry: one step of a sum leaves out the carry, of a difference the borrow;
- lost place: one part of a product is ten times too small.

Nothing but the slip tells a wrong claim from a right one, because both work the same questions.
"""

import random
from dataclasses import dataclass
from typing import Literal

from sparring.core import InputError, derive_seed
from sparring.programs.proofs.claims import Claim

Slip = Literal["wrong digit", "lost carry", "swapped operand", "lost place"]
SIGNS = "+-*"
SLIPS: tuple[Slip, ...] = ("wrong digit", "swapped operand", "lost carry")
SLIPS_OF_PRODUCTS: tuple[Slip, ...] = ("wrong digit", "swapped operand", "lost place")
MAX_MISSES = 1000


@dataclass(frozen=True)
class _Worked:
    steps: list[str]
    result: int


def arithmetic_claims(count: int, difficulty: int = 2, seed: int = 0) -> list[Claim]:
    """Return a right and a wrong claim on each of ``count / 2`` questions; of an odd number, the last is
    right.

    ``difficulty`` 1: numbers of two digits with numbers of one digit; n from 2: numbers of n digits. The
    second factor of a product has one digit. An InputError is raised if there are not as many questions.
    """
    if difficulty < 1:
        raise InputError("difficulty", f"{difficulty} is too low", "Give 1 or more")
    rng = random.Random(derive_seed(seed, "arithmetic", difficulty))
    pairs: dict[str, tuple[Claim, Claim]] = {}
    misses = 0
    while 2 * len(pairs) < count:
        sign = SIGNS[len(pairs) % 3]
        slip = (SLIPS_OF_PRODUCTS if sign == "*" else SLIPS)[len(pairs) // 3 % 3]
        left, right = _operands(rng, sign, difficulty)
        text = f"{left} {sign} {right}"
        pair = None if text in pairs else _pair(rng, text, left, sign, right, slip)
        misses = 0 if pair else misses + 1
        if pair:
            pairs[text] = pair
        elif misses == MAX_MISSES:
            problem = f"there are not {count} claims of difficulty {difficulty}"
            raise InputError("count", problem, "Ask for fewer, or for a greater difficulty")
    return [claim for pair in pairs.values() for claim in pair][:count]


def _operands(rng: random.Random, sign: str, difficulty: int) -> tuple[int, int]:
    def drawn(digits: int) -> int:
        return rng.randint(10 ** (digits - 1) + (digits == 1), 10**digits - 1)

    left = drawn(max(2, difficulty))
    if sign == "*":
        return left, drawn(1)
    right = drawn(1 if difficulty == 1 else difficulty)
    return (max(left, right), min(left, right)) if sign == "-" else (left, right)


def _pair(
    rng: random.Random, text: str, left: int, sign: str, right: int, slip: Slip
) -> tuple[Claim, Claim] | None:
    """Return the right claim, and one with the slip at a random place where it changes the result, if there
    is one."""
    work = {"+": _sum, "-": _difference, "*": _product}[sign]
    worked = work(left, right, None, 0, rng)
    for place in rng.sample(range(len(str(left))), len(str(left))):
        wrong = work(left, right, slip, place, rng)
        if wrong.result != worked.result:
            return _claim(text, worked, None), _claim(text, wrong, slip)
    return None


def _claim(text: str, worked: _Worked, slip: Slip | None) -> Claim:
    claim = " ".join(f"{step}." for step in [*worked.steps, f"So {text} = {worked.result}"])
    y = int(slip is None)
    return Claim(f"What is {text}?", claim, y, f"{text} {'right' if y else 'wrong'}", {"slip": slip})


def _digits(number: int, places: int) -> list[int]:
    return [number // 10**place % 10 for place in range(places)]


def _off_by(rng: random.Random, number: int, least: int, most: int) -> int:
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
