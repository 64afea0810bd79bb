"""Prompt templates and example turns."""

from collections import Counter

import pytest

from sparring.core import InputError
from sparring.envs.catalog import make_game
from sparring.envs.examples import example_turns
from sparring.envs.templates import TEMPLATES, get_template

REFERENCE_NAMES = {"default", "qwen3-zs", "qwen3-sp", "qwen3-reasoning", "gemma3-zs", "llama-instruct-zs"}


def test_the_names_of_the_reference_and_the_few_shot_one_exist():
    assert set(TEMPLATES) == REFERENCE_NAMES | {"fewshot-chat"}


def test_an_unknown_template_is_rejected_and_the_known_ones_named():
    with pytest.raises(InputError, match="Use one of default"):
        get_template("qwen4")


@pytest.mark.parametrize("env_id", ["kuhn_poker", "tic_tac_toe", "TicTacToe-v0-train"])
def test_examples_show_every_move_equally_often(env_id):
    for pid in range(2):
        shown = Counter(move for _, move in example_turns(env_id, 2, pid))
        assert len(shown) == (4 if env_id == "kuhn_poker" else 9)
        assert len(set(shown.values())) == 1


@pytest.mark.parametrize(
    ("env_id", "players"),
    [
        ("kuhn_poker", 2),
        ("kuhn_poker(players=3)", 3),
        ("leduc_poker", 2),
        ("tic_tac_toe", 2),
        ("connect_four", 2),
        ("TicTacToe-v0-train", 2),
        ("KuhnPoker-v0-train", 2),
        ("Nim-v0-train", 2),
        ("Blackjack-v0-train", 1),
        ("ThreePlayerTicTacToe-v0-train", 3),
    ],
)
def test_example_answers_are_well_formed_and_the_seat_has_some(env_id, players):
    template = get_template("fewshot-chat")
    for pid in range(players):
        turns = example_turns(env_id, players, pid)
        assert turns
        assert all(observation and template.extract(move) == (move, True) for observation, move in turns)


def test_examples_name_the_move_among_those_their_observation_offers():
    for observation, move in example_turns("kuhn_poker", 2, 0):
        assert move in observation
    for observation, move in example_turns("TicTacToe-v0-train", 2, 1):
        assert move in observation.split("Available Moves:")[1]


def test_a_prompt_is_the_callers_to_change():
    game = make_game("kuhn_poker", 2, 0)
    template = get_template("fewshot-chat")
    first = template.messages(game, 0)
    length = len(first)
    first.append({"role": "assistant", "content": "bet"})
    assert len(template.messages(game, 0)) == length
