"""These tests need root, Linux's namespaces and iproute2: scripts/test-hosts. Elsewhere they are skipped."""

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1]))  # for the hosts and the models made for tests

from hosts.network import why_not


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Say in one line why there can be no hosts."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.slow)
            if reason := why_not():
                item.add_marker(pytest.mark.skip(reason=reason))
