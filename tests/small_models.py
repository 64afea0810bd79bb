"""A random Llama that vLLM's CPU attention takes: its heads have 32 numbers at least."""

import functools
import tempfile
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from sparring.learn.checkpoints import save_adapter
from sparring.learn.policy import LoraSettings, PolicyModel
from tiny_models import CONTEXT_LENGTH, perturb_adapter, tiny_model

_DIRECTORY = tempfile.TemporaryDirectory(prefix="sparring-small-models-")


@functools.cache
def small_model(context: int = CONTEXT_LENGTH) -> Path:
    """Save a Llama of 2 layers, hidden size 64, 2 heads on 1 key-value head, in float32."""
    directory = Path(_DIRECTORY.name) / f"llama-{context}"
    config = LlamaConfig.from_pretrained(tiny_model("llama"))
    config.update({"hidden_size": 64, "intermediate_size": 96, "head_dim": 32})
    config.update({"num_attention_heads": 2, "num_key_value_heads": 1, "initializer_range": 0.2})
    config.update({"max_position_embeddings": context})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        LlamaForCausalLM(config).save_pretrained(directory)
    for file in tiny_model("llama").glob("*token*"):
        (directory / file.name).write_bytes(file.read_bytes())
    for file in tiny_model("llama").glob("*.jinja"):
        (directory / file.name).write_bytes(file.read_bytes())
    return directory


def small_policy() -> PolicyModel:
    """The model with an adapter of rank 4 that was never trained."""
    return PolicyModel(str(small_model()), LoraSettings(4, 8.0))


def saved_adapter(policy: PolicyModel, directory: Path, seed: int | None) -> Path:
    """Give the policy's adapter random weights (as it is without a seed) and save it."""
    if seed is not None:
        perturb_adapter(policy, seed=seed)
    save_adapter(directory, policy, "small")
    return directory
