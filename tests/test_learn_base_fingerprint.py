"""An adapter is refused on other weights or templates than those it was trained on, and only there."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from sparring.core import InputError
from sparring.learn.checkpoints import save_adapter
from sparring.learn.model_files import check_base, check_model_name, fingerprint
from sparring.learn.policy import LoraSettings, PolicyModel
from tiny_models import tiny_model

LORA = LoraSettings(2, 4.0)
LAYOUTS = ("one file", "parts", "another name")


@pytest.fixture(params=LAYOUTS)
def base(request, tmp_path: Path) -> Path:
    """A model whose weights are stored in one of the ways that transformers reads."""
    directory = Path(shutil.copytree(tiny_model("llama"), tmp_path / "base"))
    weights = directory / "model.safetensors"
    if request.param == "parts":
        model = AutoModelForCausalLM.from_pretrained(directory)
        weights.unlink()
        model.save_pretrained(directory, max_shard_size="20KB")
        assert len(list(directory.glob("model-*.safetensors"))) > 2
    if request.param == "another name":
        weights.rename(directory / "mine.safetensors")
        config = json.loads((directory / "config.json").read_text())
        (directory / "config.json").write_text(
            json.dumps({**config, "transformers_weights": "mine.safetensors"})
        )
    return directory


@pytest.fixture
def adapter(base: Path, tmp_path: Path) -> Path:
    save_adapter(tmp_path / "adapter", PolicyModel(str(base), LORA), str(base))
    return tmp_path / "adapter"


def beside(name: str) -> Callable[[Path], Path]:
    def put(base: Path) -> Path:
        shutil.copyfile(tiny_model("llama", seed=3) / "model.safetensors", base / name)
        return base

    return put


def files_beside(base: Path) -> Path:
    for name in ("README.md", "training_args.bin", "pytorch_model.bin", "model.onnx", "tokenizer.json.bak"):
        (base / name).write_text("x")
    return base


def copied(base: Path) -> Path:
    return Path(shutil.copytree(base, base.parent / "copied"))


def moved(base: Path) -> Path:
    return base.rename(base.parent / "moved")


def in_a_hub_cache(base: Path) -> Path:
    snapshot, blobs = base.parent / "hub/snapshots/abc", base.parent / "hub/blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for number, file in enumerate(base.iterdir()):
        shutil.copyfile(file, blobs / str(number))
        (snapshot / file.name).symlink_to(Path("../../blobs", str(number)))
    return snapshot


def linked_in_place(base: Path) -> Path:
    for file in list(base.iterdir()):
        blob = file.rename(file.with_name(f"blob-{file.name}"))
        file.symlink_to(blob)
    return base


SAME = [copied, moved, in_a_hub_cache, linked_in_place, files_beside]
SAME += [beside(name) for name in ("consolidated.safetensors", "model.fp16.safetensors")]


@pytest.mark.parametrize("changed", SAME)
def test_the_same_model_is_the_same_wherever_and_beside_whatever_it_is(base, adapter, changed):
    place = changed(base)
    PolicyModel(str(place), LORA)
    check_base(adapter, fingerprint(str(place)))


def bit_in_weights(base: Path) -> None:
    file = max(file for file in base.glob("*.safetensors"))
    content = bytearray(file.read_bytes())
    content[-5] ^= 1
    file.write_bytes(content)


def default_template(base: Path) -> None:
    (base / "additional_chat_templates").mkdir()
    (base / "additional_chat_templates/default.jinja").write_text("another")
    assert AutoTokenizer.from_pretrained(base).chat_template == "another"


@pytest.mark.parametrize("change", [bit_in_weights, default_template])
def test_another_model_is_refused(base, adapter, change):
    change(base)
    with pytest.raises(InputError, match="was trained on another base model"):
        check_base(adapter, fingerprint(str(base)))


@pytest.mark.parametrize("base", ["parts"], indirect=True)
def test_weights_that_are_loaded_in_place_of_the_parts_count(base, adapter):
    PolicyModel(str(beside("model.safetensors")(base)), LORA)
    with pytest.raises(InputError, match="was trained on another base model"):
        check_base(adapter, fingerprint(str(base)))


DAMAGES = {
    "cut": lambda file: file.write_bytes(file.read_bytes()[:-5]),
    "empty": lambda file: file.write_bytes(b""),
    "of another encoding": lambda file: file.write_bytes(b"\xff" * 20),
    "a list": lambda file: file.write_text("[1]"),
    "nested too deeply": lambda file: file.write_text("[" * 100_000),
}
CONFIGS = ["config.json", "generation_config.json", "tokenizer_config.json"]


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", [*CONFIGS, "model.safetensors.index.json"])
@pytest.mark.parametrize("base", ["parts"], indirect=True)
def test_a_damaged_file_of_a_model_is_one_line_that_names_it(base, name, damage):
    DAMAGES[damage](base / name)
    for asked in (check_model_name, fingerprint):
        with pytest.raises(InputError, match=f"{name} is no") as raised:
            asked(str(base))
        assert "\n" not in str(raised.value)


@pytest.mark.parametrize("index", ["{}", '{"weight_map": []}', '{"weight_map": {"w": 3}}'])
@pytest.mark.parametrize("base", ["parts"], indirect=True)
def test_an_index_without_files_of_weights_is_one_line(base, index):
    (base / "model.safetensors.index.json").write_text(index)
    for asked in (check_model_name, fingerprint):
        with pytest.raises(InputError, match=r"index\.json names no files of weights"):
            asked(str(base))


@pytest.mark.parametrize("base", ["one file"], indirect=True)
def test_an_adapter_beside_a_model_is_refused_in_one_line(base, adapter):
    for file in adapter.glob("adapter*"):
        shutil.copyfile(file, base / file.name)
    with pytest.raises(InputError, match="is an adapter, which transformers adds to the model") as caught:
        PolicyModel(str(base), LORA)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("base", ["one file"], indirect=True)
def test_weights_of_pickle_are_refused_with_what_to_do(base):
    model = AutoModelForCausalLM.from_pretrained(base)
    (base / "model.safetensors").unlink()
    torch.save(model.state_dict(), base / "pytorch_model.bin")
    with pytest.raises(InputError, match="weights must be safetensors"):
        PolicyModel(str(base), LORA)
