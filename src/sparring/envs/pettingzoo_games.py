"""PettingZoo's games: ``pettingzoo:chess_v6``. Only this module and its words import PettingZoo."""

import importlib
import importlib.util
import pkgutil
import re
from collections.abc import Mapping
from typing import Any

from pettingzoo import AECEnv, ParallelEnv

from sparring.core import EpisodeError, InputError
from sparring.core.errors import shown
from sparring.core.own_code import own_code, own_function
from sparring.envs.environment import (
    BlockingEnvironment,
    End,
    Situation,
    end_of,
    own_words,
    reading,
    with_moves,
)
from sparring.envs.pettingzoo_words import WORDS, Words

FAMILIES = ("classic", "butterfly", "sisl", "atari")


class PettingZooEnvironment(BlockingEnvironment):
    """A game whose moves are numbers; its agents are the players, in the order of ``possible_agents``.

    Where PettingZoo has a game as a parallel one, all players move at once.

    Args:
        name: the game's module, such as ``chess_v6``; with ``make`` any name.
        make: a function of your own (``my_game.py:env``) that returns an AEC or a parallel environment.
        render_text: a function (``my_words.py:board``) that is called with an observation, the environment
            and the agent, and returns what the agent reads above the legal moves. Some games have words of
            their own.
        action_name: a function of an action, the environment and the agent, which returns the move's name; by
            default the number.
        rules: the text that introduces the game.
        in_thread: make moves in a thread.
        invalid_reward: see Environment.
        settings: what the game itself takes.
    """

    lists_moves = True

    def __init__(
        self,
        name: str,
        make: str = "",
        render_text: str = "",
        action_name: str = "",
        rules: str = "",
        in_thread: bool = False,
        invalid_reward: float | None = None,
        **settings: Any,
    ) -> None:
        path, words = ("", Words()) if make else (_path_of(name), WORDS.get(name, Words()))
        own = own_words(render_text)
        self.render_text, self._adds_moves = own or words.render_text, own is not None
        if self.render_text is None:
            fix = 'Name a function of an observation, the environment and an agent: "my_words.py:board"'
            raise InputError("env.options.render_text", f"{name} has no words of its own", fix)
        build = own_function(make, "env.options.make") if make else _maker_of(path)
        self.action_name = own_function(action_name, "env.options") if action_name else words.action_name
        self._rules, self.in_thread = rules or words.rules, in_thread
        self.invalid_reward = invalid_reward
        with own_code(f"{name} cannot be made", "env.options"):
            self.env: Any = build(**settings)
        self.is_parallel = isinstance(self.env, ParallelEnv)
        if not self.is_parallel and not isinstance(self.env, AECEnv):
            problem = f"{make} returned {shown(self.env)}, which is no environment of PettingZoo"
            raise InputError("env.options.make", problem, "Return an AECEnv or a ParallelEnv")
        self.agents: list[str] = list(self.env.possible_agents)
        self.num_players = len(self.agents)
        for agent in self.agents:
            if not hasattr(self.env.action_space(agent), "n"):
                problem = f"the moves of {name} are not numbers, but {self.env.action_space(agent)}"
                raise InputError("env.id", problem, "Choose a game whose action space is Discrete")
        self._actions: dict[int, dict[str, int]] = {}

    def rules(self, player: int) -> str:
        """Return the rules, and which player this is."""
        return f"{self._rules}\nYou are {self.agents[player]}.".strip()

    def begin(self, seed: int) -> Situation:
        """Begin a game."""
        observed = self.env.reset(seed=seed % 2**31)
        if self.is_parallel:
            observations, infos = observed
            return self._situation(observations, infos, {}, {})
        return self._turn({})

    def play(self, answers: dict[int, str]) -> Situation:
        """Make the moves of those who were to act."""
        actions = {self.agents[player]: self._actions[player][name] for player, name in answers.items()}
        if self.is_parallel:
            observations, rewards, terminated, truncated, infos = self.env.step(actions)
            ends = {agent: end_of(terminated[agent], truncated[agent]) for agent in terminated}
            return self._situation(observations, infos, rewards, ends)
        self.env.step(actions[self.env.agent_selection])
        return self._turn(dict(self.env.rewards))

    def end(self) -> None:
        """Close PettingZoo's environment."""
        self.env.close()

    def _turn(self, rewards: Mapping[str, float]) -> Situation:
        """Return what a game in turns says: the next agent is asked, after those who are out have left."""
        env = self.env
        ends = {agent: end_of(env.terminations[agent], env.truncations[agent]) for agent in env.agents}
        while env.agents and end_of(
            env.terminations[env.agent_selection], env.truncations[env.agent_selection]
        ):
            env.step(None)
        mover = env.agent_selection if env.agents else None
        observations = {} if mover is None else {mover: env.observe(mover)}
        return self._situation(observations, env.infos, rewards, ends)

    @reading()
    def _situation(
        self,
        observations: Mapping[str, Any],
        infos: Mapping[str, Any],
        rewards: Mapping[str, float],
        ends: Mapping[str, End | None],
    ) -> Situation:
        number = {agent: player for player, agent in enumerate(self.agents)}
        over: dict[int, End] = {number[agent]: end for agent, end in ends.items() if end is not None}
        seen = {number[agent]: one for agent, one in observations.items() if number[agent] not in over}
        self._actions = {
            player: self._named(self.agents[player], one, infos.get(self.agents[player], {}))
            for player, one in seen.items()
        }
        return Situation(
            {player: self._text(player, one) for player, one in seen.items()},
            {player: list(actions) for player, actions in self._actions.items()},
            {number[agent]: float(reward) for agent, reward in rewards.items()},
            over,
        )

    def _text(self, player: int, observation: Any) -> str:
        """Return what a player reads."""
        assert self.render_text is not None
        text = self.render_text(observation, self.env, self.agents[player])
        return with_moves(text, [*self._actions[player]] if self._adds_moves else [])

    def _named(self, agent: str, observation: Any, info: Mapping[str, Any]) -> dict[str, int]:
        """Return the legal actions by name: those of the mask, or all if there is none."""
        space = self.env.action_space(agent)
        mask = observation.get("action_mask") if isinstance(observation, Mapping) else None
        mask = info.get("action_mask") if mask is None else mask
        first = int(getattr(space, "start", 0))
        legal = [first + place for place in range(int(space.n)) if mask is None or mask[place]]
        name = self.action_name or (lambda action, env, agent: str(action))
        named = [name(action, self.env, agent) for action in legal]
        if twice := [one for one in named if named.count(one) > 1]:
            raise EpisodeError(f"action_name returned {shown(twice[0])} for two legal moves")
        return dict(zip(named, legal, strict=True))


def names() -> list[str]:
    """Return the modules of all games, by their names."""
    return [
        module.name
        for family in FAMILIES
        if (spec := importlib.util.find_spec(f"pettingzoo.{family}")) is not None
        for module in pkgutil.iter_modules(spec.submodule_search_locations)
        if re.search(r"_v\d+$", module.name)
    ]


def _path_of(name: str) -> str:
    """Return the path of a game's module; raise an InputError if PettingZoo has none of this name."""
    for family in FAMILIES if name.isidentifier() else ():
        if importlib.util.find_spec(path := f"pettingzoo.{family}.{name}") is not None:
            return path
    fix = 'Name a module of it, such as chess_v6, or your own in options: make = "my_game.py:env"'
    raise InputError("env.id", f"PettingZoo has no game {name!r}", fix)


def _maker_of(path: str) -> Any:
    """Return the function that makes a game of PettingZoo, as a parallel one where it is; raise an InputError
    if it needs more."""
    try:
        module = importlib.import_module(path)
    except ImportError as error:
        name, fix = path.rpartition(".")[2], "Run: pip install 'sparring[pettingzoo]'"
        raise InputError("env.id", f"{name} cannot be imported ({error})", fix) from error
    return module.parallel_env if hasattr(module, "parallel_env") else module.env
