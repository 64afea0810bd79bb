"""What the three families of reward transforms have in common: state that survives a checkpoint."""

from collections.abc import Sequence
from typing import Any

from selfplay.core import InputError


class RewardTransform:
    """Base of all reward transforms. One with memory (a baseline, say) overrides both methods.

    States are plain JSON-able dictionaries with string keys.
    """

    def state_dict(self) -> dict[str, Any]:
        """Return what must survive a checkpoint; empty for a transform without memory."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up a state that ``state_dict`` returned."""


def compose_state(transforms: Sequence[RewardTransform]) -> dict[str, Any]:
    """Return the states of a stack of transforms, in order, each beside the name of its class."""
    return {
        "transforms": [
            {"type": type(transform).__name__, "state": transform.state_dict()} for transform in transforms
        ]
    }


def load_compose_state(transforms: Sequence[RewardTransform], state: dict[str, Any]) -> None:
    """Give each transform of a stack its state back.

    Raises:
        InputError: the state was saved by another stack of transforms.
    """
    saved = state.get("transforms", [])
    saved_names = [entry["type"] for entry in saved]
    names = [type(transform).__name__ for transform in transforms]
    if saved_names != names:
        raise InputError(
            "replay transforms",
            f"the checkpoint was saved with {saved_names} and the buffer has {names}",
            "Resume with the transforms the run was started with.",
        )
    for transform, entry in zip(transforms, saved, strict=True):
        transform.load_state_dict(entry["state"])
