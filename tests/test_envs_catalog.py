"""Playable environments, and the reasons given for the others."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sparring.commands.calibrate import GAMES as CALIBRATED
from sparring.core import InputError
from sparring.envs.catalog import describe, library_of, list_environments, longest_move, make_game
from sparring.envs.openspiel_game import load_game
from sparring.evaluation.nash_conv import states_of


@pytest.mark.parametrize(
    ("env_id", "players", "line"),
    [
        ("kuhn_pokr", 2, "env.id: OpenSpiel has no game 'kuhn_pokr'. Did you mean kuhn_poker"),
        ("TicTacTo-v0-train", 2, "env.id: TextArena has no environment 'TicTacTo-v0-train'. Did you mean Ti"),
        (
            "TicTacToe",
            2,
            "env.id: OpenSpiel has no game 'TicTacToe'. Did you mean tic_tac_toe, TicTacToe-v0",
        ),
        ("zzzzzz", 2, "env.id: OpenSpiel has no game 'zzzzzz'. See: sparring envs"),
        ("kuhn_poker", 3, "env.num_players: kuhn_poker does not support 3 players. It supports: 2"),
        ("TicTacToe-v0-train", 1, "env.num_players: TicTacToe-v0-train does not support 1 players"),
        ("matrix_rps", 2, "env.id: matrix_rps cannot be played here: its players move at the same time"),
        ("mfg_garnet", 1, "env.id: mfg_garnet cannot be played here: it is a mean-field game"),
        ("kuhn_poker(playrs=3)", 3, "env.id: OpenSpiel rejects 'kuhn_poker(playrs=3)': Unknown parameter"),
        ("nfg_game", 2, "env.id: OpenSpiel rejects 'nfg_game': map::at. Correct the game's parameters"),
        ("efg_game", 2, "env.id: OpenSpiel rejects 'efg_game': "),
        ("hanabi(players=9)", 9, "env.id: OpenSpiel rejects 'hanabi(players=9)': it is for 2 to 5 players"),
        ("go(board_size=100)", 2, "env.id: OpenSpiel rejects 'go(board_size=100)': The current Go"),
        (
            "goofspiel(num_cards=4)",
            2,
            "env.id: goofspiel(num_cards=4) cannot be played here: its players move at the same time "
            "(wrap it: turn_based_simultaneous_game(game=goofspiel(num_cards=4)))",
        ),
        ("Countdown-v0-train", 1, "env.id: Countdown-v0-train cannot be played here: after an invalid move"),
        ("LightsOut-v0-train", 1, "env.id: LightsOut-v0-train cannot be played here: it never shows the"),
        ("TicTacToe-v0-raw", 2, "env.id: TicTacToe-v0-raw cannot be played here: its observations are not"),
        (
            "crossword",
            1,
            "env.id: crossword cannot be played here: OpenSpiel does not list its moves. Choose",
        ),
    ],
)
def test_rejections_are_one_line_with_a_fix(env_id, players, line, capfd):
    with pytest.raises(InputError) as caught:
        make_game(env_id, players, 0)
    assert capfd.readouterr().err == ""
    assert str(caught.value).startswith(line)
    assert "\n" not in str(caught.value)
    assert caught.value.fix


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="there it can be played")
def test_a_game_that_needs_a_newer_python_says_so():
    with pytest.raises(InputError, match=r"Python 3\.12"):
        make_game("Chess-v0-train", 2, 0)


def test_a_game_that_needs_a_key_is_playable_with_the_key(monkeypatch):
    monkeypatch.delenv("OPENROUTER_API_KEY", raising=False)
    assert "OPENROUTER_API_KEY" in describe("Debate-v0-train").reason
    monkeypatch.setenv("OPENROUTER_API_KEY", "x")
    assert describe("Debate-v0-train").playable


def test_a_game_that_needs_data_is_playable_with_the_data(monkeypatch, tmp_path):
    monkeypatch.setenv("NLTK_DATA", str(tmp_path))
    assert "word list" in describe("Wordle-v0-train").reason
    (tmp_path / "corpora" / "words").mkdir(parents=True)
    assert describe("Wordle-v0-train").playable


def test_the_word_list_is_searched_in_the_directories_of_nltk(monkeypatch):
    monkeypatch.setenv("HOME", "/home/player")
    monkeypatch.setattr(sys, "prefix", "/python")
    searched = []
    monkeypatch.setattr(Path, "exists", lambda path: bool(searched.append(path.as_posix())))
    usual = [
        "/home/player/nltk_data",
        "/python/nltk_data",
        "/python/share/nltk_data",
        "/python/lib/nltk_data",
        "/usr/share/nltk_data",
        "/usr/local/share/nltk_data",
        "/usr/lib/nltk_data",
        "/usr/local/lib/nltk_data",
    ]
    for named in ([], ["/data/words"], ["/data/words", "/more data"]):
        monkeypatch.setenv("NLTK_DATA", os.pathsep.join(named))
        if not named:
            monkeypatch.delenv("NLTK_DATA")
        searched.clear()
        assert not describe("Wordle-v0-train").playable
        roots = [f"{place}/corpora" for place in [*named, *usual]]
        assert searched == [f"{root}/{name}" for root in roots for name in ("words", "words.zip")]


def test_games_of_openspiel_that_cannot_be_played_under_their_bare_name_say_why():
    reasons = {info.env_id: info.reason for info in list_environments()}
    assert reasons["misere"] == "it needs parameters: give them in parentheses after the name"
    assert reasons["crossword"] == "OpenSpiel does not list its moves"
    assert reasons["mfg_garnet"] == "it is a mean-field game"
    assert reasons["matrix_rps"] == (
        "its players move at the same time (wrap it: turn_based_simultaneous_game(game=matrix_rps()))"
    )
    assert reasons["kuhn_poker"] == ""


def test_the_list_has_both_libraries_and_a_reason_for_each_unplayable_game():
    infos = list_environments()
    textarena = [info for info in infos if info.library == "textarena"]
    assert len(textarena) == 238
    assert sum(info.playable for info in textarena) >= 170
    assert len({info.env_id for info in infos}) == len(infos)
    assert all(bool(info.reason) != info.playable for info in infos)
    assert all(info.players for info in infos if info.playable)
    openspiel = {info.env_id: info for info in infos if info.library == "openspiel"}
    assert openspiel["kuhn_poker"].players == [2]
    assert not openspiel["matrix_rps"].playable


def test_the_catalog_loads_without_the_game_libraries():
    code = (
        "import sys, sparring.envs.catalog as c; c.describe('TicTacToe-v0-train');"
        "import sparring.envs.game_episode, sparring.envs.templates, sparring.envs.scripted;"
        "print({'textarena', 'pyspiel', 'torch', 'nltk', 'openai'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_a_version_in_a_games_parameters_does_not_make_it_textarenas():
    assert library_of("TicTacToe-v0-train") == "textarena"
    assert library_of("misere(game=efg_game(filename=kuhn-v2.efg))") == "openspiel"


@pytest.mark.parametrize("env_id", [one for one in CALIBRATED if one != "tiny_bridge_2p"])
def test_the_longest_move_of_random_games_is_that_of_all_positions(env_id):
    moves = [move for state in states_of(env_id) for move in state.legal_actions]
    assert longest_move(env_id, load_game(env_id).num_players()) == max(map(len, moves))


DOORS = """
from sparring.envs.game import Game

class Doors(Game):
    def __init__(self, env_id, num_players, seed):
        super().__init__(env_id, num_players)
        self.turn = 0
    @property
    def current_pid(self):
        return self.turn % 2
    def rules(self, pid):
        return "Open doors."
    def observation(self, pid):
        return f"{self.turn} are open."
    def legal_actions(self):
        return ["wait", "open the large red door at the end of the corridor"]
    def apply(self, action):
        self.turn += 1
        if BREAKS:
            raise ValueError("the door is stuck")
        return True
    def _finished(self):
        return self.turn == 4
    def _own_rewards(self):
        return {0: 1.0, 1: -1.0}
"""


@pytest.mark.parametrize("breaks", [False, True])
def test_the_longest_move_is_also_found_in_games_of_ones_own_and_in_broken_ones(breaks, tmp_path):
    file = tmp_path / "doors.py"
    file.write_text(DOORS.replace("BREAKS", str(breaks)))
    assert longest_move(f"{file}:Doors", 2) == len("open the large red door at the end of the corridor")


def test_games_without_listed_moves_have_no_longest_one():
    assert longest_move("TicTacToe-v0-train", 2) == 0
