"""The names of adapters, in a module that does not import torch."""

TRAINED = "default"
"""The policy that is trained if none is named."""
AVERAGE = "average"
BASE = "base"


def average_of(policy: str) -> str:
    """Return the name of the adapter that holds the running average of a policy's weights."""
    return AVERAGE if policy == TRAINED else f"{policy}-{AVERAGE}"
