"""RLCard's games: ``rlcard:limit-holdem``. Only this module imports RLCard."""

from collections.abc import Mapping
from enum import Enum
from operator import itemgetter
from typing import Any

import rlcard

from sparring.core import InputError
from sparring.core.own_code import own_code
from sparring.envs.environment import BlockingEnvironment, Situation, own_words, reading, with_moves

WITH_TEXT = ("blackjack", "doudizhu", "leduc-holdem", "limit-holdem", "no-limit-holdem", "uno")
"""The games of which RLCard gives more than numbers."""


def names() -> list[str]:
    """Return the names of all games."""
    return [*rlcard.envs.registration.registry.env_specs]


class RLCardEnvironment(BlockingEnvironment):
    """A card game in turns, which pays at its end.

    Args:
        name: RLCard's name of the game.
        render_text: a function (``my_words.py:table``) of a state, RLCard's environment and the number of the
            player, which returns what the player reads above the legal moves; by default RLCard's own table,
            line by line.
        rules: the text that introduces the game.
        in_thread: make moves in a thread.
        invalid_reward: see Environment.
        settings: what the game itself takes, such as ``game_num_players``.
    """

    lists_moves = True

    def __init__(
        self,
        name: str,
        render_text: str = "",
        rules: str = "",
        in_thread: bool = False,
        invalid_reward: float | None = None,
        **settings: Any,
    ) -> None:
        self.in_thread, self.invalid_reward = in_thread, invalid_reward
        self.render_text = own_words(render_text) or _table
        if name not in names():
            raise InputError("env.id", f"RLCard has no game {name!r}", f"It has: {', '.join(names())}")
        if not render_text and name not in WITH_TEXT:
            fix = 'Name a function of a state, the environment and a player: "my_words.py:table"'
            raise InputError("env.options.render_text", f"RLCard has no text for {name}", fix)
        self._rules = rules or f"You play {name}."
        self._name, self._settings = name, settings
        with own_code(f"{name} cannot be made", "env.id"):
            self.env = self._made(0)
        known = {"allow_step_back", *getattr(self.env, "default_game_config", {})}  # it takes any other too
        if unknown := settings.keys() - known:
            problem = f"RLCard's {name} has no setting {min(unknown)}"
            raise InputError("env.options", problem, f"It has: {', '.join(sorted(known))}")
        self.num_players = int(self.env.num_players)
        if settings.get("game_num_players", self.num_players) != self.num_players:
            problem = f"RLCard's {name} is for {self.num_players}, whatever it is asked for"
            raise InputError("env.options.game_num_players", problem, "Leave it out")
        self._actions: dict[str, Any] = {}

    def rules(self, player: int) -> str:
        """Return the rules, and which player this is."""
        return f"{self._rules} You are player {player}."

    def _made(self, seed: int) -> Any:
        return rlcard.make(self._name, {**self._settings, "seed": seed % 2**31})

    def begin(self, seed: int) -> Situation:
        """Begin a game, in an object of its own: RLCard's keep the dealer and the bets of the last game."""
        self.env = self._made(seed)
        return self._situation(*self.env.reset())

    def play(self, answers: dict[int, str]) -> Situation:
        """Make the move of the player whose turn it is."""
        (name,) = answers.values()
        return self._situation(*self.env.step(self._actions[name]))

    @reading()
    def _situation(self, state: Mapping[str, Any], player: int) -> Situation:
        if self.env.is_over():
            rewards = {seat: float(one) for seat, one in enumerate(self.env.get_payoffs())}
            return Situation({}, rewards=rewards, ends=dict.fromkeys(rewards, "terminated"))
        numbers, names = [*state["legal_actions"]], [*dict.fromkeys(map(_name, state["raw_legal_actions"]))]
        if len(numbers) != len(names):  # RLCard merges some of its moves
            names = [*map(str, numbers)]
        moves = sorted(zip(names, numbers, strict=True), key=itemgetter(1))  # some come in the order of a set
        self._actions = dict(moves)
        text = with_moves(self.render_text(state, self.env, player), [*self._actions])
        return Situation({player: text}, {player: [*self._actions]})


def _name(action: Any) -> str:
    """Return an action's name: a text, the name of an enumeration's entry, or what it says of itself."""
    return action.name.lower() if isinstance(action, Enum) else str(action)


def _table(state: Mapping[str, Any], env: Any, player: int) -> str:
    hidden = {"legal_actions", "actions", "trace"}
    seen = {key: one for key, one in state["raw_obs"].items() if key not in hidden}
    return "\n".join(f"{key.replace('_', ' ')}: {_written(one)}" for key, one in seen.items())


def _written(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(_written, value)) or "none"
    return "none" if value is None else _name(value)
