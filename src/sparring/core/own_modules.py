"""Files of a user's as modules, and the modules beside them that they import."""

import ast
import importlib
import sys
import zlib
from collections.abc import Sequence
from functools import lru_cache
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import module_from_spec, spec_from_file_location
from os import fsencode
from pathlib import Path
from types import ModuleType

from sparring.core.files import located

OWN_MODULE = "sparring_own_"
"""What the names of modules begin with that are files of your own, which a configuration names."""


class _Beside:
    """Finds what lies beside the files that have run; what is installed comes first.

    ``directories`` are theirs, the newest first. ``found`` are the modules found there, with their directory.
    """

    def __init__(self) -> None:
        self.directories: list[Path] = []
        self.found: dict[str, Path] = {}

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the module or package of this name, which is no part of another."""
        for directory in self.directories if path is None else ():
            if spec := _spec_in(directory, name):
                self.found[name] = directory
                return spec
        return None

    def look_first_in(self, directory: Path) -> None:
        """Look here first. Modules of other directories, which this one has too, are imported again."""
        if self not in sys.meta_path:
            sys.meta_path.append(self)
        importlib.invalidate_caches()
        self.directories = [directory, *(one for one in self.directories if one != directory)]
        for name, place in [*self.found.items()]:
            if place != directory and _spec_in(directory, name):
                del self.found[name]
                for module in [one for one in sys.modules if one.partition(".")[0] == name]:
                    del sys.modules[module]


_BESIDE = _Beside()


@lru_cache(maxsize=64)
def own_module(file: str) -> ModuleType:
    """Run a file, of which this process may have a copy, as a module; it may import what lies beside it.

    The module's name cannot clash with another's, and is the same in every process.
    """
    name, path = f"{OWN_MODULE}{Path(file).stem}_{zlib.crc32(fsencode(file)):08x}", located(file).resolve()
    spec = spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    _BESIDE.look_first_in(path.parent)
    sys.modules[name] = module  # dataclasses look their module up
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def runs_own_code() -> bool:
    """Return whether this process has run a file that a configuration names."""
    return any(name.startswith(OWN_MODULE) for name in [*sys.modules])


def is_own(thing: object) -> bool:
    """Return whether an object is of a class of yours, or of a subclass."""
    modules = [kind.__module__ for kind in type(thing).__mro__]
    return any(one.startswith(OWN_MODULE) or one.partition(".")[0] in _BESIDE.found for one in modules)


def imported_beside(path: Path) -> list[Path]:
    """Return the files of the modules and packages in the directory of ``path`` that were imported, or that
    an import statement of these files names, which may be in a function that has not run yet."""
    directory = path.resolve().parent
    found = ((name, getattr(module, "__spec__", None)) for name, module in [*sys.modules.items()])
    specs = [(name, spec) for name, spec in found if isinstance(spec, ModuleSpec)]
    here = {name for name, spec in specs if "." not in name and _place(spec) == directory}
    origins = {spec.origin for name, spec in specs if name.partition(".")[0] in here and spec.origin}
    return sorted({Path(one) for one in origins} | _to_be_imported(path.resolve(), set()))


def _to_be_imported(file: Path, known: set[Path]) -> set[Path]:
    """Add to the ``known`` files those of modules beside them that import statements in ``file`` name."""
    beside = next((one for one in file.parents if not (one / "__init__.py").is_file()), file.parent)
    for name in _names_of_imports(file):
        spec = _spec_in(beside, name)
        if spec is None or spec.origin is None:
            continue
        origin = Path(spec.origin)
        files = set(origin.parent.rglob("*.py")) if spec.submodule_search_locations else {origin}
        for one in sorted(files - known):
            known.add(one)
            if one.suffix == ".py":
                _to_be_imported(one, known)
    return known


def _names_of_imports(file: Path) -> set[str]:
    try:
        nodes = [*ast.walk(ast.parse(file.read_bytes()))]
    except SyntaxError:  # who imports it is told
        return set()
    names = [one.name for node in nodes if isinstance(node, ast.Import) for one in node.names]
    names += [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom) and not node.level]
    return {name.partition(".")[0] for name in names} - {""}


def _place(spec: ModuleSpec) -> Path | None:
    """Return the directory in which a module or a package is."""
    if not spec.has_location or spec.origin is None:
        return None
    return Path(spec.origin).parent.parent if spec.submodule_search_locations else Path(spec.origin).parent


def _spec_in(directory: Path, name: str) -> ModuleSpec | None:
    """Return a module of a directory, which is more than a folder."""
    spec = PathFinder.find_spec(name, [str(directory)])
    return spec if spec is not None and spec.loader is not None else None
