"""``sparring export --verifiers``: the files of a package. tests/with_verifiers plays them."""

import ast
import json
import shutil
import tomllib
from pathlib import Path

import pytest

from program_files import write_program
from sparring.cli.main import main
from sparring.commands.export_verifiers import export_verifiers
from sparring.config import load_config
from sparring.core import InputError
from sparring.run.programs import build_program


def agents_in(module):
    """Return the fields of the package's configuration of agents."""
    (config,) = (one for one in ast.parse(module.read_text()).body if getattr(one, "name", "") == "Config")
    return [one.target.id for one in config.body if isinstance(one, ast.AnnAssign)]


def test_the_seats_of_a_game_are_agents_and_its_settings_are_kept(tmp_path, capsys, monkeypatch):
    (tmp_path / "own.toml").write_text('seed = 3\n[[envs]]\nid = "leduc_poker"\nmax_turns = 9\n')
    monkeypatch.chdir(tmp_path)
    assert main(["export", "own.toml", "leduc-game", "--verifiers"]) == 0
    # "pip install leduc-game" would be a package of the index.
    assert f"pip install {tmp_path / 'leduc-game'} && vf-eval leduc-game" in capsys.readouterr().out
    module = tmp_path / "leduc-game" / "leduc_game"
    assert agents_in(module / "__init__.py") == ["player_0", "player_1"]
    config = load_config(str(module / "config.toml"), {})
    assert config == load_config(str(tmp_path / "own.toml"), {})
    assert "max_tokens" in (module / "config.toml").read_text()
    project = tomllib.loads((tmp_path / "leduc-game" / "pyproject.toml").read_text())
    assert project["project"]["name"] == "leduc-game"
    assert project["tool"]["setuptools"]["packages"] == [module.name]


def test_the_roles_of_a_program_are_agents_and_whom_it_calls_without_a_role_is_another(tmp_path):
    write_program(tmp_path)
    table = '[program]\ntype = "python"\npath = "hide_and_seek.py:HideAndSeek"\n'
    (tmp_path / "own.toml").write_text(f"{table}[roles.Seeker]\nmax_tokens = 3\n")
    export_verifiers(str(tmp_path / "own.toml"), tmp_path / "hiding")
    assert agents_in(tmp_path / "hiding" / "hiding" / "__init__.py") == ["Hider", "Seeker", "judge"]
    config = load_config(str(tmp_path / "hiding" / "hiding" / "config.toml"), {})
    assert config.roles["Seeker"].max_tokens == 3


def test_the_judge_of_a_debate_is_an_agent_that_writes_its_verdict(tmp_path):
    export_verifiers("debate", tmp_path / "debated")
    assert agents_in(tmp_path / "debated" / "debated" / "__init__.py") == ["Aff", "Neg", "judge"]
    assert not load_config(str(tmp_path / "debated" / "debated" / "config.toml"), {}).program.judge_by_score


@pytest.mark.parametrize("name", ["kuhn", "runs/kuhn", "own"])
def test_a_run_wins_over_a_preset_of_its_name_as_for_other_commands(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = tmp_path / "runs" / Path(name).name
    run.mkdir(parents=True)
    (run / "config.toml").write_text('[[envs]]\nid = "leduc_poker"\n')
    export_verifiers(name, tmp_path / "exported")
    assert load_config(str(tmp_path / "exported" / "exported" / "config.toml"), {}).play.names == [
        "leduc_poker"
    ]


@pytest.mark.parametrize("name", ["kuhn", "own.toml", "own"])
def test_a_directory_that_is_no_run_hides_neither_a_preset_nor_a_configuration(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / name).mkdir(parents=True)
    if name != "kuhn":
        (tmp_path / name).write_text('[[envs]]\nid = "kuhn_poker"\n')
    export_verifiers(name, tmp_path / "exported")
    assert load_config(str(tmp_path / "exported" / "exported" / "config.toml"), {}).play.names == [
        "kuhn_poker"
    ]


QUESTIONS = """
import json
from pathlib import Path

def asked(count, seed):
    return [{"question": f"{number} + 1", "answer": str(number + 1)} for number in range(4)]

def score(said, row):
    return float(said == row["answer"])

def read(count, seed):
    return json.loads(Path(__file__).with_name("beside.json").read_text())
"""


@pytest.mark.parametrize("name", ["own.py:asked", "own.jsonl", "other/own.jsonl"])
def test_a_package_has_the_files_of_a_configuration_and_none_of_their_paths(name, tmp_path):
    here = tmp_path / "here"
    for folder in (here, here / "other"):
        folder.mkdir()
        (folder / "own.jsonl").write_text(
            "".join(f'{{"question": "{n}?", "answer": "{n}"}}\n' for n in range(4))
        )
    (here / "own.py").write_text(QUESTIONS)
    (here / "own.toml").write_text(
        f'[program]\ntype = "questions"\nquestions = "{name}"\nscore = "own.py:score"\n'
    )
    export_verifiers(str(here / "own.toml"), tmp_path / "asked")
    shutil.rmtree(here)
    (tmp_path / "asked").rename(tmp_path / "elsewhere")
    module = tmp_path / "elsewhere" / "asked"
    assert str(tmp_path) not in (module / "config.toml").read_text()
    arena = build_program(load_config(str(module / "config.toml"), {}))
    assert len(arena.task.questions) == 4
    assert arena.task.score(0, arena.task.questions[0].answer) == 1
    assert arena.settings.questions.label == name.rpartition(":")[2].rpartition("/")[2]


def test_a_package_has_the_modules_beside_a_file_that_it_imports(tmp_path):
    here = tmp_path / "here"
    (here / "rules" / "of").mkdir(parents=True)
    (here / "rules" / "__init__.py").write_text("from rules.of.sums import total\n")
    (here / "rules" / "of" / "sums.py").write_text("def total(number): return str(number + 1)\n")
    (here / "never_imported.py").write_text("")
    (here / "own.py").write_text(
        f"from rules import total\n{QUESTIONS}".replace("str(number + 1)", "total(number)")
    )
    table = '[program]\ntype = "questions"\nquestions = "own.py:asked"\nscore = "own.py:score"\n'
    (here / "own.toml").write_text(table)
    export_verifiers(str(here / "own.toml"), tmp_path / "asked")
    shutil.rmtree(here)
    module = tmp_path / "asked" / "asked"
    copied = {str(one.relative_to(module / "files" / "0")) for one in module.rglob("files/**/*.py")}
    assert copied == {"own.py", "rules/__init__.py", "rules/of/sums.py"}
    arena = build_program(load_config(str(module / "config.toml"), {}))
    assert [one.answer for one in arena.task.questions] == ["1", "2", "3", "4"]


ASKED = 'type = "questions"\nquestions = "own.py:read"\n'
JUDGED = 'type = "proofs"\nclaims = {type = "file", path = "claims.txt"}\n'


@pytest.mark.parametrize(
    ("program", "problem"),
    [
        (ASKED, "a copy of your files does not work alone: read failed: FileNotFoundError"),
        (JUDGED, "claims.txt cannot be a part of a package. Name a file that ends in .py, .json, .jsonl"),
    ],
)
def test_files_that_a_package_cannot_have_are_refused(program, problem, tmp_path):
    (tmp_path / "own.py").write_text(QUESTIONS)
    rows = [{"question": f"{n}?", "claim": f"{n}", "answer": f"{n}", "y": n % 2} for n in range(20)]
    (tmp_path / "beside.json").write_text(json.dumps(rows))
    (tmp_path / "claims.txt").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    (tmp_path / "own.toml").write_text(f"[program]\n{program}")
    with pytest.raises(InputError, match=problem):
        export_verifiers(str(tmp_path / "own.toml"), tmp_path / "asked")
    assert not (tmp_path / "asked").exists()


@pytest.mark.parametrize(
    ("source", "out", "problem"),
    [
        ("kuhn", "9-lives", "9-lives is no name of a package"),
        ("kuhn", "class", "class is no name of a package"),
        ("kuhn", "größe", "größe is no name of a package"),
        ("kuhn", "kuhn-", "kuhn- is no name of a package"),
        ("kuhn", "sparring", "sparring would hide the module sparring"),
        ("kuhn", "Random", "Random would hide the module random"),
        ("nothing", "game", "nothing"),
        ("several.toml", "game", "it plays several games"),
    ],
)
def test_what_cannot_be_a_package_is_refused_and_leaves_nothing(source, out, problem, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "several.toml").write_text('[[envs]]\nid = "kuhn_poker"\n[[envs]]\nid = "leduc_poker"\n')
    with pytest.raises(InputError, match=problem):
        export_verifiers(source, tmp_path / out)
    assert [one.name for one in tmp_path.iterdir()] == ["several.toml"]
