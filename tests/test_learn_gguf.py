"""GGUF files in and out: what a model computes and how its tokenizer splits stay the same."""

import contextlib
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGUFReader
from gguf.quants import dequantize
from hypothesis import given, settings
from hypothesis import strategies as st
from peft import PeftModel
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from family_models import SHAPE, family_model, moved_model
from gguf_files import changed, gguf_of
from matrices import one_of_each
from sparring.core import InputError
from sparring.learn.adapter_weights import read_weights
from sparring.learn.checkpoints import save_adapter
from sparring.learn.gguf.vocabulary import check_vocabulary, metadata_of_tokenizer, tokenizer_of
from sparring.learn.gguf.writing import write_adapter_gguf, write_model
from sparring.learn.model_files import check_model_name, fingerprint, model_directory, resolve_model
from sparring.learn.policy import LoraSettings, PolicyModel
from tiny_models import perturb_adapter, tiny_model
from tokenizer_families import FAMILIES as TOKENIZERS

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
LINEAR = {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 4.0}
GEMMA_LINEAR = {
    "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
}
GEMMA = {"query_pre_attn_scalar": 16, "sliding_window": 8, "num_hidden_layers": 7}
MODELS: dict[str, tuple[str, dict]] = {
    "llama": ("llama", {}),
    "llama, untied": ("llama", {"tie_word_embeddings": False}),
    "llama, biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama 3.1": ("llama", {"rope_parameters": LLAMA3_ROPE, "head_dim": 64}),
    "llama, linear rotation": ("llama", {"rope_parameters": LINEAR}),
    "qwen2": ("qwen2", {"head_dim": None}),
    "qwen3": ("qwen3", {"head_dim": 32, "rms_norm_eps": 1e-6}),
    "gemma3": ("gemma3_text", {"head_dim": 16, **GEMMA}),
    "gemma3, linear rotation": ("gemma3_text", {"head_dim": 16, **GEMMA, "rope_parameters": GEMMA_LINEAR}),
}
LONG = torch.arange(2, 250).unsqueeze(0)
ENDS = {"bos_token_id": None, "eos_token_id": 257, "pad_token_id": 256}


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("SPARRING_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def saved_model(name: str, directory: Path, **other) -> Path:
    """A random model whose every parameter, norms and biases too, was moved by noise."""
    kind, fields = MODELS[name]
    fields = {key: one for key, one in (SHAPE | fields | other).items() if one is not None}
    config = AutoConfig.for_model(kind, **(fields | ENDS))
    model = moved_model(config)
    model.save_pretrained(directory)
    for file in [*tiny_model("llama").glob("*token*"), *tiny_model("llama").glob("*.jinja")]:
        shutil.copy(file, directory)
    return directory


def logits_of(model) -> torch.Tensor:
    with torch.inference_mode():
        return model.eval()(LONG).logits[0]


def loaded(place) -> torch.Tensor:
    return logits_of(AutoModelForCausalLM.from_pretrained(place, dtype=torch.float32))


@pytest.mark.parametrize("name", MODELS)
def test_a_model_is_the_same_after_out_and_in_and_out(name, tmp_path):
    directory = saved_model(name, tmp_path / "model")
    file = gguf_of(directory, tmp_path / "mine.gguf")
    back = resolve_model(str(file))
    assert torch.equal(loaded(back), loaded(directory))
    again = gguf_of(Path(back), tmp_path / "again.gguf")
    assert again.read_bytes() == file.read_bytes()
    own, read = AutoTokenizer.from_pretrained(directory), AutoTokenizer.from_pretrained(back)
    assert read.chat_template == own.chat_template
    assert (read.eos_token, read.pad_token) == (own.eos_token, own.pad_token)
    assert read("Bet 12 or <|im_end|>check?").input_ids == own("Bet 12 or <|im_end|>check?").input_ids


@pytest.mark.parametrize(
    ("kind", "name"), one_of_each(["f16", "q8_0"], ["llama", "qwen2", "qwen3", "gemma3"])
)
def test_smaller_types_differ_by_their_rounding(name, kind, tmp_path):
    most = {"f16": 2e-2, "q8_0": 0.5}[kind]
    directory = saved_model(name, tmp_path / "model", intermediate_size=64)
    file = gguf_of(directory, tmp_path / "mine.gguf", kind)
    assert file.stat().st_size < 0.9 * gguf_of(directory, tmp_path / "whole.gguf").stat().st_size
    difference = (loaded(resolve_model(str(file))) - loaded(directory)).abs().max()
    assert 0 < difference < most
    again = gguf_of(Path(resolve_model(str(file))), tmp_path / "again.gguf", kind)
    assert torch.equal(loaded(resolve_model(str(again))), loaded(resolve_model(str(file)))) or kind == "q8_0"


@pytest.mark.parametrize(
    ("name", "fields"),  # transformers does not read the last two from a file
    [
        ("llama", {}),
        ("llama, untied", {}),
        ("qwen2", {}),
        ("qwen3", {"head_dim": 128}),
        ("gemma3", {"head_dim": 256, "query_pre_attn_scalar": 256}),
    ],
)
def test_transformers_and_the_package_gguf_read_the_same(name, fields, tmp_path):
    directory = saved_model(name, tmp_path / "model", **fields)
    file = gguf_of(directory, tmp_path / "mine.gguf")
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file=file.name, dtype=torch.float32)
    assert torch.allclose(logits_of(theirs), loaded(directory), atol=1e-4)
    reader = GGUFReader(file)
    assert reader.fields["general.architecture"].contents() == name.partition(",")[0]
    tokens = reader.fields["tokenizer.ggml.tokens"].contents()
    assert len(tokens) == SHAPE["vocab_size"]
    assert tokens[reader.fields["tokenizer.ggml.eos_token_id"].contents()] == "<|im_end|>"


@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3", "gemma3"])
def test_an_adapter_is_the_difference_of_the_merged_and_the_base_model(name, tmp_path):
    directory = saved_model(name, tmp_path / "model")
    policy = PolicyModel(str(directory), LoraSettings(4, 6.0))
    perturb_adapter(policy)
    save_adapter(tmp_path / "adapter", policy, str(directory))
    merged = PeftModel.from_pretrained(
        AutoModelForCausalLM.from_pretrained(directory), tmp_path / "adapter"
    ).merge_and_unload()
    write_model(merged, AutoTokenizer.from_pretrained(directory), tmp_path / "merged.gguf", "f32", "merged")
    config = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    own = AutoConfig.from_pretrained(directory).to_dict()
    write_adapter_gguf(read_weights(tmp_path / "adapter"), config, own, tmp_path / "lora.gguf", "f32")
    lora = GGUFReader(tmp_path / "lora.gguf")
    assert {key: lora.fields[key].contents() for key in lora.fields if "adapter" in key} == {
        "adapter.type": "lora",
        "adapter.lora.alpha": 6.0,
    }
    assert lora.fields["general.type"].contents() == "adapter"
    factors = {one.name: one.data for one in lora.tensors}
    base = tensors_in(gguf_of(directory, tmp_path / "base.gguf"))
    changes = 0
    for key, there in tensors_in(tmp_path / "merged.gguf").items():
        update = np.zeros_like(there)
        if f"{key}.lora_a" in factors:
            update = 6.0 / 4 * factors.pop(f"{key}.lora_b") @ factors.pop(f"{key}.lora_a")
            changes += 1
        assert np.allclose(base[key] + update, there, atol=1e-5), key
    assert changes == 7 * own["num_hidden_layers"]
    assert not factors


def tensors_in(file: Path) -> dict[str, np.ndarray]:
    return {one.name: dequantize(one.data, one.tensor_type) for one in GGUFReader(file).tensors}


PIECES = [*"aei nst12<>|_/[]:\n\r\t'日é😀", "Yes", "<s>", "<eos>", "<|im_end|>", "  ", "Is it so? ", "12345"]
WRITTEN = {
    *("ChatML whose end of text is no end of turn", "Llama 3", "Llama 2", "Gemma", "Zephyr, legacy"),
    *("ChatML on Mistral, legacy", "Gemma's turns on Llama 2", "Vicuna, legacy", "Alpaca, legacy"),
}


@pytest.mark.parametrize("family", TOKENIZERS)
def test_a_tokenizer_gives_the_same_ids_after_out_and_in_or_is_refused(family):
    own = TOKENIZERS[family]()
    if family not in WRITTEN:
        with pytest.raises(InputError, match=r"^--gguf: the tokenizer of .* splits text in a way of its own"):
            metadata_of_tokenizer(own, len(own), family)
        return
    metadata = metadata_of_tokenizer(own, len(own) + 5, family)
    check_vocabulary(metadata, family)
    read = tokenizer_of(metadata)

    @settings(max_examples=100, deadline=None)
    @given(st.lists(st.sampled_from(PIECES)).map("".join))
    def same(text: str) -> None:
        ids = own(text).input_ids
        assert read(text).input_ids == ids
        assert read.decode(ids).lstrip(" ") == own.decode(ids).lstrip(" ")

    same()
    assert read.chat_template == own.chat_template
    said = [{"role": "user", "content": "Yes. </s> 12"}]
    assert read.apply_chat_template(said)["input_ids"] == own.apply_chat_template(said)["input_ids"]


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return gguf_of(tiny_model("llama"), tmp_path_factory.mktemp("gguf") / "tiny.gguf", "f16")


@pytest.fixture(scope="module")
def content(file):
    return file.read_bytes()


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_a_file_that_is_cut_or_changed_is_one_line_or_harmless(content, tmp_path_factory, data):
    place = tmp_path_factory.getbasetemp() / "damaged.gguf"
    header = content.index(b"tokenizer.ggml.tokens")
    at = data.draw(st.integers(0, header))
    if data.draw(st.booleans()):
        place.write_bytes(content[: data.draw(st.integers(0, len(content) - 1))])
        with pytest.raises(InputError, match="damaged or truncated") as caught:
            check_model_name(str(place))
        assert "\n" not in str(caught.value)
        return
    place.write_bytes(content[:at] + data.draw(st.binary(min_size=1, max_size=8)) + content[at + 8 :])
    with contextlib.suppress(InputError):
        check_model_name(str(place))


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        (
            {"general__architecture": "mamba"},
            r"has the architecture 'mamba', .* converts llama, qwen2, qwen3",
        ),
        ({"llama__rope__scaling__type": "yarn"}, "sets rope.scaling.type to 'yarn'"),
        ({"llama__expert_count": 8}, "sets llama.expert_count to 8"),
        ({"llama__block_count": None}, "has no llama.block_count"),
        ({"llama__attention__value_length": 16}, "heads of several sizes"),
        ({"tokenizer__ggml__model": "bert"}, "has the tokenizer 'bert'"),
        ({"tokenizer__ggml__pre": "mine"}, "splits text like 'mine'"),
        ({"tokenizer__ggml__token_type": None}, "has only a part of its tokenizer"),
        ({"tokenizer__ggml__eos_token_id": 99999}, "has an impossible tokenizer.ggml.eos_token_id"),
    ],
)
def test_what_cannot_be_converted_is_said_at_once(file, tmp_path, changes, problem):
    place = changed(file, tmp_path / "other.gguf", **changes)
    with pytest.raises(InputError, match=problem) as caught:
        check_model_name(str(place))
    assert "\n" not in str(caught.value)
    assert caught.value.fix


def test_a_tensor_that_is_missing_is_one_line(file, tmp_path):
    place = changed(file, tmp_path / "other.gguf", llama__block_count=3)
    with pytest.raises(InputError, match=r"has no blk.2.* as its metadata say"):
        resolve_model(str(place))
    place = changed(file, tmp_path / "fewer.gguf", llama__block_count=1)
    with pytest.raises(InputError, match=r"has the tensor blk.1.*, which sparring cannot convert"):
        resolve_model(str(place))


def test_a_directory_and_parts_are_one_model(file, tmp_path):
    changed(file, tmp_path / "mine.gguf", split=7)
    parts = sorted(tmp_path.glob("mine-*.gguf"))
    assert len(parts) == 3
    whole = loaded(resolve_model(str(file)))
    for name in (tmp_path, *parts):
        check_model_name(str(name))
        assert torch.equal(loaded(resolve_model(str(name))), whole)
    parts[1].unlink()
    with pytest.raises(InputError, match=r"mine-00002-of-00003.gguf is missing. Put all parts into one"):
        check_model_name(str(parts[0]))
    shutil.copy(file, tmp_path / "another.gguf")
    with pytest.raises(InputError, match=r"holds several GGUF models. Name one of its files, such as .*gguf"):
        check_model_name(str(tmp_path))


def test_a_file_is_converted_once_and_again_if_the_copy_is_damaged(file, cache):
    said: list[str] = []
    assert model_directory(str(file)) is None
    place = Path(resolve_model(str(file), said.append))
    assert said == [f"converting tiny.gguf to {place} (once)"]
    assert place.parent == cache
    assert model_directory(str(file)) == place
    before = fingerprint(str(file))
    assert before
    assert resolve_model(str(file), said.append) == str(place)
    assert len(said) == 1
    weights = place / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    assert resolve_model(str(file), said.append) == str(place)
    assert "does not match its hashes" in said[1]
    assert fingerprint(str(file)) == before
    (place / "sha256.json").unlink()
    with pytest.raises(InputError, match=r"is not a model that sparring converted. Move it away"):
        resolve_model(str(file))
    assert weights.exists()


def test_a_chat_template_beside_the_file_is_its_own(file, tmp_path):
    shutil.copy(file, tmp_path / "tiny.gguf")
    first = resolve_model(str(tmp_path / "tiny.gguf"))
    (tmp_path / "chat_template.jinja").write_text("mine")
    second = resolve_model(str(tmp_path / "tiny.gguf"))
    assert second != first
    assert AutoTokenizer.from_pretrained(second).chat_template == "mine"
    assert AutoTokenizer.from_pretrained(first).chat_template != "mine"


@pytest.mark.parametrize("family", ["Mistral, no window", "Gemma 2", "Phi-3", "Qwen3-MoE"])
def test_a_model_of_another_architecture_is_not_written(family, tmp_path):
    with pytest.raises(InputError, match=r"which sparring cannot convert. It converts llama, qwen2, qwen3"):
        gguf_of(family_model(family), tmp_path / "mine.gguf")


@pytest.mark.parametrize(
    ("name", "fields", "problem"),
    [
        ("llama", {"rope_parameters": {**LINEAR, "rope_type": "dynamic"}}, "rope_parameters"),
        ("llama", {"hidden_act": "gelu"}, "hidden_act"),
        ("gemma3", {"query_pre_attn_scalar": 99}, "query_pre_attn_scalar"),
        ("gemma3", {"layer_types": ["full_attention"] * 7}, "layer_types"),
        ("gemma3", {"final_logit_softcapping": 30.0}, "final_logit_softcapping"),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1}, "layer_types"),
    ],
)
def test_a_setting_that_a_file_would_not_say_is_refused(name, fields, problem, tmp_path):
    directory = saved_model(name, tmp_path / "model", **fields)
    with pytest.raises(InputError, match=rf"^--gguf: tiny sets {problem} to .*, which GGUF would not say"):
        gguf_of(directory, tmp_path / "mine.gguf")


def test_an_adapter_is_no_model(tmp_path):
    policy = PolicyModel(str(tiny_model("llama")), LoraSettings(4, 8.0))
    save_adapter(tmp_path / "adapter", policy, "some/base")
    with pytest.raises(InputError, match=r"is an adapter, not a model. Name its base model \('some/base'\)"):
        check_model_name(str(tmp_path / "adapter"))
