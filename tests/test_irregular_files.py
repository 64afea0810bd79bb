"""Where a user gives a file, a pipe, a socket or a device is refused in one line, and is not waited for."""

import os
import shutil
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from matrices import one_of_each
from sparring.cli.main import main
from sparring.core import InputError
from sparring.core.adapters import ADAPTER_CONFIG, ADAPTER_FILE
from sparring.core.rows import rows_of_dataset
from sparring.engine.adapters import changes_nothing
from sparring.evaluation.policy_file import read_policy
from sparring.evaluation.policy_table import PolicyTable, TableHeader, read_table
from sparring.learn.adapter_weights import read_weights
from sparring.learn.model_files import check_model_name
from tiny_models import roomy_model

LIMIT_SECONDS = 60
"""After which a command that waits is interrupted."""


@pytest.fixture(autouse=True)
def no_command_waits() -> Iterator[None]:
    def interrupt(*_: object) -> None:
        raise TimeoutError("it waits")

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.alarm(LIMIT_SECONDS)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def a_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(path))


def a_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


KINDS: dict[str, Callable[[Path], None]] = {
    "a pipe": lambda path: os.mkfifo(path),
    "a socket": a_socket,
    "a device": a_device,
    "a directory": lambda path: path.mkdir(),
}
COMMANDS = {
    "questions": ["train", "asks.toml", "--dry-run"],
    "claims": ["train", "nip", "--dry-run", "--program.claims", '{{type = "file", path = "{file}"}}'],
    "conversations": ["sft", "{file}", "{file}-out"],
    "a configuration": ["train", "{file}.toml", "--dry-run"],
    "a recipe": ["train", "kuhn", "--dry-run", "--recipe", "{file}.toml"],
    "a ladder": ["bench", "{file}.toml"],
    "a template": ["train", "kuhn", "--dry-run", "--envs.0.template", "{file}.py:Mine"],
    "a program": ["train", "kuhn", "--dry-run", "--envs.0.id", "{file}.py:Mine"],
    "an opponent": ["tournament", "{file}", "random", "--env", "kuhn_poker"],
    "a model": ["train", "kuhn", "--dry-run", "--model.name", "{file}"],
    "GGUF": ["train", "kuhn", "--dry-run", "--model.name", "{file}.gguf"],
}


@pytest.mark.parametrize(("what", "kind"), one_of_each([*COMMANDS], [*KINDS]))
def test_a_command_refuses_what_is_no_file_in_one_line(what, kind, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "asks.toml").write_text('[program]\ntype = "questions"\nquestions = "given.jsonl"\n')
    words = [word.format(file="given") for word in COMMANDS[what]]
    name = next((word for word in words if "given" in word and "-out" not in word), "given.jsonl")
    named = "given" + next((end for end in (".jsonl", ".toml", ".py", ".gguf") if end in name), "")
    KINDS[kind](tmp_path / named)
    assert main(words) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert named in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("name", "kind"),
    one_of_each(
        ["model.safetensors", "config.json", "tokenizer.json", "notes.txt"],
        ["a pipe", "a socket", "a device"],
    ),
)
def test_a_model_with_what_is_no_file_is_refused_before_a_library_reads_it(name, kind, tmp_path):
    model = Path(shutil.copytree(roomy_model(), tmp_path / "model"))
    (model / name).unlink(missing_ok=True)
    KINDS[kind](model / name)
    with pytest.raises(InputError, match=f"^model: .*{name} is not a regular file"):
        check_model_name(str(model))


@pytest.mark.parametrize("kind", KINDS)
def test_weights_a_policy_and_a_table_that_are_no_file_are_refused(kind, tmp_path):
    header = TableHeader("dark_hex", "chat", "tiny", {}, "float32", rows=2, actions=3)
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / ADAPTER_CONFIG).write_text("{}")
    for path, read in (
        (adapter / ADAPTER_FILE, lambda path: read_weights(path.parent)),
        (adapter / ADAPTER_FILE, lambda path: changes_nothing(path.parent)),
        (tmp_path / "policy.jsonl", lambda path: read_policy(path, "kuhn_poker")),
        (tmp_path / "table", lambda path: PolicyTable(path, header)),
        (tmp_path / "table", read_table),
    ):
        if not path.exists():
            KINDS[kind](path)
        with pytest.raises(InputError):
            read(path)


@pytest.mark.parametrize("kind", ["a pipe", "a socket", "a device"])
def test_a_directory_of_a_dataset_with_what_is_no_file_is_refused(kind, tmp_path):
    (tmp_path / "data").mkdir()
    KINDS[kind](tmp_path / "data" / "train.jsonl")
    with pytest.raises(InputError, match=r"^questions: .*train\.jsonl is not a regular file"):
        rows_of_dataset(str(tmp_path), "train", "questions")
