"""``sparring play``: a person at standard input against a tiny model, whose moves are almost never legal."""

import io
import re

import pytest
from rich.console import Console

from hostile_text import ACTS_ON_A_TERMINAL
from sparring.commands.persons_games import ModelPlayer, PersonsGames, outcome_text, verdict_of
from sparring.commands.play import play_games
from sparring.core import CallSettings, MockInferenceClient
from sparring.envs.catalog import make_game
from sparring.envs.templates import get_template
from sparring.evaluation.match import Progress
from terminal_sessions import EndedInput
from tiny_models import roomy_model


def played(typed, monkeypatch, *, seat=None, env_id="kuhn_poker", seed=0):
    monkeypatch.setattr("sys.stdin", EndedInput(typed))
    said = io.StringIO()
    games = PersonsGames(str(roomy_model()), env_id, template=None, seat=seat, seed=seed, progress=Progress())
    play_games(games, Console(file=said, width=100))
    return said.getvalue()


@pytest.mark.parametrize("typed", ["", "\n"], ids=["Ctrl-D", "an empty line"])
@pytest.mark.parametrize("seat", [0, 1])
def test_ctrl_d_and_an_empty_line_end_the_session_whoever_moves_first(monkeypatch, seat, typed):
    said = played(typed, monkeypatch, seat=seat)
    assert said.count("game 1") == 1
    assert "game 2" not in said


def test_a_game_that_ends_before_the_persons_move_is_counted_and_another_is_offered(monkeypatch):
    said = played("y\ny\n\n", monkeypatch, seat=1)
    assert said.count("another game?") == 3
    assert said.count("not a legal move") == 3
    assert said.endswith("you: 3 won, 0 drawn, 0 lost\n")


def test_the_person_is_called_you_and_the_model_by_its_seat(monkeypatch):
    said = played("", monkeypatch, seat=1)
    assert "you have seat 1 of 2" in said
    assert "you won (you +2, player 0 -2)" in said
    assert "player 1" not in said


@pytest.mark.parametrize(
    ("rewards", "verdicts"),
    [
        ([1, -1], ["won", "lost"]),
        ([3, 5], ["lost", "won"]),
        ([2, 2, 2], ["drew", "drew", "drew"]),
        ([0, -1, 0], ["shared first place", "came last", "shared first place"]),
        ([5, 3, 3], ["won", "shared last place", "shared last place"]),
        ([1, 4, 2, 3], ["came last", "won", "came 3rd", "came 2nd"]),
        ([9, 2, 2, 1], ["won", "shared 2nd place", "shared 2nd place", "came last"]),
    ],
)
def test_a_game_is_drawn_only_if_all_earn_the_same_and_of_several_the_place_is_said(rewards, verdicts):
    earned = {pid: float(reward) for pid, reward in enumerate(rewards)}
    assert [verdict_of(earned, pid) for pid in earned] == verdicts
    for pid, verdict in enumerate(verdicts):
        said, each = outcome_text(earned, pid)
        assert said == f"you {verdict}"
        assert each.startswith(f"you {rewards[pid]:+g}, player ")


def test_the_places_of_a_game_of_three_are_counted(monkeypatch):
    said = played("", monkeypatch, seat=2, env_id="kuhn_poker(players=3)")
    assert "you shared first place (you +1, player 0 -2, player 1 +1)" in said
    assert said.endswith("you: 0 won, 0 drawn, 0 lost, 1 shared first place\n")


def test_an_abandoned_game_is_not_counted(monkeypatch):
    said = played("nonsense\n\n", monkeypatch, seat=0)
    assert "not legal; choose one of: check, bet" in said
    assert said.endswith("you: 0 won, 0 drawn, 0 lost\n")


def test_only_yes_continues_the_session(monkeypatch):
    assert "game 2" not in played("n\ny\n", monkeypatch, seat=1)


def test_a_single_player_game_has_no_opponent(monkeypatch):
    said = played("[50]\n" * 40, monkeypatch, env_id="GuessTheNumber-v0-train")
    assert "you have seat 0 of 1" in said
    assert re.search(r"you: \d+ won, 0 drawn, \d+ lost\n$", said)


RAISES = f"[bid: {'9' * 5000}, 2]"
"""A bid on which TextArena's LiarsDice raises, because Python does not parse a number this long."""


def test_a_move_of_the_person_on_which_the_game_raises_loses_the_game_and_the_session_continues(monkeypatch):
    said = played(f"{RAISES}\ny\n\n", monkeypatch, seat=0, env_id="LiarsDice-v0-train")
    assert "LiarsDice-v0-train failed inside TextArena: ValueError" in said
    assert "an invalid move of player 0" in said
    assert "you lost (you -1, player 1 +1)" in said
    assert "game 2: you have seat 0" in said
    assert said.endswith("you: 0 won, 0 drawn, 1 lost\n")


def test_a_move_of_the_model_on_which_the_game_raises_loses_its_game_and_the_session_continues(monkeypatch):
    monkeypatch.setattr(
        "sparring.commands.persons_games.build_engine", lambda *_: MockInferenceClient([RAISES])
    )
    said = played("y\nn\n", monkeypatch, seat=1, env_id="LiarsDice-v0-train")
    assert said.count("an invalid move of player 0") == 2
    assert said.count("you won (you +1, player 0 -1)") == 2
    assert said.endswith("you: 2 won, 0 drawn, 0 lost\n")


def test_answers_of_the_model_cannot_control_the_terminal(monkeypatch):
    said = played("y\ny\n\n", monkeypatch, seat=1)
    assert "·" in said  # the bytes of a random model hold control characters
    assert not ACTS_ON_A_TERMINAL.search(said)


async def test_the_models_answers_end_at_the_stop_texts_of_the_game_or_else_of_the_template():
    client = MockInferenceClient(["check\nbecause"])
    game = make_game("kuhn_poker", 2, 0)
    for template, stop, answer in (
        ("default", None, "check\nbecause"),
        ("default", ("\n",), "check"),
        ("fewshot-text", None, "check"),
        ("fewshot-text", ("because",), "check\n"),
    ):
        calls = CallSettings(max_tokens=8, stop=stop)
        model = ModelPlayer(client, ["base"] * 2, get_template(template), calls)
        assert (await model.answer(game, 0)).text == answer
