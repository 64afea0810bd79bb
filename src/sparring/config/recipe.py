"""Recipes: published algorithms by their names, as changes to a configuration.

A published algorithm is more than a loss: it is a loss, a way from rewards to advantages, and a number of
steps for each batch. A recipe is a file ``recipes/NAME.toml`` with these, which is laid over a preset or a
configuration. The folder is the list of recipes.
"""

import difflib
from pathlib import Path
from typing import Any

from sparring.config.toml_files import bundled_names, read_bundled, read_toml
from sparring.core import InputError

FOLDER = "recipes"


def recipe_names() -> list[str]:
    """Return the names of the bundled recipes."""
    return bundled_names(FOLDER)


def read_recipe(name: str) -> dict[str, Any]:
    """Read a recipe.

    Args:
        name: the name of a bundled recipe, or the path of a file of your own, which ends in ``.toml``.

    Raises:
        InputError: there is no such recipe, or the file is not TOML.
    """
    if name.endswith(".toml"):
        if not Path(name).is_file():
            raise InputError("--recipe", f"there is no file {name}", "Give an existing .toml file or a name")
        return read_toml(name)
    if name not in recipe_names():
        raise _no_such_recipe(name)
    return read_bundled(FOLDER, name)


def apply_recipe(data: dict[str, Any], recipe: dict[str, Any]) -> None:
    """Lay a recipe over the data of a configuration, in place.

    Its fields replace single fields, with two exceptions. ``learning.algorithm`` is replaced as a whole,
    because the fields of one loss mean nothing to another. A recipe that says how rewards become advantages,
    with ``learning.critic``, ``credit`` or ``rewards.sampling``, replaces all three. What it sets in
    ``learning`` is for every policy, so policies lose such fields of their own. Games that explore do so no
    longer, unless the recipe's values are those of the tree, which alone make up for it.
    """
    learning = _table(recipe, "learning")
    replaced = {name for name in learning if name != "policies"}
    if _says_advantages(recipe):
        replaced.add("critic")
        data.pop("credit", None)
        _table(data, "rewards").pop("sampling", None)
    in_data = _table(data, "learning")
    for name in replaced & {"algorithm", "critic"}:
        in_data.pop(name, None)
    policies = _table(in_data, "policies")
    for policy in policies:
        for name in replaced:
            _table(policies, policy).pop(name, None)
    if "algorithm" in learning and _table(learning, "algorithm").get("values") != "tree":
        for env in _entries(data, "envs"):
            env.pop("explore", None)
    lay_over(data, recipe)


def _says_advantages(data: dict[str, Any]) -> bool:
    """Whether data say how rewards become advantages, for which there are three ways."""
    return "critic" in _table(data, "learning") or "credit" in data or "sampling" in _table(data, "rewards")


def drop_others(data: dict[str, Any], changes: dict[str, Any]) -> None:
    """Take out of ``data``, in place, what serves the purpose of something in ``changes``.

    These are other ways from rewards to advantages, and settings of single policies if ``changes`` say which
    policies there are.
    """
    rewards, learning = _table(changes, "rewards"), _table(changes, "learning")
    if _says_advantages(changes):
        for part, name in ((data, "credit"), (_table(data, "rewards"), "sampling")):
            if name not in (changes if name == "credit" else rewards):
                part.pop(name, None)
        if "critic" not in learning:
            _table(data, "learning").pop("critic", None)
    if "policies" in _table(changes, "program") and "policies" not in learning:
        _table(data, "learning").pop("policies", None)


def _entries(data: dict[str, Any], name: str) -> list[dict[str, Any]]:
    """Return the tables of a list of tables."""
    entries = data.get(name)
    return [one for one in entries if isinstance(one, dict)] if isinstance(entries, list) else []


def _table(data: dict[str, Any], name: str) -> dict[str, Any]:
    """Return a table, or an empty one if there is none."""
    table = data.get(name)
    return table if isinstance(table, dict) else {}


def lay_over(data: dict[str, Any], changes: dict[str, Any]) -> None:
    """Lay changes over nested tables, in place: a table of another ``type`` replaces the whole table, and a
    list the whole list. A name in place of a table is the table's field ``name``."""
    for name, value in changes.items():
        old = data.get(name)
        if isinstance(value, dict) and isinstance(old, str) and "type" not in value:
            old = data[name] = {"name": old}
        if isinstance(value, dict) and isinstance(old, dict) and _is_of_type(value, old.get("type")):
            lay_over(old, value)
        else:
            data[name] = value


def _is_of_type(table: dict[str, Any], kind: Any) -> bool:
    return bool(table.get("type", kind) == kind)


def _no_such_recipe(name: str) -> InputError:
    names = recipe_names()
    close = difflib.get_close_matches(name.lower().replace("-", "_"), names, n=3, cutoff=0.4)
    every = f"Give a .toml file or one of {', '.join(names)}"
    hint = f"Did you mean {' or '.join(close)}?" if close else every
    return InputError("--recipe", f"no recipe is called {name}", hint)
