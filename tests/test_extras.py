"""Every module works with what a plain installation has, but for those that an extra is for."""

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib.metadata import packages_distributions

from doc_pages import ROOT

SOURCE = ROOT / "src"
SERVER = ("commands.serve", "commands.play_browser", "engine.server", "engine.server_http")
LISTENING = (*SERVER[:2], "commands.listening")
ROUTES = ("finetune.jobs.routes", "finetune.tinker.routes")
OF_EXTRAS = {
    "ray": ("cluster.", "compat.unstable"),
    "fastapi": (*SERVER, *LISTENING, *ROUTES, "envs.openenv_server"),
    "starlette": (*SERVER, ROUTES[0]),
    "uvicorn": LISTENING,
    "h11": LISTENING,
    "textual": ("view.watch.",),
    "vllm": ("engine.vllm_plugin",),
    "wasmtime": ("programs.code.worker",),
    "verifiers": ("programs.verifiers_", "compat.verifiers"),
    "gem": ("envs.gem_games",),
    "gymnasium": ("envs.gymnasium_games",),
    "openenv": ("envs.openenv_",),
    "websockets": ("envs.openenv_games",),
    "pettingzoo": ("envs.pettingzoo_games",),
    "rlcard": ("envs.rlcard_games",),
}
"""Packages that only extras install, and the modules that import them when they are loaded; all that begin so
where the name ends in ``.`` or ``_``. Commands ask for the extra before they import these."""
COME_WITH_OTHERS = {
    "click": "typer",
    "httpx": "openai",
    "pydantic_core": "pydantic",
    "pyspiel": "open-spiel",
    "tokenizers": "transformers",
}


@cache
def modules() -> dict[str, ast.Module]:
    names = {path: ".".join(path.relative_to(SOURCE).with_suffix("").parts) for path in SOURCE.rglob("*.py")}
    return {name.removesuffix(".__init__"): ast.parse(path.read_text()) for path, name in names.items()}


def imports(tree: ast.AST) -> Iterator[str]:
    """What a module imports when it is loaded: not what only its functions or type checkers import."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from (one.name for one in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{one.name}" for one in node.names)
        elif isinstance(node, ast.Try | ast.With) or (
            isinstance(node, ast.If) and "TYPE_CHECKING" not in ast.unparse(node.test)
        ):
            yield from imports(node)


@cache
def imported_at_once(module: str) -> frozenset[str]:
    """The modules of ours, and the packages of others, that a module itself imports when it is loaded."""
    found: set[str] = set()
    for name in imports(modules()[module]) if module in modules() else ():
        parts = name.split(".")
        ours = {".".join(parts[:end]) for end in range(1, len(parts) + 1)} & modules().keys()
        found |= ours if parts[0] == "sparring" else {parts[0]}
    return frozenset(found)


def loaded_with(module: str) -> set[str]:
    """The modules of ours, and the packages of others, that a module loads."""
    found: set[str] = set()
    waiting = {module}
    while waiting:
        found.add(one := waiting.pop())
        waiting |= imported_at_once(one) - found
    return found


def normal(name: str) -> str:
    return re.split(r"[^\w.-]", name)[0].lower().replace("_", "-")


def plain_packages() -> set[str]:
    """The import names of what a plain installation has."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = {normal(one) for one in project["dependencies"]}
    owners = packages_distributions().items()
    names = {name for name, owners in owners if {normal(one) for one in owners} & declared}
    return names | {name for name, owner in COME_WITH_OTHERS.items() if owner in declared}


def is_named(module: str, name: str) -> bool:
    return module.startswith(name) if name[-1] in "._" else module == name or module.startswith(f"{name}.")


def test_a_module_loads_a_package_of_an_extra_only_if_the_extra_is_for_it():
    plain = plain_packages() | sys.stdlib_module_names
    needed: dict[str, set[str]] = {}
    for module in modules():
        for package in {one for one in loaded_with(module) if not one.startswith("sparring")} - plain:
            needed.setdefault(package, set()).add(module.removeprefix("sparring."))
    assert needed.keys() == OF_EXTRAS.keys()
    for package, names in OF_EXTRAS.items():
        others = [one for one in needed[package] if not any(is_named(one, name) for name in names)]
        assert sorted(others) == [], package
        idle = [name for name in names if not any(is_named(one, name) for one in needed[package])]
        assert idle == [], package
