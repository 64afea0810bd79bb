"""The common part of the three families of reward transforms: state that is saved in checkpoints."""

from collections.abc import Sequence
from typing import Any, Generic, TypeVar

from selfplay.core import InputError
from selfplay.core.own_code import method_of, state_returned

Transform = TypeVar("Transform", bound="RewardTransform")


class RewardTransform:
    """Base of all reward transforms. A transform with memory, such as a baseline, overrides both methods.

    States are plain JSON-able dictionaries with string keys.
    """

    def state_dict(self) -> dict[str, Any]:
        """Return the state that a checkpoint must keep; empty for a transform without memory."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state that ``state_dict`` returned."""


class ComposedTransforms(RewardTransform, Generic[Transform]):
    """The common part of the transforms that apply others one after the other."""

    def __init__(self, transforms: Sequence[Transform]) -> None:
        self.transforms = list(transforms)

    def state_dict(self) -> dict[str, Any]:
        """Return the transforms' states in order, each with the name of its class.

        Raises:
            EpisodeError: a transform's ``state_dict`` returned no dictionary, or what JSON cannot hold.
        """
        states = [
            state_returned(transform.state_dict(), method_of(transform, "state_dict"))
            for transform in self.transforms
        ]
        return {
            "transforms": [
                {"type": type(transform).__name__, "state": state}
                for transform, state in zip(self.transforms, states, strict=True)
            ]
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the transforms' states.

        Raises:
            InputError: the state was saved by another stack of transforms.
        """
        saved = state.get("transforms", [])
        saved_names = [entry["type"] for entry in saved]
        names = [type(transform).__name__ for transform in self.transforms]
        if saved_names != names:
            raise InputError(
                "replay transforms",
                f"the checkpoint was saved with {saved_names}, but the buffer has {names}",
                "Resume with the transforms with which the run was started.",
            )
        for transform, entry in zip(self.transforms, saved, strict=True):
            transform.load_state_dict(entry["state"])
