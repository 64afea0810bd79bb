"""Which adapters answer on a cluster: the newest of each policy, and those that are never trained."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

from selfplay.cluster.engines.resident_adapters import AdapterRef
from selfplay.config import Config
from selfplay.training.given_adapters import find_given
from selfplay.training.learners import Saved


@dataclass(frozen=True)
class Weights:
    """The newest weights of all policies.

    Attributes:
        step: updates of the run.
        adapters: the adapter of each policy, by its name.
    """

    step: int
    adapters: dict[str, AdapterRef]

    @classmethod
    def untrained(cls, policies: Iterable[str]) -> Self:
        """Return the base model for each policy."""
        return cls(0, {policy: AdapterRef(policy, 0, None) for policy in policies})

    @classmethod
    def of(cls, saved: Saved) -> Self:
        """Return what the learners saved."""
        paths, versions = saved.adapters.items(), saved.versions
        return cls(saved.step, {policy: AdapterRef(policy, versions[policy], path) for policy, path in paths})


def frozen_adapters(config: Config, policies: Sequence[str]) -> dict[str, AdapterRef]:
    """Return the adapters of ``[frozen]``, by name.

    Raises:
        InputError: there is no such adapter, or none for ``[start]``.
    """
    found = find_given(config, policies)
    return {name: AdapterRef(name, 0, str(found[name].absolute())) for name in config.frozen}
