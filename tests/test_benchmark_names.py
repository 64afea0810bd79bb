"""Scripts that no test runs import names that exist: a rename does not leave them behind."""

import ast
import importlib
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("benchmarks", "examples", "scripts")
SCRIPTS = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))


def imported_names(script):
    """Yield what a script imports from the package: the module and a name, or the module alone."""
    for node in ast.walk(ast.parse(script.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "sparring":
            yield from ((node.module, alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((one.name, "") for one in node.names if one.name.split(".")[0] == "sparring")


def is_there(module, name):
    if find_spec(module) is None:
        return False
    return not name or hasattr(importlib.import_module(module), name) or bool(find_spec(f"{module}.{name}"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_a_script_imports_from_the_package_is_there(script):
    assert [".".join(one) for one in imported_names(script) if not is_there(*one)] == []
