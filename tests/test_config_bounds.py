"""Every field of every section has bounds: nonsense is one line that names the field, within a moment."""

import math
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin

import pytest
from pydantic import BaseModel, ValidationError

from sparring.cli.main import main
from sparring.config import Config, load_config, preset_names, recipe_names
from sparring.config.fields import models_in, tags_of
from sparring.config.problems import first_problem
from sparring.core import InputError

KUHN = '[[envs]]\nid = "kuhn_poker"\n'


def sections(model=Config):
    """Every class of settings, once."""
    found = [model]
    for info in model.model_fields.values():
        for inner in models_in(info.annotation):
            found += [one for one in sections(inner) if one not in found]
    return found


def shapes(annotation):
    """The types in a field's type, each with a function that puts a value of it where it belongs."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if annotation in (int, float, str):
        return [(annotation, lambda value: value)]
    if origin is Annotated:
        return shapes(parts[0])
    if origin is list:
        return [(kind, lambda value, put=put: [put(value)]) for kind, put in shapes(parts[0])]
    if origin is tuple:
        return [(kind, lambda value, put=put: [put(value)] * len(parts)) for kind, put in shapes(parts[0])]
    if origin is dict:
        keys = [(kind, lambda value: {value: {}}) for kind, _ in shapes(parts[0])]
        return keys + [(kind, lambda value, put=put: {"id": put(value)}) for kind, put in shapes(parts[1])]
    if origin is Literal or annotation in (bool, NoneType, Any) or models_in(annotation):
        return []
    return [shape for part in parts for shape in shapes(part)]


FIELDS = [(model, name, info) for model in sections() for name, info in model.model_fields.items()]
LEAVES = [(model, name, kind, put) for model, name, info in FIELDS for kind, put in shapes(info.annotation)]
MANY = [
    pytest.param(model, name, info, id=f"{model.__name__}.{name}")
    for model, name, info in FIELDS
    if any(get_origin(part) in (list, dict) for part in (info.annotation, *get_args(info.annotation)))
]
NEGATIVE = {
    *("win", "draw", "loss", "reward", "penalty", "reward_threshold", "weighting_minimum"),
    *("prover_reward", "verifier_reward", "verifier_incorrect_penalty", "verifier_terminated_penalty"),
    *("verifier_no_guess_reward", "verifier_neither_accept_nor_reject_reward"),
    *("prover_invalid_response_penalty", "invalid_reward", "gate"),
    "template_options",
}
"""Rewards may be negative, and options of chat templates."""
TOO_MANY = 20_000
"""More entries than any list may have."""
MAY_REPEAT = {"policies", "weights", "seats"}
"""Of lists with an entry for each of something."""


OF_PROGRAMS = {"roles": {"program": {"type": "debate"}}}
"""What else is set where a field of a section, which is checked by itself, has the name of a field at the top
that is for programs only."""


def refusal(model: type[BaseModel], name: str, value: Any) -> str | None:
    """The line that a user gets for a value of a field; ``None`` if it is taken."""
    tags = tags_of(model) if "type" in model.model_fields else []
    given = {"type": tags[0]} if tags else {}
    given |= {"id": "kuhn_poker"} if "id" in model.model_fields else {}
    data = given | {name: value}
    try:
        model.model_validate(data)
    except InputError as error:
        return str(error)
    except ValidationError as error:
        if any(detail["loc"][:1] == (name,) for detail in error.errors(include_url=False)):
            return str(first_problem(error, data | OF_PROGRAMS.get(name, {})))
    return None


def bad_numbers(kind, name):
    bad = [10**18, -(10**18)] if kind is int else [math.nan, math.inf, -math.inf, 1e308, -1e308]
    return bad + ([] if name in NEGATIVE else [kind(-1)])


def test_the_walk_meets_the_fields_that_reports_named():
    met = {f"{model.__name__}.{name}" for model, name, *_ in LEAVES}
    assert {"LearningSettings.steps", "AllActionsSettings.alpha", "FileClaims.path"} <= met
    assert {"PolicySettings.momentum", "AgentParameters.dpo_beta", "PopulationSettings.places"} <= met
    assert len(met) > 180


@pytest.mark.parametrize(
    "model", dict.fromkeys(model for model, *_ in LEAVES), ids=lambda model: model.__name__
)
def test_every_field_refuses_nonsense_in_one_line(model):
    for _, name, kind, put in [leaf for leaf in LEAVES if leaf[0] is model]:
        if kind is str:
            bad = ["", "x" * 10_000, "a\0b", "a\x1b[1mb", "a\u2028b"]
        else:
            bad = bad_numbers(kind, name)
            if kind is float and refusal(model, name, put(0.0)) is not None:
                bad.append(1e-320)
        for value in bad:
            line = refusal(model, name, put(value))
            assert line is not None, (name, value)
            assert line.isprintable()
            assert len(line) < 400


@pytest.mark.parametrize(("model", "name", "info"), MANY)
def test_every_list_and_table_refuses_thousands_of_entries_and_what_is_there_twice(model, name, info):
    is_table = "dict" in str(info.annotation)
    many = {f"n{number}": {} for number in range(TOO_MANY)} if is_table else ["x"] * TOO_MANY
    line = refusal(model, name, many)
    assert line is not None
    assert len(line) < 400
    of_texts = [kind for kind, _ in shapes(info.annotation)] == [str]
    if of_texts and not is_table and name not in MAY_REPEAT:
        assert "twice" in (refusal(model, name, ["one", "other", "one"]) or "")


@pytest.mark.parametrize("recipe", [None, *recipe_names()])
def test_all_presets_and_recipes_are_within_the_bounds(recipe):
    for preset in preset_names():
        if recipe is None or preset in ("quickstart", "nip"):
            assert load_config(preset, {}, recipe)


NESTED = "x = " + "[" * 100_000
DEEP = ".".join(["a"] * 100_000)
FILES = {
    "a number of many digits": (KUHN + "seed = " + "9" * 5000, "A number has too many digits"),
    "brackets": (KUHN + NESTED, "Brackets are nested too deep"),
    "inline tables": (KUHN + "x = " + "{a=" * 100_000, "Brackets are nested too deep"),
    "a long name": (f"{DEEP} = 1\n", "A name has more than 50 parts"),
    "a long name in quotes": (DEEP.replace("a", '"a"') + " = 1\n", "A name has more than 50 parts"),
    "a long name of a table": (f"[{DEEP}]\n", "A name has more than 50 parts"),
    "a long name in a table": (f"x = {{{DEEP} = 1}}\n", "A name has more than 50 parts"),
    "a large file": ("#" * 600_000, "has more than 500000 bytes"),
    "a NUL": (KUHN + '[run]\ndirectory = "a\0b"\n', "Illegal character"),
    "many tables": ("[[envs]]\n" * 5_000, "must have at most 1000 values"),
    "a long list": (KUHN + "[rewards]\nfinal = [" + "1," * 20_000 + "]\n", "must have at most 100 values"),
    "a long key": (f"[{'k' * 100_000}]\n", "there is no such field"),
}


@pytest.mark.parametrize("what", FILES)
@pytest.mark.parametrize("name", ["mine.toml", "recipe"])
def test_a_file_that_no_parser_should_meet_is_one_line(what, name, tmp_path, capsys):
    text, said = FILES[what]
    file = tmp_path / "mine.toml"
    file.write_bytes(text.encode())
    source = [str(file)] if name == "mine.toml" else ["kuhn", "--recipe", str(file)]
    assert main(["train", *source, "--dry-run"]) == 2
    line = capsys.readouterr().err
    assert said in line or (name == "recipe" and what in ("many tables", "a long list")), line
    assert line.count("\n") == 1
    assert len(line) < 1000


@pytest.mark.parametrize("kind", ["fifo", "long"])
def test_a_configuration_that_is_no_file_is_one_line(kind, tmp_path, capsys):
    import os

    name = tmp_path / "pipe.toml" if kind == "fifo" else tmp_path / ("x" * 300)
    if kind == "fifo":
        os.mkfifo(name)
    assert main(["train", str(name), "--dry-run"]) == 2
    line = capsys.readouterr().err
    assert ("is not a file" if kind == "fifo" else "is too long for a file's name") in line
    assert line.count("\n") == 1


def test_a_mark_of_byte_order_is_no_part_of_a_file(tmp_path):
    file = tmp_path / "windows.toml"
    file.write_bytes(b"\xef\xbb\xbf" + KUHN.replace("\n", "\r\n").encode())
    assert load_config(str(file), {}).envs[0].id == "kuhn_poker"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--learning.steps", "9" * 5000], "learning.steps: must be a whole number"),
        (["--rewards.final", "[" * 100_000], "rewards.final: the value is not TOML: Brackets are nested"),
        ([f"--{DEEP}", "1"], "there is no such option"),
        (["--envs.-1.id", "x"], "envs.-1: there is no such entry: envs has 1 entry. Use envs.0"),
        (["--envs.².id", "x"], "envs.²: there is no such entry"),
        ([f"--envs.{'9' * 5000}.id", "x"], "there is no such entry"),
        (["--learning.steps", "3", "--learning.steps=4"], "--learning.steps: is given twice"),
        (["--seed", "3", "--seed", "4"], "--seed: is given twice"),
        (["--runtime", "ray", "--run.runtime", "local"], "--runtime: is --run.runtime, which is given too"),
        (["--learning", "5"], "It is a section: name a field of it, --learning.FIELD"),
        (["--name", "x" * 300], "--name: has 300 characters. Use 200 or fewer"),
        (["--run.directory", "/proc/x"], "run.directory: nothing can be written in /proc"),
        (["--run.directory", "x" * 300], "run.directory: has a part of more than 255 bytes"),
        (["--run.directory", ""], "run.directory: must not be empty"),
        (["--model.name", "\udcff"], "model.name: must be text in UTF-8"),
        (["--recipe", "x" * 300 + ".toml"], "is too long for a file's name"),
    ],
    ids=lambda value: str(value)[:40].encode("ascii", "replace").decode(),
)
def test_nonsense_on_the_command_line_is_one_line(arguments, said, capsys):
    assert main(["train", "kuhn", "--dry-run", *arguments]) == 2
    printed = capsys.readouterr()
    assert said in printed.err
    assert printed.err.count("\n") == 1
    assert len(printed.err) < 1000


def test_an_option_that_may_be_given_twice_still_may(capsys):
    roles = ["--role", "Solver=base", "--role", "Proposer=base"]
    assert main(["eval", "nothing-of-this-name", *roles]) == 2
    assert "twice" not in capsys.readouterr().err
