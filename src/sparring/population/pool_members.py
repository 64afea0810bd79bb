"""PoolMembers: who is in a model pool, and which copy of each policy is the latest."""

import re
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from sparring.core import InputError, Opponent
from sparring.core.adapters import TRAINED
from sparring.population.ratings import Rating

# The pool's uid of the policy in training.
POLICY_UID = TRAINED

FIXED = "fixed-"
"""What the uid of a fixed model begins with, before its name."""

# One-player games are rated against this dummy member, which always scores 0. It is never sampled.
ENVIRONMENT_UID = f"{FIXED}env"


def checkpoint_uid(iteration: int, policy: str = POLICY_UID) -> str:
    """Return the uid of the copy of a policy that was frozen after ``iteration`` updates."""
    return f"ckpt-{iteration}" if policy == POLICY_UID else f"{policy}-ckpt-{iteration}"


_COPY = re.compile(r"(?:(?P<policy>.+)-)?ckpt-(?P<update>-?\d+)")


def copy_of(uid: str) -> tuple[str, int] | None:
    """Return the policy of a frozen copy, and after how many updates it was frozen; else ``None``."""
    found = _COPY.fullmatch(uid)
    return None if found is None else (found["policy"] or POLICY_UID, int(found["update"]))


def iteration_of(uid: str) -> int:
    """Return the number of updates after which the copy with this uid was frozen."""
    found = copy_of(uid)
    assert found is not None, f"{uid} is no copy"
    return found[1]


class PoolMembers:
    """The members of a pool in order of registration.

    The current model of a policy is the policy itself, or its latest checkpoint in a pool without the policy.

    Args:
        unknown: the rating of a member without games.

    Attributes:
        environment: the member against which one-player games are rated.
    """

    def __init__(self, unknown: Rating) -> None:
        self.environment = Opponent(ENVIRONMENT_UID, "fixed", None, unknown, active=False)
        self._models: dict[str, Opponent] = {}
        self._latest: dict[str, str] = {}

    # Changes

    def register(self, model: Opponent) -> None:
        """Add a member; a checkpoint is the latest one of its policy.

        Raises:
            InputError: its uid is taken.
        """
        if model.uid in self._models:
            raise InputError(model.uid, "the model is already in the pool", "Register each model once.")
        self._models[model.uid] = model
        if model.kind == "checkpoint":
            self._latest[model.policy] = model.uid

    def remove(self, uids: Iterable[str]) -> None:
        """Remove checkpoints. The latest of the others is the latest again."""
        for uid in uids:
            del self._models[uid]
        self._latest = {one.policy: one.uid for one in self.checkpoints()}

    # One member

    def get(self, uid: str) -> Opponent | None:
        """Return a model; ``None`` if there is none with this uid."""
        return self._models.get(uid)

    def model(self, uid: str) -> Opponent:
        """Return a model.

        Raises:
            InputError: there is none with this uid.
        """
        if uid not in self._models:
            raise InputError(uid, "there is no such model in the pool", "Register it before it plays.")
        return self._models[uid]

    def player(self, uid: str) -> Opponent:
        """Return a model, or the environment."""
        return self.environment if uid == ENVIRONMENT_UID else self._models[uid]

    def latest_uid(self, policy: str) -> str | None:
        """Return the uid of the latest checkpoint of a policy, or ``None`` before the first."""
        return self._latest.get(policy)

    def playing(self, policy: str) -> Opponent | None:
        """Return a policy's current model, if there is one."""
        return self._models.get(policy) or self._models.get(self._latest.get(policy, ""))

    def current(self, policy: str) -> Opponent:
        """Return a policy's current model.

        Raises:
            InputError: there is none.
        """
        playing = self.playing(policy)
        if playing is None:
            raise InputError(
                "model pool", "there is no checkpoint", "Add one with add_checkpoint(path, iteration)."
            )
        return playing

    # Several members

    def models(self) -> list[Opponent]:
        """Return all models."""
        return list(self._models.values())

    def players(self) -> list[Opponent]:
        """Return all models, and the environment of one-player games if there were any."""
        return [*self._models.values(), *([self.environment] if self.environment.games else [])]

    def active(self) -> list[Opponent]:
        """Return the models that may be drawn."""
        return [model for model in self._models.values() if model.active]

    def fixed(self) -> list[Opponent]:
        """Return the models that may be drawn and are no checkpoints."""
        return [model for model in self.active() if model.kind != "checkpoint"]

    def checkpoints(self, policy: str | None = None) -> list[Opponent]:
        """Return the checkpoints of a policy, or of all, oldest first."""
        found = (model for model in self._models.values() if model.kind == "checkpoint")
        return [model for model in found if policy in (None, model.policy)]

    def lags(self, policy: str) -> dict[str, int]:
        """Return by uid the number of checkpoints of a policy after each of its checkpoints."""
        return {model.uid: lag for lag, model in enumerate(reversed(self.checkpoints(policy)))}

    # State

    def state_dict(self) -> dict[str, Any]:
        """Return everything as JSON-able data."""
        return {
            "models": [asdict(model) for model in self._models.values()],
            "environment": asdict(self.environment),
            "latest": dict(self._latest),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state that ``state_dict`` returned, replacing the current one."""
        self._models = {entry["uid"]: _opponent(entry) for entry in state["models"]}
        self.environment = _opponent(state["environment"])
        self._latest = dict(state["latest"])


def _opponent(entry: dict[str, Any]) -> Opponent:
    mu, sigma = entry["rating"]
    return Opponent(**{**entry, "rating": (mu, sigma)})
