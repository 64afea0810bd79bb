"""``sparring export --verifiers``: the files of a package. tests/with_verifiers plays them."""

import ast
import tomllib

import pytest

from program_files import write_program
from sparring.cli.main import main
from sparring.commands.export_verifiers import export_verifiers
from sparring.config import load_config
from sparring.core import InputError


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
    project = tomllib.loads((tmp_path / "leduc-game" / "pyproject.toml").read_text())
    assert project["project"]["name"] == "leduc-game"
    assert project["tool"]["setuptools"]["packages"] == [module.name]


def test_the_roles_of_a_program_are_agents_and_its_file_is_found_from_anywhere(tmp_path):
    write_program(tmp_path)
    table = '[program]\ntype = "python"\npath = "hide_and_seek.py:HideAndSeek"\n'
    (tmp_path / "own.toml").write_text(f"{table}[roles.Seeker]\nmax_tokens = 3\n")
    export_verifiers(str(tmp_path / "own.toml"), tmp_path / "hiding")
    assert agents_in(tmp_path / "hiding" / "hiding" / "__init__.py") == ["Hider", "Seeker"]
    config = load_config(str(tmp_path / "hiding" / "hiding" / "config.toml"), {})
    assert config.program.path == f"{tmp_path / 'hide_and_seek.py'}:HideAndSeek"
    assert config.roles["Seeker"].max_tokens == 3


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
