"""Our games as an environment of an OpenEnv server. Its client answers for every seat, so each may be a
model."""

import random
from functools import partial
from typing import Any

from fastapi import FastAPI
from openenv.core.env_server.http_server import create_fastapi_app
from openenv.core.env_server.interfaces import Environment as OpenEnv
from openenv.core.env_server.types import Action, Observation, State
from pydantic import Field

from sparring.core import InputError
from sparring.envs.catalog import check_playable, make_game
from sparring.envs.environments import is_environment
from sparring.envs.game import Game

MOST_CHARACTERS = 100_000
"""Of an answer."""


class GameAction(Action):  # type: ignore[misc]
    """The answer of the player who is to move."""

    message: str = Field(max_length=MOST_CHARACTERS)


class GameObservation(Observation):  # type: ignore[misc]
    """What the player who is to move sees, the legal moves, and what everybody has earned by the last move.

    ``reward`` is what the player earned who made it.
    """

    player: int
    rules: str
    text: str
    moves: list[str] | None
    rewards: dict[int, float]


class GameSession(OpenEnv[GameAction, GameObservation, State]):  # type: ignore[misc]
    """One game at a time. An invalid move ends it."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self, env_id: str, num_players: int) -> None:
        super().__init__()
        self.env_id, self.num_players = env_id, num_players
        self.game: Game | None = None
        self.moves = 0

    def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> GameObservation:
        """Deal a game; without a seed, a random one."""
        seed = random.SystemRandom().getrandbits(31) if seed is None else seed
        self.game, self.moves = make_game(self.env_id, self.num_players, seed), 0
        return self._position(self.game, 0)

    def step(self, action: GameAction, timeout_s: float | None = None, **kwargs: Any) -> GameObservation:
        """Make a move."""
        game = self.game
        if game is None or game.done:
            raise ValueError("there is no game in progress; reset first")
        player = game.current_pid
        self.moves += 1
        try:
            self._move(game, action.message)
            return self._position(game, player)
        except Exception as error:  # noqa: BLE001 - any error is the move's fault
            game.break_off(player, error)
            return self._position(game, player)

    def _move(self, game: Game, said: str) -> None:
        player, legal = game.current_pid, game.legal_actions()
        move = said if legal is not None and said in legal else game.normalise(said)
        valid = (legal is None or move in legal) and game.apply(move)
        if not valid and not game.done:
            game.forfeit(player, "illegal move")

    async def reset_async(
        self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any
    ) -> GameObservation:
        """Deal a game, in the server's own thread: some libraries share generators among all games."""
        return self.reset(seed)

    async def step_async(
        self, action: GameAction, timeout_s: float | None = None, **kwargs: Any
    ) -> GameObservation:
        """Make a move, in the server's own thread."""
        return self.step(action)

    @property
    def state(self) -> State:
        """How many moves were made."""
        return State(step_count=self.moves)

    def _position(self, game: Game, mover: int) -> GameObservation:
        if game.done:
            rewards = game.rewards()
            return GameObservation(
                player=mover,
                rules="",
                text="The game is over.",
                moves=None,
                rewards=rewards,
                done=True,
                reward=rewards[mover],
            )
        player = game.current_pid
        return GameObservation(
            player=player,
            rules=game.rules(player),
            text=game.observation(player),
            moves=game.legal_actions(),
            rewards=dict.fromkeys(range(self.num_players), 0.0),
            reward=0.0,
        )


def openenv_app(env_id: str, num_players: int, *, max_open: int = 64, token: str = "") -> FastAPI:
    """Return the application of an OpenEnv server, which uvicorn runs.

    Args:
        env_id: a game; see catalog.make_game.
        num_players: number of seats.
        max_open: sessions that may be open at once.
        token: a secret that begins every path, so the address is ``http://127.0.0.1:8000/TOKEN``. OpenEnv's
            client can send no other.

    Raises:
        InputError: the game cannot be played here, or it is an environment itself.
    """
    check_playable(env_id, num_players)
    if is_environment(env_id):
        raise InputError("env.id", f"{env_id} is no game, but an environment", "Serve it by its own library")
    app: FastAPI = create_fastapi_app(
        partial(GameSession, env_id, num_players), GameAction, GameObservation, max_concurrent_envs=max_open
    )
    if not token:
        return app
    outer = FastAPI(openapi_url=None)
    outer.mount(f"/{token}", app)
    return outer
