"""Exported GGUF files run by llama.cpp: the ids of texts, and what it answers at temperature 0."""

import json

import pytest
import torch
from peft import PeftModel
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from sparring.core.adapters import ADAPTER_CONFIG
from sparring.learn.adapter_weights import read_weights
from sparring.learn.checkpoints import save_adapter
from sparring.learn.gguf.writing import write_adapter_gguf, write_model
from sparring.learn.policy import LoraSettings, PolicyModel
from tiny_models import perturb_adapter
from tokenizer_families import FAMILIES

TEXTS = [
    "Is it so? Indeed.",
    "  for two in range(10):\n\n\n12345",
    "Grüße, 日本語 😀",
    "<b> a_b & [4]\r\n",
    " ",
    "Yes",
]
ANSWER = 20
SHAPE = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 7,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 512,
    "initializer_range": 0.2,
    "tie_word_embeddings": True,
}
MODELS = {
    "llama": ("Llama 3", {"head_dim": 32}),
    "qwen2": ("ChatML whose end of text is no end of turn", {}),
    "qwen3": ("ChatML whose end of text is no end of turn", {"head_dim": 64}),
    "gemma3_text": ("Gemma", {"head_dim": 64, "query_pre_attn_scalar": 64, "sliding_window": 8}),
}


@pytest.mark.parametrize("kind", MODELS)
def test_llama_cpp_answers_as_transformers_do(kind, run_in, tmp_path):
    family, fields = MODELS[kind]
    tokenizer = FAMILIES[family]()
    torch.manual_seed(0)
    ends = {"eos_token_id": tokenizer.eos_token_id, "bos_token_id": None, "pad_token_id": None}
    config = AutoConfig.for_model(kind, **SHAPE, **fields, **ends, vocab_size=len(tokenizer))
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "base")
    tokenizer.save_pretrained(tmp_path / "base")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "base")  # for Qwen2, with Qwen's own split
    policy = PolicyModel(str(tmp_path / "base"), LoraSettings(4, 8.0))
    perturb_adapter(policy)
    save_adapter(tmp_path / "adapter", policy, str(tmp_path / "base"))
    base = AutoModelForCausalLM.from_pretrained(tmp_path / "base", dtype=torch.float32).eval()
    write_model(base, tokenizer, tmp_path / "base.gguf", "f32", "base")
    adapter = json.loads((tmp_path / "adapter" / ADAPTER_CONFIG).read_text())
    weights = read_weights(tmp_path / "adapter")
    write_adapter_gguf(weights, adapter, base.config.to_dict(), tmp_path / "lora.gguf", "f32")
    ids = [tokenizer(text, add_special_tokens=False).input_ids for text in TEXTS]
    prompts = [one for one in ids if len(one) > 4]
    asked = json.dumps({"texts": TEXTS, "prompts": prompts})
    before = run_in("llama-cpp", "llama_cpp", tmp_path / "base.gguf", "", asked)
    assert before["ids"] == ids
    assert before["continued"] == [continued(base, prompt) for prompt in prompts]
    with_lora = run_in("llama-cpp", "llama_cpp", tmp_path / "base.gguf", tmp_path / "lora.gguf", asked)
    merged = PeftModel.from_pretrained(base, tmp_path / "adapter").merge_and_unload()
    expected = [continued(merged, prompt) for prompt in prompts]
    assert with_lora["continued"] == expected != before["continued"]
    write_model(merged, tokenizer, tmp_path / "merged.gguf", "f32", "merged")
    assert run_in("llama-cpp", "llama_cpp", tmp_path / "merged.gguf", "", asked)["continued"] == expected


@torch.inference_mode()
def continued(model, prompt):
    """Return the likeliest tokens one after the other, whatever ends an answer."""
    ids = list(prompt)
    for _ in range(ANSWER):
        ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
    return ids[len(prompt) :]
