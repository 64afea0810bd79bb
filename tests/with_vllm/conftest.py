"""These tests need the environment with vLLM of scripts/test-vllm. Elsewhere, nothing is collected."""

import sys
from importlib.util import find_spec
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))  # for the models made for tests

if find_spec("vllm") is None:
    collect_ignore_glob = ["test_*.py"]
