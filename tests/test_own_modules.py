"""A user's file imports the modules that lie beside it."""

import sys

import pytest

from sparring.core import InputError
from sparring.core.own_code import own_function, own_named


def write(directory, **files):
    directory.mkdir(exist_ok=True)
    for name, text in files.items():
        (directory / f"{name}.py").write_text(text)
    return directory


GAME = """
import splits_helper

def name():
    return splits_helper.NAME

def name_at_last():
    from splits_later import NAME
    return NAME
"""


def test_a_file_imports_modules_beside_it_also_inside_functions(tmp_path):
    here = write(tmp_path, game=GAME, splits_helper="NAME = 'a'", splits_later="NAME = 'later'")
    assert own_function(f"{here}/game.py:name", "env.id")() == "a"
    assert own_function(f"{here}/game.py:name_at_last", "env.id")() == "later"
    assert str(here) not in sys.path


def test_files_of_one_directory_share_a_module(tmp_path):
    here = write(tmp_path, game=GAME, template=GAME, splits_helper="NAME = object()")
    names = [own_function(f"{here}/{one}.py:name", "env.id")() for one in ("game", "template")]
    assert names[0] is names[1]


def test_modules_of_one_name_beside_two_files_are_two_modules(tmp_path):
    for one in ("a", "b"):
        write(tmp_path / one, game=GAME, splits_helper=f"NAME = '{one}'")
    names = [own_function(f"{tmp_path}/{one}/game.py:name", "env.id") for one in ("a", "b")]
    assert [name() for name in names] == ["a", "b"]


def test_a_package_beside_a_file_is_imported_and_a_folder_is_none(tmp_path):
    (tmp_path / "splits_folder").mkdir()
    (tmp_path / "splits_package").mkdir()
    write(tmp_path / "splits_package", __init__="", inner="NAME = 'inner'")
    write(tmp_path, game="from splits_package.inner import NAME", other="import splits_folder")
    assert own_named(f"{tmp_path}/game.py:NAME", "env.id") == "inner"
    with pytest.raises(InputError, match="No module named 'splits_folder'"):
        own_named(f"{tmp_path}/other.py:NAME", "env.id")


def test_what_is_installed_comes_before_what_lies_beside_a_file(tmp_path):
    write(tmp_path, game="from pydantic import NAME", pydantic="NAME = 'mine'")
    with pytest.raises(InputError, match="cannot import name 'NAME' from 'pydantic'"):
        own_named(f"{tmp_path}/game.py:NAME", "env.id")


def test_an_error_in_a_module_beside_a_file_names_its_line(tmp_path):
    write(tmp_path, game=GAME, splits_helper="1 / 0")
    with pytest.raises(InputError, match=r"ZeroDivisionError.* in splits_helper\.py, line 1"):
        own_named(f"{tmp_path}/game.py:name", "env.id")
