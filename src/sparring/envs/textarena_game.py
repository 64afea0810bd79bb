"""TextArena games. Only this module imports TextArena."""

import importlib.util
from collections.abc import Callable
from copy import deepcopy
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import textarena as ta
from textarena.envs import registration

from sparring.core import EpisodeError
from sparring.core.text import indented
from sparring.envs.game import Game
from sparring.envs.generators import Generators
from sparring.envs.textarena_moves import add_brackets, family_of

T = TypeVar("T")

_YOUR_TURN = "It is your turn."
_PROMPT_TAG_LENGTH = 16


class TextArenaGame(Game):
    """A TextArena game in progress, of any number of players.

    TextArena draws from the interpreter's global generators. They are seeded before every call into it, from
    this game's seed and the number of the call, and restored afterwards. Games therefore disturb neither each
    other nor their caller. Games whose code draws no random numbers skip this.

    ``error_allowance`` is the number of consecutive invalid moves after which TextArena still asks the player
    again; at 0 the first one ends the game or eliminates the player, by the game's rules. ``state`` is
    TextArena's state object.
    """

    def __init__(self, env_id: str, num_players: int, seed: int, *, error_allowance: int = 0) -> None:
        super().__init__(env_id, num_players)
        self._seed = seed
        self._calls = 0
        self._generators = generators_of(env_id)
        self._env, self._bare = self._call(self._start, error_allowance)
        self.state = self._bare.state
        self._draws_when_read = type(self._bare).get_observation is not ta.Env.get_observation
        self._family = family_of(type(self._bare).__name__)
        self._rules = [self._prompt_of(pid) for pid in range(num_players)]
        self._observation: str | None
        self._board: str
        self._begin_turn()

    def _start(self, error_allowance: int) -> tuple[Any, Any]:
        env = ta.make(self.env_id)
        # With a seed, TextArena seeds the global generator even for games that draw no random numbers.
        seed = self._seed % 2**32 if self._generators.python else None
        env.reset(num_players=self.num_players, seed=seed)
        bare = env
        while isinstance(bare, ta.Wrapper):
            bare = bare.env
        bare.state.error_allowance = error_allowance
        return env, bare

    def _call(self, function: Callable[..., T], *args: Any, draws: bool = True) -> T:
        """Call into TextArena with this game's own randomness, if the call may draw."""
        self._calls += 1
        try:
            if not (self._generators.python and draws):
                return function(*args)
            return self._generators.call(self._seed + self._calls, function, *args)
        except Exception as error:
            raise EpisodeError(f"{self.env_id} failed inside TextArena: {error!r}") from error

    @property
    def board(self) -> Any:
        """TextArena's board (rows of cells), if the game has one."""
        return self.state.game_state["board"]

    @property
    def current_pid(self) -> int:
        return int(self.state.current_player_id)

    def rules(self, pid: int) -> str:
        """Return the game's opening prompt for ``pid``. For some environments it varies between games."""
        return self._rules[pid]

    def observation(self, pid: int) -> str:
        if self._observation is None:
            self._observation = self._read(pid)
        return self._observation

    def view(self, pid: int) -> str:
        return self._board or self.observation(pid)

    def brief(self, pid: int) -> str:
        return _undrawn(self._board) if self._board else self.observation(pid)

    def legal_actions(self) -> list[str] | None:
        return self._family.legal(self._bare) if self._family else None

    def normalise(self, action: str) -> str:
        """Add brackets if there are none; convert accepted spellings to that of ``legal_actions``."""
        action = add_brackets(action)
        return self._family.spell(action) if self._family else action

    def apply(self, action: str) -> bool:
        state = self.state
        info = state.game_info[state.current_player_id]
        was_invalid = info["invalid_move"]
        errors = state.error_count
        info["invalid_move"] = False
        self._call(self._env.step, action)
        invalid = bool(info["invalid_move"]) or state.error_count > errors
        info["invalid_move"] = invalid or was_invalid
        if not state.done:
            self._begin_turn()
        return not invalid

    def copy(self) -> "TextArenaGame":
        return deepcopy(self)

    def _prompt_of(self, pid: int) -> str:
        for _, text, kind in self.state.observations[pid]:
            if kind == ta.ObservationType.PROMPT:
                return str(text).strip()
        return ""

    def _begin_turn(self) -> None:
        pid = self.current_pid
        if not 0 <= pid < self.num_players:
            raise EpisodeError(f"{self.env_id} gave the turn to player {pid} of {self.num_players}")
        self._board = self._latest_board(pid) if self._family and self._family.board_is_all else ""
        self._observation = None if self._board else self._read(pid)

    def _read(self, pid: int) -> str:
        """Read the current player's observation from TextArena, which returns each observation only once."""
        self._indent_other_players(pid)
        _, text = self._call(self._env.get_observation, draws=self._draws_when_read)
        text = str(text).strip()
        prompt = self._rules[pid]
        start = text.find(prompt, 0, len(prompt) + _PROMPT_TAG_LENGTH)
        if start >= 0:
            text = text[start + len(prompt) :].strip()
        return text or _YOUR_TURN

    def _indent_other_players(self, pid: int) -> None:
        """Indent the further lines of other players' messages: every line ``[NAME] ...`` is a message.

        The messages of the game itself stay as they are, even where a game quotes a move in one.
        """
        heard = self.state.observations
        heard[pid] = [
            (author, text if author in (pid, ta.GAME_ID) else indented(str(text)), kind)
            for author, text, kind in heard[pid]
        ]

    def _latest_board(self, pid: int) -> str:
        for _, text, kind in reversed(self.state.observations[pid]):
            if kind == ta.ObservationType.GAME_BOARD:
                return str(text).strip()
        return ""

    def _finished(self) -> bool:
        return bool(self.state.done)

    def _own_rewards(self) -> dict[int, object]:
        rewards, _ = self._env.close()
        if not isinstance(rewards, dict):
            raise EpisodeError(f"{self.env_id} gave {rewards!r} for rewards")
        return rewards

    def _own_info(self) -> dict[int, dict[str, Any]]:
        _, info = self._env.close()
        return {pid: dict(info[pid]) for pid in range(self.num_players)}


def tells_moves(env_id: str) -> bool:
    """Return whether the legal moves of a registered environment are known."""
    entry_point = registration.ENV_REGISTRY[env_id].entry_point
    return family_of(entry_point.split(":")[1]) is not None


@lru_cache(maxsize=1024)
def generators_of(env_id: str) -> Generators:
    """Determine from the source of an environment's package which generators it mentions."""
    entry_point = registration.ENV_REGISTRY[env_id].entry_point
    spec = importlib.util.find_spec(entry_point.split(":")[0])
    if spec is None or spec.origin is None:
        return Generators(python=True, numpy=True)
    sources = [path.read_text(encoding="utf-8") for path in Path(spec.origin).parent.rglob("*.py")]
    numpy = any("numpy" in text for text in sources)
    python = any("random" in text or "textarena.envs.utils" in text for text in sources)
    return Generators(python=python or numpy, numpy=numpy)


_DRAWING = str.maketrans({"|": " ", "'": None})


@lru_cache(maxsize=65_536)
def _undrawn(board: str) -> str:
    """Return a board without ruled lines, bars and empty lines. Every cell and word stays."""
    lines = [line for line in board.translate(_DRAWING).splitlines() if line.strip("-+= ")]
    return "\n".join([" ".join(line.split()) for line in lines])
