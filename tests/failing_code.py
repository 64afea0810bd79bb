"""A program and a game of which any method fails in any way, and the ways: a user's code does all of this.

The module is imported by tests, and named in configurations as ``failing_code.py:Program``.
"""

import asyncio
import sys
from pathlib import Path

import failing_code
from sparring.core import (
    AlternatingRolesEpisode,
    Arena,
    CreditAssigner,
    EpisodeRequest,
    EpisodicRewardCredit,
    Role,
    Rubric,
)
from sparring.envs.game import Game


class Odd(BaseException):
    """An error that is no Exception."""


class Unprintable(Exception):
    """An error that cannot be shown."""

    def __str__(self):
        raise ValueError("no text")

    __repr__ = __str__


class NoRepr:
    """A value that cannot be shown."""

    def __repr__(self):
        sys.exit(0)


ERRORS = {
    "sys.exit(0)": SystemExit(0),
    "a bare exit": SystemExit(),
    "an interrupt": KeyboardInterrupt(),
    "the end of a generator": GeneratorExit(),
    "a cancellation": asyncio.CancelledError(),
    "no Exception": Odd("odd"),
    "a group": BaseExceptionGroup("two", [Odd(), KeyboardInterrupt()]),
    "an error without a text": Unprintable(),
    "half a pair": ValueError("\ud800"),
    "lines and colours": ValueError("\x1b[31mred\nError: all is well"),
    "the end of a loop": StopIteration(),
    "the end of an async loop": StopAsyncIteration(),
    "a time limit": TimeoutError("slow"),
    "memory": MemoryError(),
    "assertion": AssertionError(),
}
CYCLE: dict = {}
CYCLE["itself"] = CYCLE
VALUES = {
    "None": None,
    "a number": 7,
    "an object": NoRepr(),
    "keys that are numbers": {0: 1.0},
    "half a pair": "\ud800",
    "half a pair inside": {"A": "\ud800"},
    "itself": CYCLE,
    "thousands of digits": {"A": 10**5000},
    "more than a float": {"A": 1e308},
    "NaN": {"A": float("nan")},
    "a text for a number": {"A": "1", "B": 1.0},
    "lists": {"A": ["1"], "B": [None]},
    "a list of None": [None],
    "a list that is too deep": [[[[[CYCLE]]]]],
    "a coroutine": None,  # which Failing makes
}


async def forgotten():
    """A method that should not have been async."""


EPISODE_METHODS = (
    "episode_type",
    "rubric",
    "rollout",
    "call_model",
    "get_extras",
    "generate",
    "get_initial_actor",
    "get_initial_prompt",
    "env_response",
    "is_done",
    "get_next_actor",
    "take_turn",
    "messages_for",
    "reward",
    "metric",
    "score",
)
ARENA_METHODS = (
    "get_batch",
    "evaluate",
    "outcomes",
    "adjust_rewards",
    "build_training_batch",
    "end_step",
    "startup",
    "shutdown",
    "state_dict",
    "compute",
)


COROUTINE = "returns a coroutine"


class Failing:
    """Replaces one method of an object: ``way`` says what it raises or returns."""

    def __init__(self, method: str, way: str) -> None:
        self.method = method
        self.way = way

    def act(self):
        """Raise or return, as configured."""
        if self.way in ERRORS:
            raise ERRORS[self.way].with_traceback(None)
        return forgotten() if self.way == COROUTINE else VALUES[self.way.removeprefix("returns ")]


def overriding(kind: type, method: str, way: str) -> type:
    """Return a subclass of which one method fails."""
    fails = Failing(method, way)

    def plain(self, *args, **kwargs):
        return fails.act()

    async def coroutine(self, *args, **kwargs):
        return fails.act()

    own = getattr(kind, method)
    replaced = coroutine if asyncio.iscoroutinefunction(own) else plain
    _name(replaced, method, f"{kind.__name__}.{method}")
    made = property(replaced) if isinstance(own, property) else replaced
    return type(kind.__name__, (kind,), {method: made})


def _name(function, name: str, qualified: str) -> None:
    """Let a function be called as if it had been written under this name."""
    function.__name__, function.__qualname__ = name, qualified
    function.__code__ = function.__code__.replace(co_name=name, co_qualname=qualified)


def reward(rollout, arena):
    return {"A": 1.0, "B": -1.0}


def metric(rollout, arena):
    return {"length": len(rollout.steps)}


class Scores(Rubric):
    """A rubric of one's own."""


class Talk(AlternatingRolesEpisode):
    """Two roles speak twice each."""

    @property
    def episode_type(self):
        return "talk"

    @property
    def rubric(self):
        return Scores([reward, metric], [1.0, 0.0])

    def get_initial_prompt(self, arena, artifact, state):
        return f"about {artifact}"


class Credit(CreditAssigner):
    def compute(self, results):
        return EpisodicRewardCredit().compute(results)


def talk_in_which(method: str, way: str) -> Talk:
    """Return an episode of which one method fails."""
    if method in ("reward", "metric"):
        fails = Failing(method, way)

        def failing(rollout, arena):
            return fails.act()

        _name(failing, method, method)
        funcs = [failing, metric] if method == "reward" else [reward, failing]
        kind = type("Talk", (Talk,), {"rubric": Scores(funcs, [1.0, 0.0])})
    elif method == "score":
        kind = type("Talk", (Talk,), {"rubric": overriding(Scores, "score", way)([reward])})
    elif method not in EPISODE_METHODS:
        kind = Talk
    else:
        kind = overriding(Talk, method, way)
    return kind(max_turns=4)


class Program(Arena):
    """Plays three games at a time; ``way`` says how ``method`` of the arena or of its episode fails."""

    def __init__(self, client, *, seed=0, method="", way=""):
        super().__init__(client, seed=seed)
        if method == "__init__":
            Failing(method, way).act()
        self.add_role(Role("A", max_tokens=4))
        self.add_role(Role("B", max_tokens=4))
        self.add_episode("talk", talk_in_which(method, way))
        self.add_episode("other", Talk(max_turns=4))
        if method in ARENA_METHODS and hasattr(self, method):
            self.__class__ = overriding(type(self), method, way)
        self.credit_assigner = overriding(Credit, "compute", way)() if method == "compute" else Credit()

    def get_batch(self):
        return [EpisodeRequest("talk", "sums"), EpisodeRequest("other", "a"), EpisodeRequest("other", "b")]

    async def evaluate(self):
        return {"measure": [0.0, 1.0]}


class Measured(Program):
    """Measures, as the how-to does, with the episodes that have not failed."""

    async def evaluate(self):
        results = await self.generate_rollouts(self.get_batch()[:1])
        return {"turns": [len(one.rollout.steps) for one in results if one.rollout.error is None]}


GAME_METHODS = (
    "current_pid",
    "rules",
    "observation",
    "brief",
    "view",
    "legal_actions",
    "apply",
    "normalise",
    "_finished",
    "_own_rewards",
    "_own_info",
    "_invalid_rewards",
)


class Count(Game):
    """Two players count to four, one or two at a time; who says four wins."""

    def __init__(self, env_id, num_players, seed):
        super().__init__(env_id, num_players)
        self.count = self.moves = 0

    @property
    def current_pid(self):
        return self.moves % 2

    def rules(self, pid):
        return "Count to four."

    def observation(self, pid):
        return f"It is {self.count}."

    def legal_actions(self):
        return ["1", "2"]

    def apply(self, action):
        self.count += int(action)
        self.moves += 1
        return True

    def _finished(self):
        return self.count >= 4

    def _own_rewards(self):
        winner = (self.moves - 1) % 2
        return {winner: 1.0, 1 - winner: -1.0}


class Unlisted(Count):
    """Does not list the moves."""

    def legal_actions(self):
        return None


POSSIBLE = {
    "get_extras": (
        "keys that are numbers",
        "half a pair inside",
        "more than a float",
        "NaN",
        "a text",
        "lists",
    ),
    "take_turn": [*VALUES],
    "score": [*VALUES],
    "startup": [*VALUES],
    "shutdown": [*VALUES],
    "adjust_rewards": [*VALUES],
    "legal_actions": ("None",),  # but then no script can play at random
    "_own_info": ("half a pair inside", "more than a float", "NaN", "a text", "lists", "digits", "itself"),
    "state_dict": (
        "half a pair inside",
        "more than a float",
        "NaN",
        "a text",
        "lists",
    ),
}
"""What a method may return."""


def is_possible(method: str, way: str) -> bool:
    forgotten = way == COROUTINE and method not in ("take_turn", "score", "startup", "shutdown")
    return (
        way.startswith("returns ")
        and any(value in way for value in POSSIBLE.get(method, ()))
        and not forgotten
    )


SETTINGS = """
[program]
type = "python"
path = "{path}:Program"
options = {{ method = "{method}", way = "{way}" }}

[learning]
steps = 1

[learning.algorithm]
regulariser = "none"
"""


def configuration(directory: Path, method: str, way: str) -> str:
    file = directory / "run.toml"
    file.write_text(SETTINGS.format(path=Path(failing_code.__file__), method=method, way=way))
    return str(file)
