"""Games of PettingZoo in words: what an agent reads, and the names of its moves."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Words:
    """How a game reads: its rules, what an agent sees by its observation, and the name of an action."""

    rules: str = ""
    render_text: Callable[[Any, Any, str], str] | None = None
    action_name: Callable[[int, Any, str], str] | None = None


def _chess(observation: Any, env: Any, agent: str) -> str:
    board = env.unwrapped.board
    is_white = agent == env.possible_agents[0]
    own = "White, the upper-case pieces" if is_white else "Black, the lower-case pieces"
    rows = [f"{8 - number} {row}" for number, row in enumerate(str(board).splitlines())]
    return "\n".join([*rows, "  a b c d e f g h", f"You have {own}."])


def _chess_move(action: int, env: Any, agent: str) -> str:
    from pettingzoo.classic.chess.chess_utils import action_to_move

    return str(action_to_move(env.unwrapped.board, action, env.possible_agents.index(agent)).uci())


def _connect_four(observation: Any, env: Any, agent: str) -> str:
    mine, theirs = observation["observation"][..., 0], observation["observation"][..., 1]
    rows = [
        " ".join("X" if own else "O" if other else "." for own, other in zip(*pair, strict=True))
        for pair in zip(mine, theirs, strict=True)
    ]
    return "\n".join(["0 1 2 3 4 5 6", *rows, "X are yours, O are your opponent's."])


def _tic_tac_toe(observation: Any, env: Any, agent: str) -> str:
    mine, theirs = observation["observation"][..., 0], observation["observation"][..., 1]
    # PettingZoo counts the cells down the columns, from the left.
    cells = [
        [
            "X" if mine[row][column] else "O" if theirs[row][column] else str(3 * column + row)
            for column in (0, 1, 2)
        ]
        for row in (0, 1, 2)
    ]
    return "\n".join([*map(" ".join, cells), "X are yours, O are your opponent's; numbers are free cells."])


_SUITS = {"S": "spades", "H": "hearts", "D": "diamonds", "C": "clubs"}
_RANKS = {"A": "ace", "T": "10", "J": "jack", "Q": "queen", "K": "king"}


def card_name(card: str) -> str:
    """Return the name of a card that RLCard writes as suit and rank: ``ST`` is the 10 of spades."""
    return f"the {_RANKS.get(card[1], card[1])} of {_SUITS[card[0]]}"


def _holdem(observation: Any, env: Any, agent: str) -> str:
    """Words of both kinds of hold'em, from RLCard's own table."""
    player = env.possible_agents.index(agent)
    seen = env.unwrapped.env.get_state(player)["raw_obs"]
    hand, public = seen["hand"], seen.get("public_cards", seen.get("public_card"))
    hand, public = ([one] if isinstance(one, str) else one or [] for one in (hand, public))
    chips = [int(one) for one in seen["all_chips"]]
    others = ", ".join(str(one) for seat, one in enumerate(chips) if seat != player)
    return (
        f"You hold {' and '.join(map(card_name, hand))}. "
        f"On the table: {', '.join(map(card_name, public)) or 'no card yet'}. "
        f"Chips in the pot: {chips[player]} of yours, {others} of your opponent's."
    )


def _holdem_move(action: int, env: Any, agent: str) -> str:
    return ("call", "raise", "fold", "check")[action]


def _hanabi(observation: Any, env: Any, agent: str) -> str:
    return str(env.unwrapped.hanabi_env.game_state.observation_string(env.possible_agents.index(agent)))


def _hanabi_move(action: int, env: Any, agent: str) -> str:
    state = env.unwrapped.hanabi_env.game_state
    return str(state.action_to_string(env.possible_agents.index(agent), action)).strip("()")


def _rps(observation: Any, env: Any, agent: str) -> str:
    last = int(observation)
    return "Nobody has chosen yet." if last == 3 else f"Your opponent's last choice was {_HANDS[last]}."


_HANDS = ("rock", "paper", "scissors")

WORDS = {
    "chess_v6": Words(
        "You play chess. Answer with a move from square to square, such as e2e4, or e7e8q to promote.",
        _chess,
        _chess_move,
    ),
    "connect_four_v3": Words(
        "You play Connect Four: drop a disc into one of seven columns; four of yours in a row, in any "
        "direction, win. Answer with the number of a column.",
        _connect_four,
    ),
    "tictactoe_v3": Words(
        "You play tic-tac-toe: three of yours in a row win. Answer with the number of a free cell.",
        _tic_tac_toe,
    ),
    "leduc_holdem_v4": Words(
        "You play Leduc hold'em: two players, a jack, a queen and a king in two suits, one card each and one "
        "on the table after the first of two rounds. A pair with the table wins, else the higher card. "
        "Answer with call, raise, fold or check.",
        _holdem,
        _holdem_move,
    ),
    "texas_holdem_v4": Words(
        "You play limit Texas hold'em: two cards each, up to five on the table, four rounds of betting. The "
        "best five of seven cards win. Answer with call, raise, fold or check.",
        _holdem,
        _holdem_move,
    ),
    "hanabi_v5": Words(
        "You play Hanabi together: everybody sees all hands but their own. Build each colour upwards from 1. "
        "Spend information tokens to hint, discard to regain one; a wrong card costs a life. Answer with a "
        "move, such as Play 0, Discard 1 or Reveal player +1 color R.",
        _hanabi,
        _hanabi_move,
    ),
    "rps_v2": Words(
        "You play rock, paper, scissors. Both choose at once. Answer with rock, paper or scissors.",
        _rps,
        lambda action, env, agent: _HANDS[action],
    ),
}
"""The words of PettingZoo's games that have some, by module."""
