"""The adapters of a run that are never trained."""

from collections.abc import Sequence

from selfplay.config import Config
from selfplay.core.adapters import AdapterRef
from selfplay.training.given_adapters import find_given


def frozen_adapters(config: Config, policies: Sequence[str]) -> dict[str, AdapterRef]:
    """Return the adapters of ``[frozen]``, by name.

    Raises:
        InputError: there is no such adapter, or none for ``[start]``.
    """
    found = find_given(config, policies)
    return {name: AdapterRef(name, 0, str(found[name].absolute())) for name in config.frozen}
