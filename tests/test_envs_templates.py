"""Prompt templates and example turns."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hostile_text import hostile_text
from sparring.core import EpisodeError, InputError
from sparring.envs.catalog import make_game
from sparring.envs.examples import example_turns
from sparring.envs.templates import TEMPLATES, CheckedTemplate, FewshotTextTemplate, get_template

REFERENCE_NAMES = {"default", "qwen3-zs", "qwen3-sp", "qwen3-reasoning", "gemma3-zs", "llama-instruct-zs"}


def test_the_names_of_the_reference_and_the_few_shot_one_exist():
    assert set(TEMPLATES) == REFERENCE_NAMES | {"fewshot-chat", "fewshot-text"}


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


GAMES = [
    ("kuhn_poker", 2),
    ("kuhn_poker(players=3)", 3),
    ("leduc_poker", 2),
    ("connect_four", 2),
    ("TicTacToe-v0-train", 2),
    ("KuhnPoker-v0-train", 2),
    ("Blackjack-v0-train", 1),
]


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize(("env_id", "players"), GAMES)
def test_every_legal_answer_is_read_as_its_move_and_ends_where_the_template_says(name, env_id, players):
    template, game = get_template(name), make_game(env_id, players, 0)
    for move in game.legal_actions():
        answer = template.answer(move)
        assert template.extract(answer) == (move, True)
        assert answer.endswith(template.stop)
        if template.stop:
            assert answer.count(template.stop) == 1
            assert template.extract(answer.removesuffix(template.stop)) == (move, True)


@pytest.mark.parametrize(("env_id", "players"), GAMES)
def test_the_plain_text_prompt_shows_answers_in_the_form_that_it_asks_for(env_id, players):
    template, game = get_template("fewshot-text"), make_game(env_id, players, 0)
    (message,) = template.messages(game, game.current_pid)
    text, turns = message["content"], example_turns(env_id, players, game.current_pid)
    assert message["role"] == "text"
    assert text.startswith(game.rules(game.current_pid))
    assert text.endswith("\nMove:")
    assert all(f"{observation}\nMove:{template.answer(move)}Position:" in text for observation, move in turns)
    assert text.count("\nMove:") == len(turns) + 1


def test_a_game_without_listed_moves_gets_a_request_in_place_of_examples():
    game = make_game("SimpleNegotiation-v0-train", 2, 0)
    (message,) = get_template("fewshot-text").messages(game, game.current_pid)
    assert "Answer with your move only" in message["content"]


@given(st.sampled_from(["bet", " bet", "\tbet ", "[4]"]), hostile_text())
def test_only_the_first_line_of_an_answer_to_plain_text_counts(move, rest):
    template = get_template("fewshot-text")
    assert template.extract(f"{move}\n{rest}") == (move.strip(), True)
    action, well_formed = template.extract(rest)
    assert "\n" not in action
    assert not well_formed or template.extract(template.answer(action)) == (action, True)


class Unended(FewshotTextTemplate):
    """A template of a user whose answers lack its stop."""

    def answer(self, action):
        return action


class Numbered(FewshotTextTemplate):
    """A template of a user whose stop is no text."""

    stop = 3


def test_a_template_of_ones_own_must_end_its_answers_with_its_stop():
    with pytest.raises(EpisodeError, match=r"Unended.answer returned 'bet', which does not end with stop"):
        CheckedTemplate(Unended()).answer("bet")
    assert CheckedTemplate(FewshotTextTemplate()).answer("bet") == " bet\n"
    with pytest.raises(InputError, match="the stop of Numbered is not a text"):
        CheckedTemplate(Numbered())
