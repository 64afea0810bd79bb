"""Tiny random models of many families, with the byte tokenizer of ``tiny_models``."""

import functools
import tempfile
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from tiny_models import tiny_model

_DIRECTORY = tempfile.TemporaryDirectory(prefix="sparring-model-families-")

CONTEXT_LENGTH = 4096
SHAPE = {
    "vocab_size": 259,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": CONTEXT_LENGTH,
    "initializer_range": 0.2,
    "tie_word_embeddings": True,
    "pad_token_id": None,
    "bos_token_id": None,
}
MOE = {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
MLA = {
    "q_lora_rank": 12,
    "kv_lora_rank": 12,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 8,
    "v_head_dim": 10,
    "num_key_value_heads": 4,
    "n_routed_experts": 4,
    "n_group": 1,
    "topk_group": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "first_k_dense_replace": 1,
}
MAMBA = {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 8, "mamba_n_groups": 1, "mamba_d_ssm": 64}
LONG_ROPE = {
    "rope_type": "longrope",
    "short_factor": [1.0] * 4,
    "long_factor": [2.0] * 4,
    "original_max_position_embeddings": 2048,
    "rope_theta": 10_000.0,
}
DYNAMIC_ROPE = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10_000.0}
SLIDING = {"layer_types": ["sliding_attention", "full_attention"] * 2}

PER_LAYER_INPUT = {"vocab_size_per_layer_input": 259, "hidden_size_per_layer_input": 8}
ROUTED = {**MOE, "n_routed_experts": 4, "n_group": 1, "topk_group": 1}

# Family: (model type, settings besides SHAPE). A prompt of Kuhn poker has several hundred tokens.
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "Llama": ("llama", {}),
    "Qwen2": ("qwen2", {}),
    "Qwen2, window of 32": ("qwen2", {"use_sliding_window": True, "sliding_window": 32, **SLIDING}),
    "Qwen3": ("qwen3", {}),
    "Qwen2-MoE": ("qwen2_moe", {**MOE, "shared_expert_intermediate_size": 16}),
    "Qwen3-MoE": ("qwen3_moe", MOE),
    "Mistral, no window": ("mistral", {"sliding_window": None}),
    "Mistral, window of 4,096": ("mistral", {"sliding_window": 4096}),
    "Mistral, window of 32": ("mistral", {"sliding_window": 32}),
    "Ministral, window of 32": ("ministral", {"sliding_window": 32, **SLIDING}),
    "Mixtral": ("mixtral", {**MOE, "sliding_window": None}),
    "DeepSeek-V2": ("deepseek_v2", MLA),
    "DeepSeek-V3": ("deepseek_v3", {**MLA, "head_dim": 4}),
    "Gemma 1": ("gemma", {}),
    "Gemma 2": ("gemma2", {"sliding_window": 32, "query_pre_attn_scalar": 8}),
    "Gemma 3": ("gemma3_text", {"sliding_window": 32, "query_pre_attn_scalar": 8}),
    "Phi": ("phi", {}),
    "Phi-3": ("phi3", {}),
    "Phi-3, window of 32": ("phi3", {"sliding_window": 32}),
    "Phi-3, longrope": ("phi3", {"rope_parameters": LONG_ROPE, "original_max_position_embeddings": 2048}),
    "Phi-3.5-MoE": ("phimoe", MOE),
    "OLMo": ("olmo", {}),
    "OLMo 2": ("olmo2", {}),
    "OLMo 3": ("olmo3", {"sliding_window": 32, **SLIDING}),
    "OLMoE": ("olmoe", MOE),
    "SmolLM3": ("smollm3", {"no_rope_layers": [1, 1, 1, 0]}),
    "Granite": ("granite", {"logits_scaling": 8.0, "embedding_multiplier": 6.0, "residual_multiplier": 0.5}),
    "Granite-MoE": ("granitemoe", {**MOE, "logits_scaling": 6.0}),
    "EXAONE MoE": ("exaone_moe", {**ROUTED, "sliding_window": 32, **SLIDING}),
    "EXAONE 4": ("exaone4", {"sliding_window": 32, **SLIDING}),
    "GLM 4": ("glm4", {}),
    "GLM 4.5": ("glm4_moe", ROUTED),
    "GLM 4.7 Flash": ("glm4_moe_lite", MLA),
    "Apertus": ("apertus", {}),
    "Cohere": ("cohere", {"logit_scale": 0.25}),
    "Cohere 2": ("cohere2", {"logit_scale": 0.25, "sliding_window": 32, **SLIDING}),
    "StarCoder 2": ("starcoder2", {"sliding_window": 32}),
    "Seed-OSS": ("seed_oss", {}),
    "ERNIE 4.5": ("ernie4_5", {}),
    "ERNIE 4.5 MoE": (
        "ernie4_5_moe",
        {**MOE, "moe_num_experts": 4, "moe_k": 2, "moe_layer_start_index": 1, "moe_num_shared_experts": 1},
    ),
    "FlexOlmo": ("flex_olmo", MOE),
    "Hunyuan MoE": ("hunyuan_v1_moe", {**MOE, "moe_topk": 2}),
    "MiniMax-M2": ("minimax_m2", MOE),
    "Solar Open": ("solar_open", ROUTED),
    "Granite-MoE, shared experts": ("granitemoeshared", {**MOE, "shared_intermediate_size": 16}),
    "Ministral 3": ("ministral3", {}),
    "Arcee": ("arcee", {}),
    "OPT": ("opt", {}),
    "Persimmon": ("persimmon", {}),
    "GPT-BigCode": ("gpt_bigcode", {}),
    "VaultGemma": ("vaultgemma", {}),
    "nanochat": ("nanochat", {}),
    "Helium": ("helium", {}),
    "StableLM": ("stablelm", {}),
    "Nemotron": ("nemotron", {}),
    "GPT-NeoX": ("gpt_neox", {}),
    "GPT-2": ("gpt2", {}),
    "Llama, dynamic rope": ("llama", {"rope_parameters": DYNAMIC_ROPE}),
    "gpt-oss": ("gpt_oss", {**MOE, "sliding_window": 32, "initializer_range": 0.1}),
    "Doge": ("doge", {"keep_window_size": 16}),
    "Llama 4": ("llama4_text", {**MOE, "intermediate_size_mlp": 48, "attention_chunk_size": 8192}),
    "Llama 4, chunks of 16": (
        "llama4_text",
        {**MOE, "intermediate_size_mlp": 48, "attention_chunk_size": 16, "attn_temperature_tuning": False},
    ),
    "Qwen3-Next": (
        "qwen3_next",
        {
            **MOE,
            "shared_expert_intermediate_size": 16,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "linear_key_head_dim": 8,
            "linear_value_head_dim": 8,
        },
    ),
    "LFM2": ("lfm2", {"layer_types": ["conv", "full_attention"] * 2, "block_auto_adjust_ff_dim": False}),
    "Falcon-H1": ("falcon_h1", MAMBA),
    "Bamba": ("bamba", {**MAMBA, "attn_layer_indices": [1, 3]}),
    "Granite 4 (hybrid)": (
        "granitemoehybrid",
        {**MAMBA, **MOE, "shared_intermediate_size": 16, "layer_types": ["mamba", "attention"] * 2},
    ),
    "MiniMax": ("minimax", {**MOE, "layer_types": ["linear_attention", "full_attention"] * 2}),
    "AFMoE": ("afmoe", {**MOE, "sliding_window": 32, **SLIDING}),
    "JetMoE": ("jetmoe", {**MOE, "kv_channels": 8}),
    "CWM": ("cwm", {"sliding_window": 32, "bos_token_id": 1, **SLIDING}),
    "Dots 1": (
        "dots1",
        {**ROUTED, "n_shared_experts": 1, "first_k_dense_replace": 1, "sliding_window": 32, **SLIDING},
    ),
    "Gemma 3n": (
        "gemma3n_text",
        {
            "intermediate_size": [48] * 4,
            "activation_sparsity_pattern": [0.95, 0.95, 0.0, 0.0],
            "num_kv_shared_layers": 2,
            "laurel_rank": 4,
            **PER_LAYER_INPUT,
            "sliding_window": 32,
            **SLIDING,
        },
    ),
    "Gemma 4": (
        "gemma4_text",
        {"num_kv_shared_layers": 2, "global_head_dim": 8, **PER_LAYER_INPUT, "sliding_window": 32, **SLIDING},
    ),
    "Gemma 4, experts": (
        "gemma4_text",
        {
            **MOE,
            "enable_moe_block": True,
            "top_k_experts": 2,
            "global_head_dim": 8,
            **PER_LAYER_INPUT,
            "sliding_window": 32,
            **SLIDING,
        },
    ),
    "BioGPT": ("biogpt", {}),
    "GPT-J": ("gptj", {"rotary_dim": 8}),
    "GPT-Neo": ("gpt_neo", {"attention_types": [[["global", "local"], 2]], "num_layers": 4}),
    "RecurrentGemma": ("recurrent_gemma", {"lru_width": 32, "attention_window_size": 32}),
    "Mamba 2": ("mamba2", {"num_heads": 8, "head_dim": 8, "expand": 2, "n_groups": 1, "state_size": 8}),
}


def moved_model(config: PretrainedConfig) -> PreTrainedModel:
    """Return a random model whose every parameter is moved by noise.

    What families set to 0 or 1 at first (norms, biases, sinks) counts too.
    """
    generator = torch.Generator().manual_seed(0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.05 * torch.randn(parameter.shape, generator=generator)
    return model


@functools.cache
def family_model(family: str) -> Path:
    """Save a random model of the family, moved by noise; return its directory."""
    kind, settings = FAMILIES[family]
    directory = Path(_DIRECTORY.name) / family.replace(" ", "-")
    moved_model(AutoConfig.for_model(kind, **(SHAPE | settings))).save_pretrained(directory)
    for file in [*tiny_model("llama").glob("*token*"), *tiny_model("llama").glob("*.jinja")]:
        (directory / file.name).write_bytes(file.read_bytes())
    return directory
