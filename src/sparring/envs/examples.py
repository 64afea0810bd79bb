"""Example turns for few-shot prompts: observations, each with a bare legal move as its answer.

The examples favour no move: for a game with its own examples in this file, each move appears equally often.
"""

import random
from collections import Counter
from functools import lru_cache

from sparring.envs.catalog import library_of, make_game
from sparring.envs.environments import is_environment

ExampleTurn = tuple[str, str]

MAX_GENERIC_TURNS = 4
_MAX_PLIES = 400
_CELLS = (4, 0, 7, 2, 5, 1, 8, 3, 6)  # shuffled: in order, a small model would continue counting


@lru_cache(maxsize=4096)
def example_turns(env_id: str, num_players: int, pid: int) -> tuple[ExampleTurn, ...]:
    """Return (observation, move) pairs for the seat; none in an environment, or if the game does not list its
    legal moves.

    The same arguments give the same examples in every process.
    """
    if is_environment(env_id):
        return ()
    if env_id.startswith("kuhn_poker"):
        return _kuhn_turns(env_id, num_players)
    if env_id.startswith(("TicTacToe-", "tic_tac_toe")):
        return tuple(_turn_with_cell(env_id, pid, cell) for cell in _CELLS)
    return _random_turns(env_id, num_players, pid)


def _kuhn_turns(env_id: str, num_players: int) -> tuple[ExampleTurn, ...]:
    """Return both moves before and after a bet, with the same card: four turns, the same for every seat."""
    from sparring.envs.openspiel_game import game_at

    # The reader of each example holds the second lowest card.
    opening = game_at(env_id, (1, 0, *range(2, num_players)))
    facing_bet = game_at(env_id, (0, 1, *range(2, num_players), 1))
    first, second = opening.observation(0), facing_bet.observation(1)
    return ((first, "check"), (second, "call"), (first, "bet"), (second, "fold"))


def _turn_with_cell(env_id: str, pid: int, cell: int) -> ExampleTurn:
    """Return a tic-tac-toe position from random play in which ``cell`` is free, and that cell as the move."""
    move = f"[{cell}]" if library_of(env_id) == "textarena" else str(cell)
    for attempt in range(1000):
        draw = random.Random(1000 * cell + attempt)
        game = make_game(env_id, 2, seed=0)
        for _ in range(4 + pid):
            if not game.done:
                game.apply(draw.choice(game.legal_actions() or []))
        if not game.done and move in (game.legal_actions() or []):
            return game.brief(pid), move
    raise AssertionError(f"no example position of {env_id} has cell {cell} free")


def _random_turns(env_id: str, num_players: int, pid: int) -> tuple[ExampleTurn, ...]:
    """Return up to four turns of ``pid`` from one legal game, spread over its length.

    Moves are drawn at random from those that have been chosen least often so far.
    """
    game = make_game(env_id, num_players, seed=0)
    draw = random.Random(0)
    turns: list[ExampleTurn] = []
    chosen: Counter[str] = Counter()
    for _ in range(_MAX_PLIES):
        legal = None if game.done else game.legal_actions()
        if not legal:
            break
        fewest = min(chosen[move] for move in legal)
        move = draw.choice([move for move in legal if chosen[move] == fewest])
        if game.current_pid == pid:
            turns.append((game.brief(pid), move))
            chosen[move] += 1
        game.apply(move)
    stride = max(1, len(turns) // MAX_GENERIC_TURNS)
    return tuple(turns[::stride][:MAX_GENERIC_TURNS])
