"""The exact texts that models read: prompts, example turns and OpenSpiel's wordings.

Whoever changes one of these texts changes what every trained model has been trained on.
"""

import pytest

from sparring.envs.catalog import make_game
from sparring.envs.examples import example_turns
from sparring.envs.openspiel_game import game_at
from sparring.envs.templates import get_template

KUHN_RULES = (
    "Kuhn poker, 2 players, cards J, Q, K (lowest first). Everyone pays 1 chip and gets one card. A bet or a "
    "call costs 1 more chip. The highest card that did not fold wins all chips. Answer with your move only."
)
LEDUC_RULES = (
    "Leduc poker, 2 players. Cards J, Q, K, two of each. Everyone pays 1 chip and gets one card. Two rounds "
    "of betting, a raise is 2 chips in the first and 4 in the second, at most two raises a round. Before the "
    "second a public card is shown. A pair with it wins, else the highest card. Answer with your move only."
)
TIC_TAC_TOE_RULES = (
    "Tic-tac-toe. Cells are numbered 0 to 8, row by row. Three in a row win. You play {mark}. Answer with "
    "the number of a free cell only."
)
PHANTOM_RULES = (
    "Tic-tac-toe on a board that you do not see. Cells are numbered 0 to 8, row by row. Three in a row win. "
    "If a cell that you try is taken, you are told so, and {after}. You play {mark}. Answer with the number "
    "of a cell that you have not tried yet."
)
LIARS_DICE_RULES = (
    "Liar's dice. Two players roll {own} of {sides} sides each and see only their own. They take turns to "
    "bid: 2-3 says that at least two of all dice show 3, for which a {sides} counts too. Each bid has "
    "{higher} than the last. Whoever doubts the last bid answers Liar and wins if it is false, else loses. "
    "Answer with a bid or Liar only."
)
GOOFSPIEL_RULES = (
    "Goofspiel, {} players, each with cards 1 to 4. Prizes of 1 to 4 points are shown one by one{}; {} are "
    "played for. For each, all bid one of their cards at the same time, which is then gone, and the highest "
    "bid takes the prize; nobody does if the highest bids are equal. {}. Answer with the number of a card "
    "only."
)
OPENING = "Moves so far: none. Legal moves: check, bet. Your card: Q."
BOX = "Think step by step, then give your final move inside \\boxed{}."
TRY_TO_WIN = "This is a two-player zero-sum game. Play legal moves and try to win."


@pytest.mark.parametrize(
    ("template", "prompt"),
    [
        (
            "default",
            [
                (
                    "text",
                    f"You are playing a game. Play legal moves and try to win. {BOX}\n\n"
                    f"{KUHN_RULES}\n\n{OPENING}\n\nMove:",
                )
            ],
        ),
        ("qwen3-zs", [("user", f"{TRY_TO_WIN}\nObservation: {KUHN_RULES}\n\n{OPENING}\n{BOX}")]),
        (
            "qwen3-sp",
            [
                (
                    "user",
                    "This is a single-player game. Play legal moves and try to solve it.\n"
                    f"Observation: {KUHN_RULES}\n\n{OPENING}\n{BOX}",
                )
            ],
        ),
        ("qwen3-reasoning", [("user", f"Question: {KUHN_RULES}\n\n{OPENING}\n{BOX}")]),
        ("gemma3-zs", [("user", f"{TRY_TO_WIN}\nObservation: {KUHN_RULES}\n\n{OPENING}\n{BOX}")]),
        (
            "llama-instruct-zs",
            [
                ("system", "You play a two-player zero-sum game. Play legal moves and try to win."),
                ("user", f"Current observation: {KUHN_RULES}\n\n{OPENING}\n{BOX}"),
            ],
        ),
        (
            "fewshot-chat",
            [
                ("user", f"{KUHN_RULES}\n\n{OPENING}"),
                ("assistant", "check"),
                ("user", "Moves so far: they bet. Legal moves: fold, call. Your card: Q."),
                ("assistant", "call"),
                ("user", OPENING),
                ("assistant", "bet"),
                ("user", "Moves so far: they bet. Legal moves: fold, call. Your card: Q."),
                ("assistant", "fold"),
                ("user", OPENING),
            ],
        ),
    ],
)
def test_the_prompt_of_every_template_is_exactly_this(template, prompt):
    messages = get_template(template).messages(game_at("kuhn_poker", (1, 0)), 0)
    assert messages == [{"role": role, "content": content} for role, content in prompt]


def test_without_known_moves_the_few_shot_prompt_is_one_message_with_an_instruction():
    game = make_game("SimpleNegotiation-v0-train", 2, 0)
    request = "Answer with your move only, in the format that the rules ask for."
    content = f"{game.rules(0)}\n{request}\n\nIt is your turn."
    assert get_template("fewshot-chat").messages(game, 0) == [{"role": "user", "content": content}]


EXAMPLE_BOARDS = (
    "012x45xoo 01oxx56o8 xx23o567o o123o56xx 012xo5o7x 012ox5ox8 0oxxo5678 x1x3oo678 0xx34o67o",
    "0x2x45xoo 01oxx5xo8 xx23o5x7o o12xo56xx ox23x5xo8 012ox5oxx 0oxxox678 x1x3oox78 0xxx4o67o",
)
"""The boards of the examples of tic-tac-toe, by seat; free cells are shown by number."""
EXAMPLE_CELLS = "407251836"


@pytest.mark.parametrize("pid", [0, 1])
@pytest.mark.parametrize(
    ("env_id", "marks", "before", "offer", "move"),
    [
        ("tic_tac_toe", "xo", "", "", "{}"),
        ("TicTacToe-v0", "OX", "Current Board:\n", "\nAvailable Moves: {}", "[{}]"),
        ("TicTacToe-v0-train", "OX", "Current Board:\n", "\nAvailable Moves: {}", "[{}]"),
    ],
)
def test_the_examples_of_tic_tac_toe_are_the_same_positions_in_both_libraries(
    env_id, marks, before, offer, move, pid
):
    expected = []
    for board, cell in zip(EXAMPLE_BOARDS[pid].split(), EXAMPLE_CELLS, strict=True):
        shown = board.translate(str.maketrans("xo", marks))
        rows = "\n".join(" ".join(shown[start : start + 3]) for start in (0, 3, 6))
        free = ", ".join(move.format(mark) for mark in board if mark.isdigit())
        expected.append((f"{before}{rows}{offer.format(free)}", move.format(cell)))
    assert example_turns(env_id, 2, pid) == tuple(expected)


@pytest.mark.parametrize(
    ("env_id", "history", "rules", "observation"),
    [
        ("kuhn_poker", (1, 0), KUHN_RULES, OPENING),
        (
            "kuhn_poker(players=3)",
            (0, 3, 1, 0, 1, 1),
            KUHN_RULES.replace("2 players, cards", "3 players, cards T,"),
            "Moves so far: you check, player 1 bet, player 2 call. Legal moves: fold, call. Your card: T.",
        ),
        (
            "leduc_poker",
            (2, 0, 2, 1, 5, 1, 2),
            LEDUC_RULES,
            "Round 1: raise call. Round 2: call raise. Legal moves: fold, call, raise. Public card: K. "
            "Your card: Q.",
        ),
        (
            "leduc_poker(players=3)",
            (2, 0, 4, 2, 0),
            LEDUC_RULES.replace("2 players. Cards", "3 players. Cards T,"),
            "Round 1: raise fold. Round 2: none. Legal moves: fold, call, raise. Public card: none. "
            "Your card: Q.",
        ),
        (
            "tic_tac_toe",
            (),
            TIC_TAC_TOE_RULES.format(mark="x"),
            "0 1 2\n3 4 5\n6 7 8",
        ),
        (
            "tic_tac_toe",
            (4,),
            TIC_TAC_TOE_RULES.format(mark="o"),
            "0 1 2\n3 x 5\n6 7 8",
        ),
        (
            "connect_four",  # perfect information: the position, not the history
            (3,),
            "The game is Connect Four. You are player 1 of 2.",
            ".......\n.......\n.......\n.......\n.......\n...x...\nLegal moves: o0, o1, o2, o3, o4, o5, o6.",
        ),
        (
            "dark_hex(board_size=2)",  # imperfect information: with the player's own attempts
            (0, 0),
            "The game is Dark Hex. You are player 1 of 2.",
            "x.\n..\n2\n1,0\nLegal moves: b1, a2, b2.",
        ),
        ("phantom_ttt", (), PHANTOM_RULES.format(after="you try another cell", mark="x"), "Your tries: none"),
        (
            "phantom_ttt",
            (4, 4, 0, 8, 1, 0),
            PHANTOM_RULES.format(after="you try another cell", mark="x"),
            "Your tries: 4, 8, 0 taken",
        ),
        (
            "phantom_ttt(gameversion=abrupt,obstype=reveal-numturns)",
            (4, 4, 8),
            PHANTOM_RULES.format(after="your turn is over", mark="o"),
            "Your tries: they try, 4 taken, they try",
        ),
        (
            "liars_dice(dice_sides=4)",
            (2, 0, 1, 4),
            LIARS_DICE_RULES.format(own="a die", sides=4, higher="more dice, or as many and a higher face"),
            "Bids: 1-2 2-1. Your die: 3.",
        ),
        (
            "liars_dice(numdice=2,dice_sides=4,bidding_rule=reset-quantity)",
            (3, 1, 1, 3),
            LIARS_DICE_RULES.format(
                own="2 dice", sides=4, higher="a higher face, or the same face and more dice"
            ),
            "Bids: none. Your dice: 2 4.",
        ),
        (
            "turn_based_simultaneous_game(game=goofspiel(num_cards=4,imp_info=True,points_order=descending))",
            (1, 1, 0, 3, 3),
            GOOFSPIEL_RULES.format(2, ", the highest first", 4, "Whoever has the most points wins"),
            "Prize 4: you bid 2, nobody won. Prize 3: you bid 4, you won. Prize now: 2. Your cards: 1 3.",
        ),
        (
            "turn_based_simultaneous_game(game=goofspiel(num_cards=4,players=3,num_turns=3,"
            "returns_type=total_points))",
            (1, 1, 0, 3, 2),
            GOOFSPIEL_RULES.format(3, " in random order", 3, "Points are what counts"),
            "Prize 2: player 2 won. Prize now: 3. Player 1 cards: 2 3 4. Player 2 cards: 1 2 3. "
            "Your cards: 1 3 4.",
        ),
        (
            "tiny_hanabi",
            (0, 1, 2),
            "The game is Tiny Hanabi. You are player 1 of 2.",
            "p1:d1 p0:a2\nLegal moves: p1a0, p1a1, p1a2.",
        ),
    ],
)
def test_the_words_of_openspiels_games_are_exactly_these(env_id, history, rules, observation):
    game = game_at(env_id, history)
    pid = game.current_pid
    assert (game.rules(pid), game.observation(pid)) == (rules, observation)
