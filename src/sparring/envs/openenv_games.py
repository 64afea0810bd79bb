"""Environments of OpenEnv servers: ``openenv:http://127.0.0.1:8000``. Only this module and the server of our
games import OpenEnv."""

import json
from collections.abc import Mapping
from typing import Any

from openenv.core.client_types import StepResult
from openenv.core.generic_client import GenericEnvClient
from websockets.exceptions import WebSocketException

from sparring.core.errors import EpisodeError, shown
from sparring.envs.environment import End, Environment, Situation, own_words, reading, with_moves

_OF_THE_MOVE = "(code: EXECUTION_ERROR)"


class OpenEnvEnvironment(Environment):
    """A session on an OpenEnv server, whose observations and actions are tables.

    The server plays all seats but one, unless its observations name the ``player`` who is to move and its
    ``rewards`` by player, as those of our own games do.

    Args:
        url: the server's address.
        render_text: a function (``my_words.py:board``) of an observation, which returns what the player
            reads above the legal moves; by default its ``text``, or else the table as JSON.
        action: the field of an action that holds the answer.
        moves: the field of an observation that lists the legal moves, if there is one.
        rules: the text that introduces the environment.
        num_players: how many seats are played here.
        max_open: sessions that are open at once.
        time_limit: seconds that a call may take.
        invalid_reward: see Environment.
    """

    def __init__(
        self,
        url: str,
        render_text: str = "",
        action: str = "message",
        moves: str = "",
        rules: str = "",
        num_players: int = 1,
        max_open: int = 16,
        time_limit: float = 60.0,
        invalid_reward: float | None = None,
    ) -> None:
        self.num_players, self.max_open, self.time_limit = num_players, max_open, time_limit
        self.lists_moves, self.invalid_reward = bool(moves), invalid_reward
        self.render_text = own_words(render_text)
        self.action, self.moves, self._rules = action, moves, rules
        self._told: dict[int, str] = {}
        self.client: Any = GenericEnvClient(url, connect_timeout_s=time_limit, message_timeout_s=time_limit)

    def rules(self, player: int) -> str:
        """Return the rules, if need be those that the server told."""
        return self._rules or self._told.get(player) or "You act in an environment."

    async def reset(self, seed: int) -> Situation:
        """Open a session, if there is none yet, and begin a game in it."""
        return self._situation(await self._asked(self.client.reset(seed=seed % 2**31)), 0)

    async def step(self, answers: dict[int, str]) -> Situation:
        """Send the answer of whoever is to move."""
        ((player, answer),) = answers.items()
        return self._situation(await self._asked(self.client.step({self.action: answer})), player)

    async def close(self) -> None:
        """Close the session."""
        await self.client.close()

    async def _asked(self, call: Any) -> Any:
        """Await an answer of the server. What it refuses of a move is the move's fault; everything else may
        pass, so it is a ConnectionError."""
        try:
            return await call
        except WebSocketException as error:
            raise ConnectionError(f"the session ended: {error}") from error
        except RuntimeError as error:
            if str(error).endswith(_OF_THE_MOVE):
                raise
            raise ConnectionError(str(error)) from error

    @reading()
    def _situation(self, result: "StepResult[dict[str, Any]]", mover: int) -> Situation:
        seen = result.observation
        if not isinstance(seen, dict):
            raise EpisodeError(f"the server observes {shown(seen)}, not a table")
        given = seen.get("rewards") or {mover: result.reward or 0.0}
        if not isinstance(given, dict):
            raise EpisodeError(f"the server gives the rewards {shown(given)}, not a table by player")
        rewards = {int(player): float(reward) for player, reward in given.items()}
        if result.done:
            ends: dict[int, End] = dict.fromkeys(range(self.num_players), "terminated")
            return Situation({}, rewards=rewards, ends=ends)
        player, legal = int(seen.get("player") or 0), seen.get(self.moves)
        if self.lists_moves and not isinstance(legal, list):
            raise EpisodeError(f"the server's observation has {shown(legal)} for {self.moves}, not a list")
        self._told[player] = str(seen.get("rules") or "")
        moves = [*map(str, legal or ())] if self.lists_moves else []
        text = with_moves(self.render_text(seen), moves) if self.render_text else _text(seen)
        return Situation({player: text}, {player: moves} if self.lists_moves else {}, rewards)


def _text(observation: Mapping[str, Any]) -> str:
    text = observation.get("text")
    return text if isinstance(text, str) else json.dumps(observation, ensure_ascii=False)
