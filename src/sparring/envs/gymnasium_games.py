"""Gymnasium's environments as games for one: ``gymnasium:FrozenLake-v1``. Only this module imports it."""

import importlib
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import gymnasium

from sparring.core import InputError
from sparring.core.own_code import own_code
from sparring.envs.environment import (
    BlockingEnvironment,
    Situation,
    end_of,
    own_words,
    reading,
    with_moves,
)

_HIGHLIGHT = re.compile(r"\x1b\[[\d;]+m(.)\x1b\[0m")


@contextmanager
def _without_warnings() -> Iterator[None]:
    """Keep Gymnasium from warning, as of an id that has a newer version: who plays has not chosen it."""
    level = gymnasium.logger.min_level
    gymnasium.logger.min_level = max(level, gymnasium.logger.ERROR)
    try:
        yield
    finally:
        gymnasium.logger.min_level = level


def names() -> list[str]:
    """Return the ids that are registered, each of the newest version."""
    newest: dict[tuple[str | None, str], Any] = {}
    for spec in gymnasium.registry.values():
        known = newest.setdefault((spec.namespace, spec.name), spec)
        if (spec.version or 0) > (known.version or 0):
            newest[spec.namespace, spec.name] = spec
    return [spec.id for spec in newest.values()]


class GymnasiumEnvironment(BlockingEnvironment):
    """An environment whose moves are numbers or texts.

    Args:
        name: Gymnasium's id, behind the module that registers it, if Gymnasium itself does not:
            ``my_module:MyMaze-v0``.
        actions: names of the numbers, in order; by default the numbers themselves.
        render_text: a function (``my_words.py:lake``) of an observation and the environment, which returns
            what the player reads above the legal moves; by default what the environment draws as text, or
            else the observation.
        rules: the text that introduces the environment.
        in_thread: make moves in a thread.
        invalid_reward: see Environment.
        settings: what the environment itself takes.
    """

    num_players = 1

    def __init__(
        self,
        name: str,
        actions: Sequence[str] = (),
        render_text: str = "",
        rules: str = "",
        in_thread: bool = False,
        invalid_reward: float | None = None,
        **settings: Any,
    ) -> None:
        self.in_thread, self.invalid_reward = in_thread, invalid_reward
        self._rules, self.render_text = rules or f"You act in {name}.", own_words(render_text)
        with own_code(f"{name} cannot be made", "env.id"):
            module, _, registered = name.rpartition(":")
            if module:
                importlib.import_module(module)
            spec = gymnasium.spec(registered)
            with _without_warnings():
                self.env: Any = gymnasium.make(registered, **(self._drawing(spec) | settings))
        space = self.env.action_space
        self.lists_moves = isinstance(space, gymnasium.spaces.Discrete)
        if not self.lists_moves and not isinstance(space, gymnasium.spaces.Text):
            problem = f"the moves of {name} are neither numbers nor texts, but {space}"
            raise InputError("env.id", problem, "Choose an environment whose moves are")
        self.first = int(space.start) if self.lists_moves else 0
        numbers = [str(self.first + place) for place in range(int(space.n))] if self.lists_moves else []
        if actions and len(actions) != len(numbers):
            problem = f"has {len(actions)} names, and {name} has {len(numbers)} moves"
            raise InputError("env.options.actions", problem, "Name each of them")
        self.actions = [*actions] or numbers

    def _drawing(self, spec: Any) -> dict[str, Any]:
        """Return the setting with which an environment draws itself as text, if it can."""
        if self.render_text is not None:
            return {}
        creator = spec.entry_point
        if not callable(creator):
            creator = gymnasium.envs.registration.load_env_creator(creator)
        modes = getattr(creator, "metadata", {})
        return {"render_mode": "ansi"} if "ansi" in modes.get("render_modes", ()) else {}

    def rules(self, player: int) -> str:
        """Return the rules."""
        return self._rules

    def begin(self, seed: int) -> Situation:
        """Begin a game."""
        observation, info = self.env.reset(seed=seed % 2**31)
        return self._situation(observation, info)

    def play(self, answers: dict[int, str]) -> Situation:
        """Make the player's move."""
        move = self.first + self.actions.index(answers[0]) if self.lists_moves else answers[0]
        observation, reward, terminated, truncated, info = self.env.step(move)
        if end := end_of(terminated, truncated):
            return Situation({}, rewards={0: float(reward)}, ends={0: end})
        return self._situation(observation, info, float(reward))

    def end(self) -> None:
        """Close Gymnasium's environment."""
        self.env.close()

    @reading()
    def _situation(self, observation: Any, info: Mapping[str, Any], reward: float = 0.0) -> Situation:
        if self.render_text is not None:
            text = self.render_text(observation, self.env)
        elif self.env.render_mode == "ansi":
            text = _HIGHLIGHT.sub(r"[\1]", self.env.render()).strip()
        else:
            text = f"You see {observation}."
        mask = info.get("action_mask")
        legal = [name for place, name in enumerate(self.actions) if mask is None or mask[place]]
        return Situation({0: with_moves(text, legal)}, {0: legal} if self.lists_moves else {}, {0: reward})
