"""GEM's environments as games for one: ``gem:game:GuessTheNumber-v0``. Only this module imports GEM."""

import random
from collections.abc import Callable
from typing import Any, TypeVar

import gem
import gem.envs
import numpy as np

from sparring.core import InputError
from sparring.core.own_code import own_code
from sparring.core.text import indented
from sparring.envs.environment import BlockingEnvironment, Situation, end_of
from sparring.envs.known_ids import has_nltk_words

T = TypeVar("T")

OF_WORDS = ("game:Hangman", "game:WordSearch", "game:Wordle")
"""The games that draw from a list of words, which GEM otherwise downloads."""


def names() -> list[str]:
    """Return the ids of the games. GEM's others are questions, which come from data sets."""
    return [name for name in gem.envs.registration.ENV_REGISTRY if name.startswith("game:")]


class GEMEnvironment(BlockingEnvironment):
    r"""An environment of texts, which decides itself what an answer means. The player sees its instructions,
    then everything that was said since. An answer without ``\boxed{...}`` is put into one.

    GEM draws from the interpreter's global generators. During each call, they are those of this game.

    Args:
        name: GEM's id.
        settings: what the environment itself takes.
    """

    num_players = 1

    def __init__(self, name: str, **settings: Any) -> None:
        if name.startswith(OF_WORDS) and not has_nltk_words():
            fix = "Run: python -m nltk.downloader words"
            raise InputError("env.id", f"{name} needs the words of NLTK, which are not here", fix)
        self._states: tuple[Any, Any] | None = None
        with own_code(f"{name} cannot be made", "env.id"):
            self.env: Any = self._call(lambda: gem.make(name, **settings))
        self._rules = ""
        self._said: list[str] = []

    def _call(self, function: Callable[..., T], *args: Any) -> T:
        outside = random.getstate(), np.random.get_state()
        if self._states is not None:
            random.setstate(self._states[0])
            np.random.set_state(self._states[1])
        try:
            return function(*args)
        finally:
            self._states = random.getstate(), np.random.get_state()
            random.setstate(outside[0])
            np.random.set_state(outside[1])

    def rules(self, player: int) -> str:
        """Return the environment's instructions, which may differ from game to game."""
        return self._rules

    def begin(self, seed: int) -> Situation:
        """Begin a game."""
        instructions, info = self._call(self.env.reset, seed % 2**32)
        self._rules, self._said = str(instructions).strip(), []
        return Situation({0: str(info.get("suffix") or "It is your turn.")})

    def play(self, answers: dict[int, str]) -> Situation:
        """Pass on the player's answer."""
        answer = answers[0]
        action = answer if "\\boxed{" in answer else f"\\boxed{{{answer}}}"
        said, reward, terminated, truncated, info = self._call(self.env.step, action)
        if end := end_of(terminated, truncated):
            return Situation({}, rewards={0: float(reward)}, ends={0: end})
        self._said += [f"You: {indented(answer)}", str(said).strip()]
        seen = [*self._said, str(info.get("suffix") or "")]
        return Situation({0: "\n".join(seen).strip()}, {}, {0: float(reward)})
