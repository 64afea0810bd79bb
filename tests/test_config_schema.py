"""The JSON Schema of a configuration says what the settings themselves say."""

import json
import tomllib

import pytest
from jsonschema import Draft202012Validator

from doc_pages import ROOT, blocks
from sparring.cli.main import main
from sparring.config import load_config
from sparring.config.fields import config_fields
from sparring.config.schema import config_schema
from sparring.core import InputError

CONFIGS = ROOT / "src" / "sparring" / "config"
SCHEMA = config_schema()
VALIDATOR = Draft202012Validator(SCHEMA)


def wrong_in(text):
    return [f"{error.json_path}: {error.message}" for error in VALIDATOR.iter_errors(tomllib.loads(text))]


def loads(text, folder):
    path = folder / "mine.toml"
    path.write_text(text)
    try:
        return load_config(str(path), {}) is not None
    except InputError:
        return False


def test_the_command_prints_a_valid_schema(capsys):
    assert main(["config", "schema"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == SCHEMA
    Draft202012Validator.check_schema(printed)


@pytest.mark.parametrize("name", ["kuhn", "papers/spiral-small"])
def test_the_command_prints_the_file_of_a_preset_with_its_comments(name, capsys):
    assert main(["config", name]) == 0
    assert capsys.readouterr().out == (CONFIGS / "presets" / f"{name}.toml").read_text()
    assert main(["config", f"{name}l"]) == 2
    assert f"error: {name}l: no file or preset has this name. Did you mean {name}?" in capsys.readouterr().err


@pytest.mark.parametrize("file", sorted(CONFIGS.rglob("*.toml")), ids=lambda file: file.stem)
def test_every_preset_and_recipe_is_accepted(file):
    assert wrong_in(file.read_text()) == []


@pytest.mark.parametrize("block", blocks("toml"), ids=str)
def test_every_toml_block_of_the_documentation_is_accepted(block):
    is_ladder = any(line.startswith("seeds = ") for line in block.text.splitlines())
    assert bool(wrong_in(block.text)) == is_ladder


def test_toml_has_no_null_and_so_has_no_schema_of_one():
    assert "null" not in json.dumps(SCHEMA)


def test_every_field_is_described_in_one_line():
    described = {}
    for place in (SCHEMA, *SCHEMA["$defs"].values()):
        for name, field in place["properties"].items():
            kind = SCHEMA["$defs"].get(field.get("$ref", "").rpartition("/")[2], {})
            described.setdefault(name, []).append(field.get("description") or kind["description"])
    for field in config_fields():
        assert " ".join((field.info.description or "").split()) in [*described[field.name], ""]


GAME = '[[envs]]\nid = "kuhn_poker"\n'
CASES = [
    '[learning.algorithm]\ntype = "gspo"\n',
    '[learning.algorithm]\ntype = "gspo"\nbeta = 1.0\n',
    '[learning.algorithm]\nregulariser = "base"\n',
    '[learning.algorithm]\ntype = "no_such"\n',
    '[learning.algorithm]\npath = "mine.py:Mine"\n',
    '[learning.algorithm]\ntype = "mine.py:Mine"\noptions = {a = 1}\n',
    '[learning.algorithm]\ntype = "python"\n',
    '[learning.policies.default.algorithm]\ntype = "mine.py:Mine"\n',
    '[[rewards.step]]\ntype = "mine.py:Mine"\n',
    '[[rewards.step]]\npath = "mine.py:Mine"\n',
    "[[rewards.step]]\npenalty = 1.0\n",
    '[[rewards.step]]\ntype = "reward_for_format"\npenalty = -1\n',
    '[[rewards.step]]\ntype = "normalize_rewards"\n',
    '[credit]\ntype = "mine.py:Mine"\n',
    '[credit]\npath = "mine.py:Mine"\n',
    '[credit]\ntype = "mine"\n',
    '[evaluation]\ntasks = ["arithmetic"]\n',
    "[evaluation]\ntasks = [3]\n",
    '[evaluation]\nopponents = "random"\n',
    "[lora]\nrank = 0\n",
    "[lora]\nrank = 2.5\n",
    "[lora]\nranks = 2\n",
    "[population]\nlag_range = [1]\n",
    "[population]\nlag_range = [1, 2]\n",
    '[run]\nruntime = "cluster"\n',
]


@pytest.mark.parametrize("case", CASES)
def test_the_schema_accepts_what_loads_and_refuses_what_does_not(case, tmp_path):
    (tmp_path / "mine.py").write_text("class Mine: ...\n")
    assert (wrong_in(case) == []) == loads(GAME + case, tmp_path)
