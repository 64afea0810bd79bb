"""Who answers for a role, and how answers are drawn; and the agents of the episode that runs now."""

from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Literal

from sparring.core.adapters import TRAINED

AgentKind = Literal["policy", "model", "script"]


@dataclass(frozen=True)
class CallSettings:
    """How answers are drawn; ``None`` leaves a setting to whoever is asked next.

    A call's own settings come first, then those of a game or of an agent, then those of a role.
    """

    temperature: float | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] | None = None

    def over(self, others: "CallSettings") -> "CallSettings":
        """Return these settings, and the others' where these leave one open."""
        return CallSettings(
            others.temperature if self.temperature is None else self.temperature,
            others.max_tokens if self.max_tokens is None else self.max_tokens,
            others.stop if self.stop is None else self.stop,
        )


UNSET = CallSettings()


@dataclass(frozen=True)
class AgentSpec:
    """How one seat or role acts; ``kind`` is one of three.

    ``policy``: its steps are trained on; ``model`` names the policy. ``model``: it is not trained; ``model``
    is the name by which the inference client knows a checkpoint, a fixed model or a person. ``script``: a
    scripted player of a game; ``model`` is its name (``random``, ``optimal``).

    ``temperature``, ``max_tokens`` and ``stop`` take the place of the role's; ``None`` keeps the role's.
    """

    kind: AgentKind
    model: str = TRAINED
    temperature: float | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] | None = None

    @property
    def calls(self) -> CallSettings:
        """The settings of its own."""
        return CallSettings(self.temperature, self.max_tokens, self.stop)


seated: ContextVar[Mapping[str, AgentSpec]] = ContextVar("seated", default={})  # noqa: B039 - never changed
"""The agents of the episode that runs now, by role id. A sub-episode has those of its parent."""
