"""These tests need the environment of scripts/test-store. Elsewhere, nothing is collected."""

import sys
from importlib.util import find_spec
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))  # for the runs made for tests

if any(find_spec(package) is None for package in ("moto", "s3fs", "flask")):
    collect_ignore_glob = ["test_*.py"]
