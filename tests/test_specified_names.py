"""Every name that a specification documents is where users import it from, and has a test of what it does."""

import ast
import dataclasses
import importlib
import inspect
import json
import re
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import sparring.finetune
from sparring.compat.unstable.forms import Form
from sparring.config.fields import config_fields
from sparring.core import Arena, MockInferenceClient

HERE = Path(__file__).parent
NAMES = tomllib.loads((HERE / "specified_names.toml").read_text())
NAME = re.compile(r"`([^`]+)`")
PAGES = ("roles-and-arenas", "unstable-baselines", "coming-from-nip")


def names_of(page: str) -> list[str]:
    return [name for tests in NAMES[page].values() for names in tests.values() for name in names]


def has(owner: Any, member: str) -> bool:
    if isinstance(owner, Form):
        owner = owner.actor
    fields = {field.name for field in dataclasses.fields(owner)} if dataclasses.is_dataclass(owner) else set()
    made = owner is Arena and hasattr(Arena(MockInferenceClient()), member)
    return hasattr(owner, member) or member in fields or made


@pytest.mark.parametrize("page", PAGES)
def test_every_specified_name_can_be_imported_and_takes_the_specified_parameters(page):
    for module, tests in NAMES[page].items():
        for name in (name for names in tests.values() for name in names):
            word, _, parameters = name.removesuffix(")").partition("(")
            owner, _, member = word.partition(".")
            one = getattr(importlib.import_module(module), owner)
            assert not member or has(one, member), name
            if parameters:
                taken = list(inspect.signature(one.arguments if isinstance(one, Form) else one).parameters)
                assert taken[: parameters.count(",") + 1] == parameters.split(", "), name


@cache
def functions_of(file: str) -> set[str]:
    tree = ast.parse((HERE / file).read_text())
    return {one.name for one in tree.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_every_specified_name_has_a_test():
    tables = [table for page in PAGES for table in NAMES[page].values()]
    for test in {test for table in [*tables, NAMES["elsewhere"]["coming-from-nip"]] for test in table}:
        file, _, function = test.partition("::")
        assert function in functions_of(file), test


@pytest.mark.parametrize("page", PAGES)
def test_the_tables_of_differences_name_what_is_specified(page):
    text = (HERE.parent / "docs" / f"{page}.md").read_text().partition("counterpart\n")[0]
    tables = re.findall(r"^\| name \|.*\n((?:\|.*\n)+)", text, re.MULTILINE)
    written = {
        name for rows in tables for row in rows.splitlines() for name in NAME.findall(row.split("|")[1])
    }
    known = {name.partition("(")[0] for name in names_of(page)}
    assert written, page
    assert written <= known | {name.rpartition(".")[2] for name in known}


def test_the_classes_of_nip_are_exported():
    owners = {name.partition("(")[0].partition(".")[0] for name in names_of("coming-from-nip")}
    assert owners <= set(sparring.finetune.__all__)


def test_the_parameters_of_nip_are_fields_with_the_listed_defaults():
    kinds = {"program": "proofs"}
    for parameter, (name, default) in NAMES["parameters"].items():
        path = tuple(name.replace("NAME", "*").split("."))
        found = [
            field
            for field in config_fields()
            if field.written == path and (path[0] not in kinds or field.path[1] in (kinds[path[0]], path[1]))
        ]
        assert found, parameter
        assert json.loads(default) == found[0].info.get_default(call_default_factory=True), parameter
