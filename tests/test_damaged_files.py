"""Damaged files, other base models and edited configurations: noticed before anything changes, never trained
on."""

import errno
import hashlib
import io
import json
import os
import shutil
from collections.abc import Callable
from itertools import cycle
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from damaged_files import contents, damage_all, end_of, kinds, make_run
from matrices import first_of
from sparring.cli.main import main
from sparring.core import InputError
from sparring.core.adapters import ADAPTER_CONFIG, ADAPTER_FILE, LEARNER_FILE, MANIFEST_FILE, STATE_FILE
from sparring.core.errors import DamagedState
from sparring.core.files import NOT_LOOKED_INTO
from sparring.core.manifest import check_files, seal
from sparring.learn.model_files import fingerprint
from sparring.run.given_adapters import copy_adapter
from sparring.run.run_directory import RunDirectory
from sparring.run.single_process import resume
from tiny_models import roomy_model, tiny_model

UPDATES = 3


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    """A copy of the model, which a test may exchange."""
    return Path(shutil.copytree(roomy_model(), tmp_path_factory.mktemp("base") / "model"))


@pytest.fixture(scope="module")
def unfinished(model, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("unfinished") / "run"
    make_run(path, model)
    return path


@pytest.fixture(scope="module")
def whole(unfinished, tmp_path_factory) -> dict:
    """How the run ends without damage."""
    path = Path(shutil.copytree(unfinished, tmp_path_factory.mktemp("whole") / "run"))
    go_on(path)
    return end_of(path)


@pytest.fixture
def copied(unfinished, tmp_path) -> Path:
    return Path(shutil.copytree(unfinished, tmp_path / "run"))


def go_on(path: Path) -> str:
    text = io.StringIO()
    resume(path, Console(file=text, width=1000), {"learning.steps": str(UPDATES)})
    return text.getvalue()


def refused(path: Path, match: str) -> None:
    """Check that a resume is refused in one line and changes nothing."""
    before = contents(path)
    with pytest.raises(InputError, match=match) as caught:
        go_on(path)
    assert "\n" not in str(caught.value)
    assert contents(path) == before


def edited(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json"])
def test_a_run_whose_model_is_damaged_is_not_continued(copied, model, name):
    content = (model / name).read_bytes()
    try:
        (model / name).write_bytes(content[:-5])
        refused(copied, rf"^model\.name: .*{name} is not valid JSON")
    finally:
        (model / name).write_bytes(content)


@pytest.mark.parametrize("name", ["weights", MANIFEST_FILE])
def test_a_pipe_in_place_of_a_file_is_damage_and_is_not_waited_for(tmp_path, name):
    (tmp_path / "weights").write_text("the content")
    seal(tmp_path)
    (tmp_path / name).unlink()
    os.mkfifo(tmp_path / name)
    with pytest.raises(DamagedState, match=f"{name} is missing or damaged"):
        check_files(tmp_path)


COMMANDS = (
    ["train", "--resume", "{run}", "--learning.steps", str(UPDATES)],
    ["report", "{run}"],
    ["compare", "{run}", "{other}"],
    ["watch", "{run}"],
    ["runs", "{run}/.."],
)


@pytest.mark.parametrize("all_commands", first_of([False, True]))
@pytest.mark.parametrize("kind", [os.mkfifo, os.mkdir, lambda path: os.symlink("/dev/null", path)])
def test_what_is_no_file_is_one_line_in_every_command_and_is_not_waited_for(
    copied, unfinished, kind, all_commands, capfd
):
    """By default, each file is met by one of the commands in turn."""
    commands = cycle(COMMANDS)
    for file in sorted(path for path in copied.rglob("*") if path.is_file()):
        of_a_run = NOT_LOOKED_INTO.isdisjoint(file.parts) and file.name != "config.toml"
        if not of_a_run or (kind is os.mkdir and not file.suffix):
            continue
        content = file.read_bytes()
        file.unlink()
        kind(file)
        for command in COMMANDS if all_commands else [next(commands)]:
            main([one.format(run=copied, other=unfinished) for one in command])
            said = capfd.readouterr()
            assert "is not a regular file" in " ".join((said.out + said.err).split()), (file, command)
        file.rmdir() if file.is_dir() else file.unlink()
        file.write_bytes(content)


@pytest.mark.parametrize("all_commands", first_of([False, True]))
def test_a_file_that_is_nested_too_deeply_is_at_most_one_line_in_every_command(
    unfinished, tmp_path, all_commands, capfd
):
    """By default, each kind of file is met by one of the commands in turn."""
    json_files = {
        name: files for name, files in kinds(unfinished).items() if name.endswith((".json", ".jsonl"))
    }
    assert {"metrics.jsonl", "sessions.json", "standings.jsonl"} <= json_files.keys()
    commands = cycle([one for one in COMMANDS if "watch" not in one])
    for number, (name, files) in enumerate(json_files.items()):
        for turn in range(len(COMMANDS) - 1 if all_commands else 1):
            run = Path(shutil.copytree(unfinished, tmp_path / f"runs-{number}-{turn}" / "run"))
            file = run / files[-1].relative_to(unfinished)
            file.write_bytes((b'{"":' if file.read_bytes().startswith(b"{") else b"[") * 100_000 + b"\n")
            command = next(commands)
            status = main([one.format(run=run, other=unfinished) for one in command])
            said = capfd.readouterr().err
            assert said.count("\n") == (status != 0), (name, command, said)
            shutil.rmtree(run)


def test_an_error_of_a_file_is_one_line(tmp_path, monkeypatch, capfd):
    def refused(*args, **kwargs):
        raise PermissionError(errno.EACCES, "Permission denied", "/runs/x/rollouts")

    monkeypatch.setattr("sparring.commands.list_runs.list_runs", refused)
    assert main(["runs", str(tmp_path)]) == 1
    assert capfd.readouterr().err == "error: /runs/x/rollouts: Permission denied\n"


@given(st.data())
def test_no_changed_byte_in_a_sealed_directory_goes_unnoticed(tmp_path_factory, data):
    place = tmp_path_factory.mktemp("sealed")
    for name in ("state.json", "solver/weights", "prover/weights"):
        (place / name).parent.mkdir(exist_ok=True)
        (place / name).write_text(f"the content of {name}")
    seal(place, {"model.safetensors": "00"})
    check_files(place)
    path = data.draw(st.sampled_from(sorted(path for path in place.rglob("*") if path.is_file())))
    content = bytearray(path.read_bytes())
    index = data.draw(st.integers(0, len(content) - 1))
    damage = data.draw(st.sampled_from(["flip", "cut", "more", "gone"]))
    if damage == "flip":
        content[index] ^= 1 << data.draw(st.integers(0, 7))
    elif damage == "more":
        content.insert(index, data.draw(st.integers(0, 255)))
    path.write_bytes(content[:index] if damage == "cut" else content)
    if damage == "gone":
        path.unlink()
    with pytest.raises(DamagedState, match=f"{path.relative_to(place).as_posix()} is missing or damaged"):
        check_files(place)


@pytest.mark.slow  # a flipped bit and a cut log are tested by default
def test_every_damage_is_noticed_and_none_is_trained_on(unfinished, tmp_path):
    """The whole figure: benchmarks/damaged_files.py."""
    faults: list[str] = []
    found = damage_all(unfinished, tmp_path, 4, 1, faults.append, UPDATES)
    assert faults == []
    assert sum(counts.total() for counts in found.values()) == 4


@pytest.mark.parametrize(
    "name", first_of([LEARNER_FILE, MANIFEST_FILE, ADAPTER_FILE, ADAPTER_CONFIG, STATE_FILE])
)
def test_one_flipped_bit_in_the_newest_checkpoint_goes_back_to_the_one_before(copied, whole, name):
    file = RunDirectory(copied).checkpoint(2) / name
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    assert f"step-000002/{name} is missing or damaged; continuing from step-000001" in go_on(copied)
    assert end_of(copied) == whole


@pytest.mark.slow  # an unfinished one does so above
def test_a_finished_run_whose_newest_checkpoints_are_damaged_makes_their_updates_again(copied, whole):
    go_on(copied)
    for step in (2, 3):
        (RunDirectory(copied).checkpoint(step) / STATE_FILE).write_text("{}")
    assert "step-000003 and step-000002 are damaged; continuing from step-000001" in go_on(copied)
    assert end_of(copied) == whole
    refused(copied, r"is finished \(3 of 3 updates\)")


FIELDS = ("format", "step", "versions", "samples_seen", "started", "trained_records")
FIELDS += ("source", "metrics", "turn", "config", "logs")


@pytest.mark.parametrize("value", ["missing", None, "text", -1, [[]]])
def test_a_state_without_a_field_or_with_another_type_is_a_damaged_one(unfinished, tmp_path, value):
    """Also if somebody has sealed it again."""
    from sparring.run.saved_state import read_saved_state

    for field in FIELDS:
        place = Path(shutil.copytree(RunDirectory(unfinished).checkpoint(2), tmp_path / field))
        state = json.loads((place / STATE_FILE).read_text())
        del state[field]
        if value != "missing":
            state[field] = value
        (place / STATE_FILE).write_text(json.dumps(state))
        seal(place)
        with pytest.raises((DamagedState, InputError), match=r"damaged|another version"):
            read_saved_state(place, 2)
    with pytest.raises(DamagedState):  # the checkpoint of another update
        read_saved_state(RunDirectory(unfinished).checkpoint(2), 1)


def test_a_checkpoint_without_all_that_the_loop_needs_is_not_continued(copied):
    """On Ray, there are such before the first update; here nothing could check what is continued."""
    for place in RunDirectory(copied).checkpoints.iterdir():
        state = json.loads((place / STATE_FILE).read_text())
        for field in ("source", "metrics", "turn", "config", "logs"):
            del state[field]
        (place / STATE_FILE).write_text(json.dumps(state))
        seal(place)
    refused(copied, "step-000002/state.json is missing or damaged")


def test_if_no_checkpoint_is_whole_nothing_changes(copied):
    for number, name in enumerate((ADAPTER_FILE, LEARNER_FILE, STATE_FILE)):
        (RunDirectory(copied).checkpoint(number) / name).write_bytes(b"")
    refused(copied, "step-000002/state.json is missing or damaged")


@pytest.mark.parametrize("keep", first_of([0.6, 0.9, -1]))
def test_a_log_that_is_shorter_than_a_checkpoint_expects_goes_back_to_one_that_it_fits(copied, whole, keep):
    for name in ("metrics.jsonl", "standings.jsonl"):
        content = (copied / name).read_bytes()
        (copied / name).write_bytes(content[: keep if keep < 0 else int(len(content) * keep)])
        said = go_on(copied) if name == "standings.jsonl" else ""
    assert "bytes, but the checkpoint expects" in said
    assert end_of(copied) == whole


def test_a_log_that_fits_no_checkpoint_is_refused_and_nothing_changes(copied):
    shutil.rmtree(RunDirectory(copied).checkpoint(0))
    (copied / "metrics.jsonl").write_bytes((copied / "metrics.jsonl").read_bytes()[:40])
    refused(copied, r"metrics\.jsonl has 40 bytes, but the checkpoint expects")
    (copied / "metrics.jsonl").unlink()
    refused(copied, r"metrics\.jsonl has 0 bytes, but the checkpoint expects")


def other_weights(base: Path) -> None:
    shutil.copyfile(tiny_model("llama", seed=5) / "model.safetensors", base / "model.safetensors")


def other_tokenizer(base: Path) -> None:
    edited(base / "tokenizer.json", '"content":', '"content" :')


def other_template(base: Path) -> None:
    edited(base / "tokenizer_config.json", "{", '{"chat_template": "Q",')


def other_stop(base: Path) -> None:
    edited(base / "generation_config.json", '"eos_token_id":', '"eos_token_id": 65, "was":')


def other_shape(base: Path) -> None:
    edited(base / "config.json", '"rope_theta": 10000.0', '"rope_theta": 20000.0')


@pytest.mark.parametrize(
    ("change", "file"),
    [
        (other_weights, "model.safetensors"),
        (other_tokenizer, "tokenizer.json"),
        (other_template, "tokenizer_config.json"),
        (other_stop, "generation_config.json"),
        (other_shape, "config.json"),
    ],
)
@pytest.mark.parametrize("same_path", [True, False])
def test_a_run_does_not_continue_on_another_base_model(copied, model, tmp_path, change, file, same_path):
    other = Path(shutil.copytree(model, tmp_path / "other"))
    change(other)
    if same_path:
        shutil.move(model, tmp_path / "aside")
        shutil.copytree(other, model)
    else:
        edited(copied / "config.toml", f'"{model}"', f'"{other}"')
    try:
        refused(copied, f"model.name: .* trained on another base model: its {file} was different")
    finally:
        if same_path:
            shutil.rmtree(model)
            shutil.move(tmp_path / "aside", model)


def test_a_base_model_that_was_moved_is_the_same(copied, model, whole, tmp_path):
    moved = Path(shutil.copytree(model, tmp_path / "moved"))
    edited(moved / "config.json", "transformers_version", "_commit_hash")
    edited(copied / "config.toml", f'"{model}"', f'"{moved}"')
    assert "changed since the last checkpoint: model.name" in go_on(copied)
    assert end_of(copied) == whole
    assert fingerprint(str(tmp_path)) == {}


@pytest.mark.parametrize(
    ("old", "new", "field"),
    [
        ("seed = 0", "seed = 1", "seed"),
        ("learning_rate = ", "learning_rate = 0.1 # ", "learning.learning_rate"),
        ("max_tokens = 4", "max_tokens = 5", "inference.max_tokens"),
        ("games_per_step = 4", "games_per_step = 5", "collection.games_per_step"),
        ('sample_mode = "lagged"', 'sample_mode = "random"', "population.sample_mode"),
        ("rank = 2", "rank = 4", "lora.rank"),
    ],
)
def test_an_edited_field_that_changes_results_is_refused_by_name(copied, old, new, field):
    edited(copied / "config.toml", old, new)
    refused(copied, rf"{field}: is .* in config\.toml, but the run has learned with")


def test_an_edited_field_that_changes_no_results_is_named(copied, whole):
    edited(copied / "config.toml", "save_every = 1", "save_every = 2")
    assert "changed since the last checkpoint: learning.steps, run.save_every" in go_on(copied)
    assert end_of(copied) == whole


@pytest.mark.parametrize("use", ["start", "frozen", "serve", "export"])
@pytest.mark.parametrize("damage", ["bit", "base"])
def test_an_adapter_with_other_bytes_or_of_another_base_is_not_used(unfinished, tmp_path, use, damage):
    from sparring.commands.export import export
    from sparring.engine.engine import EmbeddedEngine
    from sparring.engine.published_adapters import PublishedAdapters
    from sparring.learn.policy import LoraSettings, PolicyModel
    from sparring.run.given_adapters import load_adapter_of

    adapter = Path(shutil.copytree(RunDirectory(unfinished).checkpoint(2), tmp_path / "adapter"))
    if damage == "bit":
        content = bytearray((adapter / ADAPTER_FILE).read_bytes())
        content[-1] ^= 1
        (adapter / ADAPTER_FILE).write_bytes(content)
    base = roomy_model() if damage == "bit" else tiny_model("llama", seed=3)
    policy = PolicyModel(str(base), LoraSettings(2, 32.0))
    uses: dict[str, Callable[[], object]] = {
        "start": lambda: load_adapter_of(adapter, policy, "default"),
        "frozen": lambda: (
            copy_adapter(adapter, tmp_path / "copy") or load_adapter_of(tmp_path / "copy", policy, "x")
        ),
        "serve": lambda: PublishedAdapters(EmbeddedEngine(policy, max_tokens=4)).publish("one", adapter),
        "export": lambda: export(str(adapter), tmp_path / "out", merge=False, policy=None, console=Console()),
    }
    if use == "export" and damage == "base":
        edited(adapter / ADAPTER_CONFIG, "\n}", "\n }")
    with pytest.raises(InputError, match=r"is missing or damaged|trained on another base model"):
        uses[use]()
    assert not (tmp_path / "out").exists()


def test_the_first_line_after_a_kill_between_the_checkpoint_and_its_line_has_the_turns_figures(copied):
    """As on Ray, where an update is saved before its line is written."""
    place, metrics = RunDirectory(copied).checkpoint(2), copied / "metrics.jsonl"
    end = metrics.read_bytes().index(b"\n") + 1
    state = json.loads((place / STATE_FILE).read_text())
    state["metrics"]["tracker"]["offset"] = end
    state["logs"]["metrics.jsonl"] = [end, hashlib.sha256(metrics.read_bytes()[:end]).hexdigest()]
    state["turn"] = {"play": 12.5, "played": 50.0}
    (place / STATE_FILE).write_text(json.dumps(state))
    seal(place)
    go_on(copied)
    line = json.loads(metrics.read_text().splitlines()[1])
    assert (line["step"], line["time/play_seconds"], line["time/games_per_second"]) == (2, 12.5, 4.0)
