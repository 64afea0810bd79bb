"""The lines of a rollout log as they are read: games of any environment, and episodes of any program."""

from typing import Any, TypeVar

import msgspec

Prompt = list[dict[str, str]]
"""Messages with their role and content."""
Shape = TypeVar("Shape")


class LoggedStep(msgspec.Struct):
    """One model call of a trained seat or role."""

    role_id: str = ""
    prompt: Prompt = []
    completion: Prompt = []
    prompt_token_ids: list[int] | None = None
    completion_token_ids: list[int] | None = None
    completion_logprobs: list[float] | None = None
    reward: float = 0.0
    advantage: float = 0.0
    info: dict[str, Any] = {}
    pid: int = 0
    env_id: str = ""
    policy_version: int = 0

    @property
    def answer(self) -> str:
        """The text of the model's answer."""
        return "".join(message.get("content", "") for message in self.completion)

    @property
    def is_cut(self) -> bool:
        """Whether the answer ended at the token limit."""
        return self.info.get("finish_reason") == "length"

    @property
    def mean_logprob(self) -> float | None:
        """The mean log-probability per token (natural logarithm); ``None`` without any."""
        found = self.completion_logprobs
        return sum(found) / len(found) if found else None


class Turn(msgspec.Struct):
    """One move of a game by any player; ``kind`` is "policy" for a trained seat."""

    pid: int = 0
    kind: str = ""
    model: str = ""
    observation: str | None = None
    text: str | None = None
    action: str | None = None
    well_formed: bool | None = None
    invalid: bool = False


class GameExtras(msgspec.Struct):
    """What a game adds to its rollout; player ids are strings because JSON keys are."""

    turns: list[Turn] = []
    final_rewards: dict[str, float] = {}
    num_turns: int | None = None
    invalid_pid: int | None = None
    truncated: bool = False

    @property
    def has_invalid_move(self) -> bool:
        """Whether a player made a move that the game rejected."""
        return self.invalid_pid is not None or any(turn.invalid for turn in self.turns)


class Said(msgspec.Struct):
    """One line of a transcript; an empty ``author`` is the environment, an empty ``to`` is everybody."""

    author: str = ""
    to: str = ""
    text: str = ""


class LoggedRollout(msgspec.Struct):
    """One game or episode of the log; ``extras`` contains whatever the game or program writes into it."""

    episode_type: str = ""
    id: str = ""
    artifact: Any = None
    meta: dict[str, Any] = {}
    steps: list[LoggedStep] = []
    extras: dict[str, Any] = {}
    rewards: dict[str, float] = {}
    metrics: dict[str, float] = {}

    @property
    def error(self) -> str:
        """The reason for the failure; empty if nothing failed."""
        return str(self.meta.get("error") or "")

    @property
    def env_id(self) -> str:
        """The environment of the play specification or of the steps, or else the episode type."""
        if isinstance(self.artifact, dict) and self.artifact.get("env_id"):
            return str(self.artifact["env_id"])
        return next((step.env_id for step in self.steps if step.env_id), self.episode_type)

    @property
    def game(self) -> GameExtras:
        """What a game recorded; empty if this is not a game."""
        return converted(self.extras, GameExtras) or GameExtras()

    @property
    def seat_rewards(self) -> dict[str, float]:
        """The final rewards of a game by seat, in order of seats; empty if this is not a game."""
        found = converted(self.extras.get("final_rewards"), dict[int, float]) or {}
        return {f"seat {pid}": reward for pid, reward in sorted(found.items())}

    @property
    def transcript(self) -> list[Said]:
        """The lines of the conversation in order; empty if the episode is not a chat."""
        return converted(self.extras.get("transcript"), list[Said]) or []


def converted(value: Any, shape: type[Shape]) -> Shape | None:
    """Return a value in the given shape; ``None`` if it has another one, or names that no file can hold."""
    try:
        return msgspec.convert(value, shape, str_keys=True)
    except (msgspec.ValidationError, UnicodeEncodeError):
        return None
