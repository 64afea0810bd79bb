"""These tests need the environment of scripts/test-parquet. Elsewhere, nothing is collected."""

import sys
from importlib.util import find_spec
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))  # for the runs made for tests

if any(find_spec(package) is None for package in ("pyarrow", "duckdb", "pandas", "datasets")):
    collect_ignore_glob = ["test_*.py"]
