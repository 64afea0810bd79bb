"""OpenSpiel games: every turn-based game, with legal moves by name and chance from the seed tree."""

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from functools import lru_cache
from time import monotonic
from typing import Any

from sparring.core import EpisodeError, InputError, derive_seed
from sparring.core.errors import message_of
from sparring.envs.game import Game
from sparring.envs.known_ids import suggest
from sparring.envs.openspiel_card_words import GoofspielWording, KuhnWording, LeducWording, LiarsDiceWording
from sparring.envs.openspiel_words import (
    NimWording,
    PhantomTicTacToeWording,
    PlainWording,
    TicTacToeWording,
    Wording,
)

MAX_INFORMATION_STATES = 50_000
MAX_POSITIONS = 500_000
MAX_SECONDS = 60.0

IN_TURNS = "turn_based_simultaneous_game"
WORDINGS: dict[str, type[Wording]] = {
    "goofspiel": GoofspielWording,
    "kuhn_poker": KuhnWording,
    "leduc_poker": LeducWording,
    "liars_dice": LiarsDiceWording,
    "nim": NimWording,
    "phantom_ttt": PhantomTicTacToeWording,
    "tic_tac_toe": TicTacToeWording,
}
"""The words of each game, by OpenSpiel's short name, that has better ones than OpenSpiel's."""


@contextmanager
def _without_stderr() -> Iterator[None]:
    """Discard what is written to the process's stderr, where OpenSpiel prints the errors that it raises."""
    try:
        kept = os.dup(2)
    except OSError:  # it is closed, so nothing is printed there
        yield
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


@lru_cache(maxsize=256)
def load_game(env_id: str) -> Any:
    """Return the ``pyspiel.Game`` of an id such as ``kuhn_poker`` or ``kuhn_poker(players=3)``.

    An InputError is raised if OpenSpiel does not know it or rejects its parameters, or it is not turn-based.
    """
    import pyspiel

    name = env_id.split("(", 1)[0].strip()
    if name.endswith(".py"):
        raise InputError("env.id", f"{name!r} names a file without a class", f"Write it like {name}:MyGame")
    if name not in pyspiel.registered_names():
        raise InputError("env.id", f"OpenSpiel has no game {name!r}", suggest(name))
    try:
        with _without_stderr():
            _check_players(env_id)
            game = pyspiel.load_game(env_id)
            game.new_initial_state()  # where some games look at their parameters first
    except Exception as error:  # a SpielError, or one of C++
        line = message_of(error).strip().splitlines()[-1].rstrip(".")
        raise InputError(
            "env.id", f"OpenSpiel rejects {env_id!r}: {line}", "Correct the game's parameters"
        ) from error
    problem = not_playable_reason(game.get_type(), env_id)
    if problem:
        raise InputError("env.id", f"{env_id} cannot be played here: {problem}", "Choose a turn-based game")
    return game


def _check_players(env_id: str) -> None:
    """Raise a ValueError for a number of players that some games end the process for."""
    import pyspiel

    given = pyspiel.game_parameters_from_string(env_id)
    (kind,) = (one for one in pyspiel.registered_games() if one.short_name == given["name"])
    fewest, most = kind.min_num_players, kind.max_num_players
    players = given.get("players", fewest)
    if isinstance(players, int) and not fewest <= players <= most:
        raise ValueError(f"it is for {fewest} to {most} players")


def is_constant_sum(env_id: str) -> bool:
    """Return whether OpenSpiel says that the rewards of a game always have the same sum, such as 0."""
    kind = load_game(env_id).get_type()
    return kind.utility in (kind.Utility.ZERO_SUM, kind.Utility.CONSTANT_SUM)


def not_playable_reason(game_type: Any, env_id: str = "") -> str:
    """Return why a ``pyspiel.GameType`` cannot be played turn by turn, or an empty string."""
    if game_type.dynamics == game_type.Dynamics.SIMULTANEOUS:
        game = env_id or game_type.short_name
        wrapped = f"{IN_TURNS}(game={game if game.endswith(')') else f'{game}()'})"
        return f"its players move at the same time (wrap it: {wrapped})"
    if game_type.dynamics == game_type.Dynamics.MEAN_FIELD:
        return "it is a mean-field game"
    if game_type.short_name == "crossword":
        return "OpenSpiel does not list its moves"
    return ""


class OpenSpielGame(Game):
    """A turn-based OpenSpiel game in progress. ``state`` is its ``pyspiel.State``."""

    def __init__(self, env_id: str, seed: int) -> None:
        self._game = load_game(env_id)
        super().__init__(env_id, self._game.num_players())
        self._seed = seed
        self._chance_events = 0
        self._paid: dict[int, float] = {}
        self._wording = wording_of(env_id)
        self.state = self._game.new_initial_state()
        self._advance_chance()

    @property
    def current_pid(self) -> int:
        return int(self.state.current_player())

    def rules(self, pid: int) -> str:
        return self._wording.rules(self._game, pid)

    def observation(self, pid: int) -> str:
        return self._wording.observation(self.state, pid)

    def legal_actions(self) -> list[str]:
        return self._wording.moves(self.state)

    def apply(self, action: str) -> bool:
        names = self._wording.moves(self.state)
        if action not in names:
            return False
        self.state.apply_action(self.state.legal_actions()[names.index(action)])
        self._advance_chance()
        return True

    def earned(self) -> dict[int, float]:
        """Return what each player has earned since the last call, in games such as ``hanabi`` that OpenSpiel
        says to pay on the way. A game that is broken off takes back what it has paid beyond its end's."""
        kind = self._game.get_type()
        if kind.reward_model != kind.RewardModel.REWARDS:
            return {}
        now = self.rewards() if self.done else dict(enumerate(self.state.returns()))
        before, self._paid = self._paid, now
        return {pid: reward - before.get(pid, 0.0) for pid, reward in now.items()}

    def copy(self) -> "OpenSpielGame":
        made = copy(self)
        made.state = self.state.clone()
        return made

    def _finished(self) -> bool:
        return bool(self.state.is_terminal())

    def _own_rewards(self) -> dict[int, object]:
        if not self.state.is_terminal():
            raise EpisodeError(f"{self.env_id} is not over and has no rewards yet")
        return dict(enumerate(self.state.returns()))

    def _invalid_rewards(self, pid: int) -> dict[int, float]:
        return dict(enumerate(rewards_after_invalid(self._game, pid)))

    def _advance_chance(self) -> None:
        while self.state.is_chance_node():
            outcomes = self.state.chance_outcomes()
            draw = random.Random(derive_seed(self._seed, "chance", self._chance_events))
            self._chance_events += 1
            actions, weights = zip(*outcomes, strict=True)
            self.state.apply_action(draw.choices(actions, weights)[0])


def rewards_after_invalid(game: Any, pid: int) -> list[float]:
    """Return the reward of each seat of an OpenSpiel game that an invalid move of ``pid`` ended.

    The mover gets the game's worst result (``min_utility``), so an invalid move never earns more than a legal
    one. The others get, by the utilities that OpenSpiel states for the game, and never more than
    ``max_utility``:

    - zero-sum and constant-sum: equal parts of the rest of the sum; of two players, the other one wins all;
    - identical: the same as the mover, because partners win and lose together;
    - general-sum: 0, or the middle of the range in a game that pays nothing below 0, where 0 is the worst.

    OpenSpiel does not say who are partners in games of teams, such as bridge; there a partner is one of the
    others.
    """
    kind, players = game.get_type(), game.num_players()
    worst, best = float(game.min_utility()), float(game.max_utility())
    if kind.utility == kind.Utility.IDENTICAL:
        return [worst] * players
    if kind.utility in (kind.Utility.ZERO_SUM, kind.Utility.CONSTANT_SUM):
        others = (float(game.utility_sum()) - worst) / max(players - 1, 1)
    else:
        others = 0.0 if worst < 0.0 <= best else (worst + best) / 2
    return [worst if seat == pid else min(others, best) for seat in range(players)]


@dataclass(frozen=True)
class InformationState:
    """One decision point of a small game: everything that a player knows there, and its legal actions.

    ``actions`` are OpenSpiel's action ids, in the order of ``legal_actions`` (their names). ``history`` is
    one sequence of OpenSpiel actions, including chance, that leads there.
    """

    info_state: str
    observation: str
    legal_actions: tuple[str, ...]
    actions: tuple[int, ...]
    pid: int
    history: tuple[int, ...]


def information_states(
    env_id: str, max_states: int = MAX_INFORMATION_STATES, max_positions: int = MAX_POSITIONS
) -> list[InformationState]:
    """Return every information state of a game at which a player decides, in depth-first order.

    An InputError is raised if the game has none, more than the limits, or takes over 60 seconds.
    """
    game = load_game(env_id)
    if not game.get_type().provides_information_state_string:
        raise InputError("env.id", f"{env_id} has no information states", "Choose kuhn_poker or leduc_poker")
    wording = wording_of(env_id)
    found: dict[tuple[int, str], InformationState] = {}
    stack = [game.new_initial_state()]
    positions, deadline = 0, monotonic() + MAX_SECONDS
    while stack:
        state = stack.pop()
        positions += 1
        if len(found) > max_states or positions > max_positions:
            problem = f"has more than {max_states:,} information states or {max_positions:,} positions"
            raise _too_large(env_id, problem)
        if monotonic() > deadline:
            raise _too_large(env_id, f"has too many positions to list in {MAX_SECONDS:g} seconds")
        if state.is_terminal():
            continue
        if not state.is_chance_node():
            _add_information_state(found, state, wording)
        stack.extend(state.child(action) for action in reversed(state.legal_actions()))
    return list(found.values())


def _too_large(env_id: str, problem: str) -> InputError:
    fix = "Exact measures need a small game such as kuhn_poker or leduc_poker"
    return InputError("env.id", f"{env_id} {problem}", fix)


def _add_information_state(
    found: dict[tuple[int, str], InformationState], state: Any, wording: Wording
) -> None:
    pid = state.current_player()
    info_state = state.information_state_string(pid)
    if (pid, info_state) not in found:
        found[pid, info_state] = InformationState(
            info_state,
            wording.observation(state, pid),
            tuple(wording.moves(state)),
            tuple(state.legal_actions()),
            pid,
            tuple(state.history()),
        )


@lru_cache(maxsize=256)
def wording_of(env_id: str) -> Wording:
    """Return the words of a game, or of the game of simultaneous moves that is played in turns."""
    game = load_game(env_id)
    name: str = game.get_type().short_name
    if name == IN_TURNS:
        name = game.get_parameters()["game"]["name"]
    return WORDINGS.get(name, PlainWording)()


def game_at(env_id: str, history: tuple[int, ...]) -> OpenSpielGame:
    """Return a game in the position that ``history`` (OpenSpiel's actions, including chance) leads to."""
    game = OpenSpielGame(env_id, seed=0)
    game.state = load_game(env_id).new_initial_state()
    for action in history:
        game.state.apply_action(action)
    return game


def previous_decisions(env_id: str, states: list[InformationState]) -> list[tuple[int, int] | None]:
    """Return for each information state the same player's decision before it; ``None`` if it has none.

    A decision is the place of its information state in ``states``, which is earlier, and the place of the
    action among the legal ones there. In a game of perfect recall every way to a state has the same one.
    """
    places = {(state.pid, state.info_state): place for place, state in enumerate(states)}
    found: list[tuple[int, int] | None] = []
    for target in states:
        state, previous = load_game(env_id).new_initial_state(), None
        for action in target.history:
            if state.current_player() == target.pid:
                place = places[target.pid, state.information_state_string(target.pid)]
                previous = (place, states[place].actions.index(action))
            state.apply_action(action)
        found.append(previous)
    return found
