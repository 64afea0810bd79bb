"""GameTable: one game in progress and its record, with what its players are shown and what they answer."""

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Self

from sparring.core import AgentSpec, Messages, ModelResponse, PlaySpec, Step, derive_seed
from sparring.core.play import GameTurn
from sparring.envs.game import Game
from sparring.envs.scripted import ScriptedPlayer

OPENER = AgentSpec(kind="script", model="random")
"""Who makes the random moves at the beginning of a game."""


@dataclass(frozen=True)
class GamePosition:
    """What the game shows a player to move, its legal moves, and the prompt if the player is a model."""

    pid: int
    view: str
    legal: list[str] | None
    prompt: Messages | None


@dataclass
class GameAnswer:
    """A seat's answer: the text, the action in it, whether it is well formed, and the response, if any.

    ``explored`` is whether it was a random legal one; ``None`` where it could not have been.
    """

    text: str
    action: str
    well_formed: bool
    response: ModelResponse | None = None
    explored: bool | None = None


@dataclass
class GameTable:
    """One game in progress and its record. Its first ``opening`` moves are random, whoever has the seat.

    ``positions`` are those of the players to move, who move at once. ``latest`` are the last moves of the
    players, and ``unpaid`` is what they earned before their first. ``is_branch`` is whether it is a copy in
    which one answer of several is followed.
    """

    spec: PlaySpec
    game: Game
    players: dict[int, ScriptedPlayer]
    positions: list[GamePosition]
    opener: ScriptedPlayer
    opening: int
    turns: list[GameTurn] = field(default_factory=list)
    action_seq: list[str] = field(default_factory=list)
    latest: dict[int, tuple[GameTurn, Step | None]] = field(default_factory=dict)
    unpaid: dict[int, float] = field(default_factory=dict)
    errors: Counter[int] = field(default_factory=Counter)
    invalid_pid: int | None = None
    raised: str | None = None
    truncated: bool = False
    is_branch: bool = False

    @property
    def in_opening(self) -> bool:
        """Whether the next move is random."""
        return len(self.turns) < self.opening

    def mover(self, pid: int) -> AgentSpec:
        """Return who makes the next move, of seat ``pid``."""
        return OPENER if self.in_opening else self.spec.agents[pid]

    def record(self, pid: int, turn: GameTurn, step: Step | None) -> None:
        """Add a move and the model call behind it, if any."""
        self.turns.append(turn)
        self.action_seq.append(turn["action"])
        self.latest[pid] = turn, step

    def pay(self) -> None:
        """Note what players have earned beside the moves after which they did."""
        for pid, reward in self.game.earned().items():
            reward += self.unpaid.pop(pid, 0.0)
            if pid not in self.latest:
                self.unpaid[pid] = reward
                continue
            turn, step = self.latest[pid]
            turn["reward"] = turn.get("reward", 0.0) + reward
            if step is not None:
                step.info["step_reward"] = turn["reward"]

    def branch(self, number: int) -> Self:
        """Return a copy for the answer with this number at the present turn.

        Chance goes on as in the game itself, but its players draw with seeds of their own.
        """
        seed = derive_seed(self.spec.seed, "branch", len(self.turns), number)
        return replace(
            self,
            spec=replace(self.spec, seed=seed),
            game=self.game.copy(),
            turns=[*self.turns],
            action_seq=[*self.action_seq],
            latest={},  # what a copy pays is not for the turns of the game itself
            unpaid={**self.unpaid},
            errors=self.errors.copy(),
            is_branch=True,
        )
