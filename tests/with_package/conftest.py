"""These tests need the package as scripts/test-package installs it. Elsewhere, nothing is collected."""

import sys
from importlib.util import find_spec
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))  # for the models made for tests

if "site-packages" not in Path(find_spec("sparring").origin).parts:
    collect_ignore_glob = ["test_*.py"]
