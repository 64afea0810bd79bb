"""`sparring train --validate`: everything that is wrong with a configuration, and how commands end."""

import json
import re
import tomllib

import pytest

from doc_pages import DOCS
from loaded_modules import loaded_by
from sparring.cli.main import Exit, app, main
from sparring.config import dump_config, load_config, preset_names
from sparring.config.fields import config_fields
from sparring.config.validation import problems_with

WRONG = '[[envs]]\nid = "kuhn_poker"\n[learning]\nstep = 3\nlearning_rate = "x"\n[lora]\nrank = 0\n'


def problems(capsys, *words):
    status = main(["train", *words, "--validate", "--json"])
    printed = capsys.readouterr()
    assert printed.err == ""
    found = json.loads(printed.out)["problems"]
    assert status == (Exit.BAD_INPUT if found else Exit.DONE)
    return found


@pytest.fixture
def wrong(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "wrong.toml").write_text(WRONG)
    return "wrong.toml"


def test_every_wrong_field_is_a_problem_of_its_own_unknown_ones_first(wrong, capsys):
    found = problems(capsys, wrong)
    assert [one["field"] for one in found] == ["learning.step", "lora.rank", "learning.learning_rate"]
    assert found[0] == {
        "field": "learning.step",
        "problem": "there is no such field",
        "fix": "Did you mean learning.steps?",
    }


def test_without_json_each_is_the_line_that_training_would_end_with(wrong, capsys):
    assert main(["train", wrong, "--validate"]) == Exit.BAD_INPUT
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3
    assert main(["train", wrong]) == Exit.BAD_INPUT
    assert capsys.readouterr().err.splitlines() == lines[:1]


def test_what_a_section_finds_wrong_with_a_text_or_a_table_is_one_problem_of_several(capsys):
    agent = "finetune.agents.verifier.hyperparameters.dpo"
    words = ["--finetune.trainer", "nope", f"--{agent}", "2", "--finetune.provider.concurrency", "0"]
    found = problems(capsys, "nip", *words)
    assert [one["field"] for one in found] == ["finetune.trainer", "finetune.provider.concurrency", agent]


RULES = """
[[envs]]
id = "kuhn_poker"
[[envs]]
id = "kuhn_poker"
[inference]
max_reasoning = 9
max_tokens = 8
[buffer]
batch_size = 100
max_size = 10
[population]
sample_mode = "fixed"
[evaluation]
patience = 3
[ray]
min_engines = 4
shard_base = true
"""
BROKEN = [
    *("population.fixed_opponents", "ray.shard_base", "ray.min_engines", "ray", "evaluation.patience"),
    *("inference.max_reasoning", "envs", "buffer.batch_size"),
]
"""The fields of the rules that ``RULES`` breaks, those within sections first."""


@pytest.fixture
def broken(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken.toml").write_text(RULES)
    return "broken.toml"


def test_every_broken_rule_is_a_problem_of_its_own(broken, capsys):
    assert [one["field"] for one in problems(capsys, broken)] == BROKEN
    assert main(["train", broken]) == Exit.BAD_INPUT
    assert "error: population.fixed_opponents: is empty" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("field", "value", "unknown_now"),
    [
        ("lora.rank", "0", ()),
        pytest.param("lora.rnk", "4", (), marks=pytest.mark.slow),
        ("envs.0.num_players", '"x"', ("envs",)),
        ("envs.0.id", "3", ("envs",)),
        ("buffer.max_size", '"x"', ("buffer.batch_size",)),
        pytest.param("buffer.maxsize", "200", (), marks=pytest.mark.slow),
        ("inference.max_tokens", "[]", ("inference.max_reasoning",)),
        ("evaluation.evry", "10", ("evaluation.patience",)),
        pytest.param("evaluation.every", "-1", ("evaluation.patience",), marks=pytest.mark.slow),
        ("run.runtime", '"rai"', ("ray",)),
        ("population.sample_mode", '"fixd"', ("population.fixed_opponents",)),
        pytest.param(
            "population.fixed_opponents", "[1]", ("population.fixed_opponents",), marks=pytest.mark.slow
        ),
        pytest.param(
            "population.fixedopponents", '["random"]', ("population.fixed_opponents",), marks=pytest.mark.slow
        ),
    ],
)
def test_a_wrong_field_comes_first_and_hides_only_the_rules_that_read_it(
    field, value, unknown_now, broken, capsys
):
    found = [one["field"] for one in problems(capsys, broken, f"--{field}", value)]
    assert found[0].startswith(field)
    assert found[1:] == [one for one in BROKEN if one not in unknown_now]


def test_a_field_that_is_wrong_breaks_no_rule():
    content = tomllib.loads(dump_config(load_config("quickstart", {})))
    del content["ray"]  # which a run of one process refuses, whatever is in it
    written = [one.written for one in config_fields() if len(one.path) == 2 and one.written[0] in content]
    found = {}
    for section, name in written:
        wrong = problems_with(content | {section: content[section] | {name: object()}})
        found[f"{section}.{name}"] = [one.field for one in wrong]
    assert len(found) > 80
    assert found == {name: [name] for name in found}


def test_presets_have_no_problem(capsys):
    assert [preset for preset in preset_names() if problems(capsys, preset)] == []


@pytest.mark.parametrize(
    ("words", "field"),
    [
        ((), "CONFIG"),
        (("absent.toml",), "absent.toml"),
        (("kuhn", "--no.such", "1"), "no"),
        (("kuhn", "--envs.0.id", "no_such_game"), "envs.0.id"),
        (("kuhn", "--recipe", "no_such"), "--recipe"),
        (("kuhn", "--name", "not/plain"), "--name"),
        (("kuhn", "--collection.games_per_step", "0"), "collection.games_per_step"),
    ],
)
def test_what_only_the_command_or_the_games_can_tell_is_a_problem_too(words, field, capsys):
    (found,) = problems(capsys, *words)
    assert found["field"] == field
    assert found["problem"]
    assert found["fix"]


SEVERAL = """
[[envs]]
id = "no_such_game"
[[envs]]
id = "kuhn_poker"
template = "mine.py:Absent"
[[evaluation.envs]]
id = "absent.py:Game"
[[evaluation.tasks]]
name = "absent.jsonl"
[start]
default = "no-such-run"
[frozen]
old = "no-older-run"
[[rewards.step]]
path = "mine.py:Nothing"
[[rewards.sampling]]
path = "mine.py:None"
"""


def test_every_game_and_file_that_is_wrong_is_a_problem(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("None_ = 1")
    (tmp_path / "several.toml").write_text(SEVERAL)
    found = problems(capsys, "several.toml")
    named = {one["field"] for one in found}
    assert len(found) == len(named)
    assert named == {
        *("envs.0.id", "envs.1.template", "evaluation.envs.0.id", "evaluation.tasks.0.name", "start.default"),
        *("frozen.old", "rewards.step.0.path", "rewards.sampling.0.path"),
    }
    main(["train", "several.toml", "--validate"])
    assert len(capsys.readouterr().err.splitlines()) == len(found)


@pytest.mark.parametrize(
    ("field", "others"),
    [("learning.step", ["envs.0.id"]), ("leage.x", ["envs.0.id"]), ("envs.0.templat", [])],
)
def test_a_field_that_does_not_exist_hides_what_is_wrong_in_its_own_section_alone(field, others, capsys):
    found = problems(capsys, "kuhn", "--envs.0.id", "no_such_game", f"--{field}", "3")
    assert [one["field"] for one in found][1:] == others
    assert found[0]["problem"] == "there is no such field"


def test_a_programs_file_and_an_adapter_that_are_wrong_are_two_problems(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    program = '[program]\ntype = "questions"\nquestions = "absent.jsonl"\n[start]\ndefault = "no-such-run"\n'
    (tmp_path / "asked.toml").write_text(program)
    found = [one["field"] for one in problems(capsys, "asked.toml")]
    assert len(found) == 2
    assert found[0].startswith("program")
    assert found[1] == "start.default"


def test_neither_this_nor_the_schema_loads_torch():
    assert loaded_by("train kuhn --validate", "config schema", heavy=["torch", "ray"]) == []


@pytest.mark.parametrize("name", sorted(command.name for command in app.registered_commands))
def test_every_command_refuses_an_unknown_option_with_the_status_of_bad_input(name, capsys):
    assert main([name, "--no-such-option", "1"]) == Exit.BAD_INPUT
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_the_page_of_errors_lists_the_exit_statuses():
    rows = re.findall(r"^\| (\d+) \|", (DOCS / "errors.md").read_text(), re.MULTILINE)
    assert [int(row) for row in rows] == [*Exit]
