"""These tests need vLLM, in an environment of its own: scripts/test-vllm. Elsewhere they are not collected."""

import sys
from importlib.util import find_spec
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))  # tests/tiny_models.py

_spec = find_spec("vllm")
if _spec is None or _spec.origin is None:  # without an origin it is this very directory
    collect_ignore_glob = ["test_*.py"]
