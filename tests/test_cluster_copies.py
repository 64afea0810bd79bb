"""The command's model and a user's own files on a node that does not see them."""

import asyncio
import os
import platform
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sparring.cluster.command_files import MODEL, CommandFiles
from sparring.cluster.elsewhere import NodeCopies, own_scratch
from sparring.cluster.transfer import CHUNK
from sparring.collection.local_handle import LocalHandle
from sparring.config import load_config
from sparring.config.loading import own_files
from sparring.core import InputError, SparringError
from sparring.core.adapters import BUNDLED_MODEL
from sparring.learn.model_files import fingerprint
from tiny_models import tiny_model


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("SPARRING_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "copies"


@pytest.fixture
def model(tmp_path) -> Path:
    """A model whose directory also has code, pickles and others' weights."""
    directory = Path(shutil.copytree(tiny_model("llama"), tmp_path / "model"))
    for name in ("modeling_mine.py", "pytorch_model.bin", "consolidated.safetensors", "onnx/config.json"):
        (directory / name).parent.mkdir(exist_ok=True)
        (directory / name).write_bytes(b"not copied")
    return directory


def contents(directory: Path) -> dict[str, bytes]:
    files = (path for path in directory.rglob("*") if path.is_file())
    return {path.relative_to(directory).as_posix(): path.read_bytes() for path in files}


class Elsewhere(CommandFiles):
    """The files of a machine where ``there`` names what is at ``here``."""

    def __init__(self, there: Path, here: Path) -> None:
        super().__init__(lambda files: files, str(here))
        self.there = there
        self.chunks = 0

    def read(self, place: str, name: str, offset: int) -> bytes:
        self.chunks += 1
        return super().read(place, name, offset)

    def name_here(self) -> Path:
        copies = NodeCopies(LocalHandle(self), str(self.there))
        asyncio.run(copies.prepare())
        return Path(copies.model)


def test_a_copy_of_a_model_has_its_files_and_no_code(tmp_path, model, cache):
    files = Elsewhere(tmp_path / "nowhere" / "model", model)
    copy = files.name_here()
    assert copy.parent == cache
    assert fingerprint(str(copy)) == fingerprint(str(model))
    assert contents(copy) == contents(tiny_model("llama"))
    chunks = files.chunks
    assert files.name_here() == copy
    assert files.chunks == chunks, "it is taken once"


def test_a_node_uses_its_own_model_only_if_it_has_the_same_files(tmp_path, model, cache):
    there = Path(shutil.copytree(model, tmp_path / "there"))
    (there / "modeling_mine.py").write_bytes(b"other code is not used")
    assert Elsewhere(there, model).name_here() == there
    (there / "generation_config.json").write_text("{}")
    assert Elsewhere(there, model).name_here().parent == cache


def test_a_copy_that_was_interrupted_or_damaged_is_completed(tmp_path, model, cache):
    (model / "merges.txt").write_bytes(random.Random(0).randbytes(CHUNK * 5 // 2))
    expected = contents(Elsewhere(tmp_path / "nowhere", model).name_here())
    (copy,) = (path for path in cache.iterdir() if path.is_dir())
    (copy / "merges.txt").write_bytes(expected["merges.txt"][: CHUNK + 5])
    (copy / "model.safetensors").write_bytes(b"damaged")
    files = Elsewhere(tmp_path / "nowhere", model)
    assert contents(files.name_here()) == expected
    assert files.chunks < 8


async def test_processes_of_a_node_that_start_at_once_share_one_copy(tmp_path, model, cache):
    files = LocalHandle(Elsewhere(tmp_path / "nowhere", model))
    copies = [NodeCopies(files, "/nowhere/model") for _ in range(2)]
    await asyncio.gather(*(one.prepare() for one in copies))
    (place,) = {one.model for one in copies}
    assert fingerprint(place) == fingerprint(str(model))


def test_what_ended_processes_of_this_node_left_is_deleted_and_nothing_of_other_nodes(tmp_path, cache):
    """Nodes may share a home, and the name of one may begin with that of another."""
    scratch, node = cache.parent / "scratch", platform.node()
    kept = [own_scratch(), scratch / f"{node}-2-abcdefgh", scratch / "other-abcdefgh"]
    (scratch / f"{node}-abcdefgh").mkdir()
    for other in kept[1:]:
        other.mkdir()
    kept.append(own_scratch())
    assert sorted(one for one in scratch.iterdir() if one.is_dir()) == sorted(kept)


def test_a_link_out_of_a_models_directory_is_not_followed(tmp_path, model, cache):
    (tmp_path / "secret").write_text("{}")
    (model / "vocab.json").symlink_to(tmp_path / "secret")
    with pytest.raises(InputError, match=r"^model: .*vocab.json is a link out of the model's directory"):
        Elsewhere(tmp_path / "nowhere", model).name_here()
    (model / "vocab.json").unlink()
    (model / "vocab.json").symlink_to("tokenizer.json")
    assert (Elsewhere(tmp_path / "nowhere", model).name_here() / "vocab.json").is_file()


@pytest.mark.parametrize("named", ["tiny-00001-of-00002.gguf", ""])
def test_the_parts_of_a_gguf_model_and_its_template_are_copied(tmp_path, cache, named):
    parts = ("tiny-00001-of-00002.gguf", "tiny-00002-of-00002.gguf", "chat_template.jinja")
    (tmp_path / "gguf").mkdir()
    for name in (*parts, "notes.txt"):
        (tmp_path / "gguf" / name).write_text(name)
    name = Elsewhere(tmp_path / "nowhere" / named, tmp_path / "gguf" / named).name_here()
    directory = name.parent if named else name
    assert directory.parent == cache
    assert name.name == named or not named
    assert contents(directory) == {part: part.encode() for part in parts}


@pytest.mark.parametrize("name", [BUNDLED_MODEL, "some/model"])
def test_a_model_that_every_node_gets_for_itself_keeps_its_name(name, cache):
    copies = NodeCopies(LocalHandle(CommandFiles(lambda files: files, name)), name)
    asyncio.run(copies.prepare())
    assert copies.model == name


def test_nothing_else_of_the_commands_machine_can_be_read(tmp_path, model):
    files = CommandFiles(lambda files: files, str(model), [str(model / "modeling_mine.py")])
    for place, name in ((MODEL, "modeling_mine.py"), (MODEL, "../secret"), ("own", "etc/passwd")):
        with pytest.raises(SparringError, match="is no file of the run's configuration"):
            files.read(place, name, 0)


def test_the_files_of_a_users_own_are_those_that_the_configuration_names(tmp_path, model):
    for name in ("games.py", "rules.py", "questions.jsonl", "losses.py", "unused.py"):
        (tmp_path / name).write_text("")
    (tmp_path / "config.toml").write_text(
        """
        [[envs]]
        id = "games.py:Game"
        template = "rules.py:terse"
        [[evaluation.tasks]]
        name = "questions.jsonl"
        [learning.algorithm]
        path = "losses.py:Loss"
        """
    )
    config = load_config(str(tmp_path / "config.toml"), {"model.name": str(model)})
    found = {os.path.relpath(path, tmp_path) for path in own_files(config)}
    assert found == {"games.py", "rules.py", "questions.jsonl", "losses.py"}


def test_modules_that_a_users_file_imports_only_while_it_plays_belong_to_it(tmp_path, model):
    sources = {
        "games.py": "def play():\n    import rules.cards\n",
        "rules/__init__.py": "",
        "rules/cards.py": "def deal():\n    from scores import score\n    from . import table\n",
        "rules/table.py": "",
        "scores.py": "import unfinished",
        "unfinished.py": "(",
        "unused.py": "",
    }
    for name, source in sources.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(source)
    (tmp_path / "config.toml").write_text('[[envs]]\nid = "games.py:Game"')
    config = load_config(str(tmp_path / "config.toml"), {"model.name": str(model)})
    found = {os.path.relpath(path, tmp_path) for path in own_files(config)}
    assert found == sources.keys() - {"unused.py"}


def test_a_copy_of_a_users_file_counts_although_another_is_at_its_path(tmp_path):
    there, copies = tmp_path / "there.py", tmp_path / "copies"
    there.write_text("name = 'of this machine'")
    copy = copies / there.relative_to("/")
    copy.parent.mkdir(parents=True)
    copy.write_text("name = 'of the command'")
    code = f"""
from sparring.core.files import read_copies
from sparring.core.own_code import own_named
read_copies(__import__("pathlib").Path({str(copies)!r}))
print(own_named({f"{there}:name"!r}, "env.id"))
"""
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout == "of the command\n"
