"""These tests need the environment of scripts/test-tinker. Elsewhere, nothing is collected."""

import sys
from importlib.util import find_spec
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))  # for the models made for tests

if find_spec("tinker") is None:
    collect_ignore_glob = ["test_*.py"]
