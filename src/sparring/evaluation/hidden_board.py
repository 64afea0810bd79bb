"""Games of two on one board who do not see each other's stones, as arrays: phantom tic-tac-toe.

The seats take turns to put a stone on a free cell. Who tries a cell with a stone of the other learns that it
is taken, and tries again; the other learns nothing. So an information state is what a seat tried and what
came of it, and few of the game's billions of histories have to be visited:

- a *placement* says which stones were put down, in which order, as in the open game: 549,946 in phantom
  tic-tac-toe;
- a *pair* is an information state and a placement in which its seat moves: 63 million. The other's tries that
  failed are not in it, because the seat never learns of them.

Dimensions: N placements, A cells, S information states of one seat, P pairs. Cells are OpenSpiel's actions.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sparring.core import InputError

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]
Int64Array = NDArray[np.int64]
Int32Array = NDArray[np.int32]
Int16Array = NDArray[np.int16]
Int8Array = NDArray[np.int8]

MAX_CELLS = 12
"""The tries of one seat fit into 64 bits."""
_BITS = 5  # of one try


@dataclass(frozen=True)
class BoardRules:
    """A board, and for each seat which sets of stones win (``wins``; cell c is bit c of a set). A full
    board without a winner is a draw."""

    rows: int
    columns: int
    wins: tuple[BoolArray, BoolArray]

    @property
    def cells(self) -> int:
        """The number of cells."""
        return self.rows * self.columns


def phantom_tic_tac_toe() -> BoardRules:
    """Return the rules of OpenSpiel's ``phantom_ttt``."""
    lines = [(0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6)]
    stones, masks = np.arange(2**9), [sum(1 << cell for cell in line) for line in lines]
    wins = np.any([stones & mask == mask for mask in masks], axis=0)
    return BoardRules(3, 3, (wins, wins))


def dark_hex(rows: int, columns: int) -> BoardRules:
    """Return the rules of dark hex in which a seat knows its own tries only.

    Seat 0 connects the first row with the last, seat 1 the first column with the last. OpenSpiel's
    ``dark_hex`` also says how many tries there were, which makes it another game.
    """
    if rows * columns > MAX_CELLS:
        problem = f"a board of {rows} x {columns} has more than {MAX_CELLS} cells"
        raise InputError("dark_hex", problem, "Choose a smaller board")
    steps = ((-1, 0), (-1, 1), (0, -1), (0, 1), (1, -1), (1, 0))

    def connects(stones: int, axis: int) -> bool:
        held = {divmod(cell, columns) for cell in range(rows * columns) if stones >> cell & 1}
        found = waiting = {place for place in held if place[axis] == 0}
        while waiting:
            waiting = {(row + down, column + right) for row, column in waiting for down, right in steps}
            waiting = (waiting & held) - found
            found = found | waiting
        return any(place[axis] == (rows, columns)[axis] - 1 for place in found)

    wins = [np.array([connects(stones, axis) for stones in range(2 ** (rows * columns))]) for axis in (0, 1)]
    return BoardRules(rows, columns, (wins[0], wins[1]))


@dataclass(frozen=True)
class Placements:
    """What can be put down after the first placement, a position; children come after their parents.

    ``child_NA`` is -1 where nothing is put, ``stones_N2`` are the sets of both seats' stones, ``payoff_N``
    is seat 0's reward at an end. The children of n at which the game goes on are
    ``open_children[open_first_N[n] : open_first_N[n + 1]]``.
    """

    parent_N: Int32Array
    cell_N: Int8Array
    child_NA: Int32Array
    stones_N2: Int16Array
    mover_N: Int8Array
    ended_N: BoolArray
    payoff_N: FloatArray
    open_first_N: Int64Array
    open_children: Int32Array

    def __len__(self) -> int:
        return len(self.parent_N)


def placements_after(rules: BoardRules, stones: tuple[int, int], mover: int) -> Placements:
    """Return all placements that follow a position, in which ``mover`` is to move."""
    parents, cells, sets, movers = [np.array([-1])], [np.array([-1])], [np.array([stones])], [mover]
    ends, payoffs, first = [np.zeros(1, dtype=np.bool_)], [np.zeros(1)], 0
    full = 2**rules.cells - 1
    while len(sets[-1]):
        free = ~(sets[-1][:, :1] | sets[-1][:, 1:]) >> np.arange(rules.cells) & 1
        parent, cell = np.nonzero(free & ~ends[-1][:, None])
        after = sets[-1][parent]
        after[:, movers[-1]] |= 1 << cell
        won = rules.wins[movers[-1]][after[:, movers[-1]]]
        payoffs.append(won * (1.0, -1.0)[movers[-1]])
        ends.append(won | (after.sum(axis=1) == full))
        parents.append(first + parent)
        cells.append(cell)
        first += len(sets[-1])
        sets.append(after)
        movers.append(1 - movers[-1])
    parent_N, cell_N, ended_N = np.concatenate(parents), np.concatenate(cells), np.concatenate(ends)
    child_NA = np.full((len(parent_N), rules.cells), -1, dtype=np.int32)
    child_NA[parent_N[1:], cell_N[1:]] = np.arange(1, len(parent_N))
    open_NA = (child_NA >= 0) & ~ended_N[child_NA]
    return Placements(
        parent_N.astype(np.int32),
        cell_N.astype(np.int8),
        child_NA,
        np.concatenate(sets).astype(np.int16),
        np.repeat(movers, [len(one) for one in sets]).astype(np.int8),
        ended_N,
        np.concatenate(payoffs),
        np.concatenate([[0], np.cumsum(open_NA.sum(axis=1))]),
        child_NA[open_NA],
    )


class Pairs(NamedTuple):
    """Information states and placements that can be together when the seat moves."""

    state_P: Int32Array
    placement_P: Int32Array


@dataclass(frozen=True)
class InformationStates:
    """All information states of one seat, in the order of their number of tries.

    ``parent_S`` is the state before the last try (-1 at the start), ``cell_S`` the cell of that try, and
    ``code_S`` all tries and what came of them: :func:`tries_of` reads it, and a sorted order of codes is the
    order of a depth-first visit. ``example_S`` is a placement in which the seat may be there. Level l, the
    states after l more tries than at the start, has the states ``levels[l]`` and the pairs ``pairs[l]``.
    """

    parent_S: Int32Array
    cell_S: Int8Array
    code_S: Int64Array
    tried_S: Int16Array
    example_S: Int32Array
    levels: list[slice]
    pairs: list[Pairs]
    cells: int

    def __len__(self) -> int:
        return len(self.parent_S)

    @property
    def legal_SA(self) -> BoolArray:
        """Which cells were not tried before and may be tried, by state."""
        legal_SA: BoolArray = (self.tried_S[:, None] >> np.arange(self.cells)) & 1 == 0
        return legal_SA


def code_of(tries: Sequence[tuple[int, bool]]) -> int:
    """Return a code of tries: five bits for each, from the highest."""
    return sum(
        2 * cell + taken + 1 << _BITS * (MAX_CELLS - 1 - place) for place, (cell, taken) in enumerate(tries)
    )


def tries_of(code: int) -> list[tuple[int, bool]]:
    """Return the cells that a code says were tried, and whether each was taken by the other."""
    digits = (code >> _BITS * place & (1 << _BITS) - 1 for place in reversed(range(MAX_CELLS)))
    return [((digit - 1) // 2, digit % 2 == 0) for digit in digits if digit]


def _states_of(
    rules: BoardRules, placements: Placements, seat: int, tries: list[tuple[int, bool]]
) -> InformationStates:
    """Return the information states of a seat that has made these tries at the first placement."""
    width = 2 * rules.cells
    begin = np.zeros(1, dtype=np.int32)
    if placements.mover_N[0] != seat:
        begin = placements.open_children[: placements.open_first_N[1]]
    if not len(begin):
        raise InputError("start", f"seat {seat} never moves after it", "Start earlier")
    parent_S, cell_S = [np.array([-1])], [np.array([-1])]
    code_S, tried_S = [np.array([code_of(tries)])], [np.array([sum(1 << cell for cell, _ in tries)])]
    examples, levels, first = [begin[:1]], [slice(0, 1)], 0
    pairs = [Pairs(np.zeros(len(begin), dtype=np.int32), begin)]
    while True:
        key_P, placement_P = _next_pairs(placements, seat, tried_S[-1], pairs[-1], first)
        exists = np.zeros(width * len(code_S[-1]), dtype=np.bool_)
        exists[key_P] = True
        (keys,) = np.nonzero(exists)
        if not len(keys):
            break
        parent, digit = np.divmod(keys, width)
        place = len(tries) + len(levels) - 1
        code_S.append(code_S[-1][parent] + (digit + 1 << _BITS * (MAX_CELLS - 1 - place)))
        tried_S.append(tried_S[-1][parent] | 1 << digit // 2)
        parent_S.append(first + parent)
        cell_S.append(digit // 2)
        first = levels[-1].stop
        levels.append(slice(first, first + len(keys)))
        number = np.cumsum(exists, dtype=np.int32) - 1 + np.int32(first)
        pairs.append(Pairs(number[key_P], placement_P))
        example = np.empty(len(keys), dtype=np.int32)
        example[pairs[-1].state_P - first] = placement_P
        examples.append(example)
    return InformationStates(
        np.concatenate(parent_S).astype(np.int32),
        np.concatenate(cell_S).astype(np.int8),
        np.concatenate(code_S),
        np.concatenate(tried_S).astype(np.int16),
        np.concatenate(examples),
        levels,
        pairs,
        rules.cells,
    )


def _next_pairs(
    placements: Placements, seat: int, tried_S: Int64Array, pairs: Pairs, first: int
) -> tuple[Int32Array, Int32Array]:
    """Return the pairs after one more try, each state as ``2 A s + 2 cell + taken`` for s from ``first``."""
    cells = placements.child_NA.shape[1]
    state_P, placement_P = pairs.state_P - np.int32(first), pairs.placement_P
    tried_P = tried_S[state_P].astype(np.int16)
    others_P = placements.stones_N2[placement_P, 1 - seat]
    keys, nodes = [], []
    for cell in range(cells):
        may_P = tried_P >> cell & 1 == 0
        taken_P = others_P >> cell & 1 == 1
        fails_P = may_P & taken_P
        keys.append(state_P[fails_P] * (2 * cells) + (2 * cell + 1))
        nodes.append(placement_P[fails_P])
        succeeds_P = may_P & ~taken_P
        put = placements.child_NA[placement_P[succeeds_P], cell]
        begin = placements.open_first_N[put]
        count = placements.open_first_N[put + 1] - begin
        keys.append(np.repeat(state_P[succeeds_P] * (2 * cells) + 2 * cell, count))
        ends = np.cumsum(count)
        offsets = np.arange(ends[-1] if len(ends) else 0) + np.repeat(begin - (ends - count), count)
        nodes.append(placements.open_children[offsets])
    return np.concatenate(keys), np.concatenate(nodes)


@dataclass(frozen=True)
class HiddenBoard:
    """A game on a hidden board, from the beginning or after ``start``: the tries of both, in their order.

    Both seats know that the game starts there. ``tries`` are those of each seat in ``start``.
    """

    rules: BoardRules
    start: tuple[int, ...]
    tries: tuple[list[tuple[int, bool]], list[tuple[int, bool]]]
    placements: Placements
    states: tuple[InformationStates, InformationStates]

    @classmethod
    def build(cls, rules: BoardRules, start: Sequence[int] = ()) -> "HiddenBoard":
        """List the placements, information states and pairs of a game.

        The whole of phantom tic-tac-toe takes ten seconds of one core and 2 GB.

        Raises:
            InputError: ``start`` is impossible, or decides the game or all its moves of a seat.
        """
        stones, mover = [0, 0], 0
        tries: tuple[list[tuple[int, bool]], list[tuple[int, bool]]] = ([], [])
        for place, cell in enumerate(start):
            if not 0 <= cell < rules.cells or cell in dict(tries[mover]):
                problem = f"seat {mover} cannot try cell {cell} (number {place} of the start)"
                raise InputError("start", problem, "Give OpenSpiel's actions")
            taken = bool(stones[1 - mover] >> cell & 1)
            tries[mover].append((cell, taken))
            if taken:
                continue
            stones[mover] |= 1 << cell
            if rules.wins[mover][stones[mover]] or sum(stones) == 2**rules.cells - 1:
                raise InputError(
                    "start", f"the game is over after number {place} of the start", "Leave it out"
                )
            mover = 1 - mover
        placements = placements_after(rules, (stones[0], stones[1]), mover)
        seats = [_states_of(rules, placements, seat, tries[seat]) for seat in (0, 1)]
        return cls(rules, tuple(start), tries, placements, (seats[0], seats[1]))

    def history(self, seat: int, state: int) -> list[int]:
        """Return one history of OpenSpiel's actions, ``start`` included, that leads to an information
        state."""
        states, placements = self.states[seat], self.placements
        node, stones = int(states.example_S[state]), []
        while node:
            stones.append(int(placements.cell_N[node]))
            node = int(placements.parent_N[node])
        tries = tries_of(int(states.code_S[state]))[len(self.tries[seat]) :]
        own, history, mover = iter(tries), list(self.start), int(placements.mover_N[0])
        for stone in reversed(stones):
            taken = mover == seat
            while taken:
                cell, taken = next(own)
                history.append(cell)
            if mover != seat:
                history.append(stone)
            mover = 1 - mover
        return history + [cell for cell, _ in own]
