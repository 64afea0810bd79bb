"""Checks that vLLM must pass before its answers are used. Log-probabilities are natural logarithms at
temperature 1."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM

from sparring.core import InputError, SparringError
from sparring.core.adapter_config import read_adapter_config
from sparring.core.adapters import ADAPTER_CONFIG, ADAPTER_FILE, ALL_LINEAR

NOT_SERVED_MODULES = {"lm_head", "embed_tokens"}
PROOF_RANK = 8

TopLogprobs = list[dict[int, float]]
"""For each drawn token, the most likely tokens and their log-probabilities."""


@dataclass(frozen=True)
class Probe:
    """A model's answer to the canary: its tokens, and the most likely tokens at each."""

    tokens: list[int]
    top: TopLogprobs


def distance(left: Probe, right: Probe) -> float:
    """Return the mean difference of the log-probabilities of the tokens that ``left`` lists, at places with
    the same tokens before. For a token that ``right`` does not list, the smallest possible difference counts.
    """
    differences: list[float] = []
    for place, (left_top, right_top) in enumerate(zip(left.top, right.top, strict=False)):
        if left.tokens[:place] != right.tokens[:place]:
            break
        unlisted = min(right_top.values())
        differences += [abs(here - right_top.get(token, unlisted)) for token, here in left_top.items()]
    return sum(differences) / len(differences)


def check_mixed_batch(
    base_alone: Probe, base_mixed: Probe, adapter_alone: Probe, adapter_mixed: Probe, tolerance: float
) -> None:
    """Check that the base model and an adapter do not affect each other in a batch. Raises SparringError:
    they do, or the adapter has no effect."""
    if distance(base_alone, adapter_alone) < 3 * tolerance:
        raise SparringError("this vLLM ignores LoRA adapters: an adapter answers like the base model")
    for who, off in (
        ("the base model", distance(base_alone, base_mixed)),
        ("an adapter", distance(adapter_alone, adapter_mixed)),
    ):
        if off > tolerance:
            raise SparringError(
                f"this vLLM mixes up adapters: {who} answers differently in a batch with others "
                f"(log-probabilities differ by {off:.2g}, rounding explains {tolerance:g}). On a CPU the "
                f"plugin sparring_cpu_lora fixes this: make sure that VLLM_PLUGINS does not exclude it"
            )


def check_adapter(directory: Path, max_rank: int) -> None:
    """Check an adapter's files before an engine loads them. Raises InputError: it cannot serve such an
    adapter."""
    config = read_adapter_config(directory)
    rank = max(config["r"], *(config.get("rank_pattern") or {"": 0}).values())
    if rank > max_rank:
        raise InputError("adapter", f"its rank is {rank}, the engine's {max_rank}", "Raise max_lora_rank.")
    not_served = [name for name in sorted(NOT_SERVED_MODULES) if name in config["target_modules"]]
    if not_served:
        raise InputError(
            "adapter", f"it changes {', '.join(not_served)}", "Train the linear layers of the blocks only."
        )
    if not _has_one_scale(config):
        raise InputError(
            "adapter", "its layers have several scales, and vLLM has one", "Use the engine of this package."
        )
    if not (directory / ADAPTER_FILE).is_file():
        raise InputError("adapter", f"{directory} has no {ADAPTER_FILE}", "Give a PEFT directory.")


def _has_one_scale(config: dict[str, Any]) -> bool:
    """Return whether the alpha of every layer is the same multiple of its rank; with rsLoRA, of its root."""
    ranks, alphas = (config.get(name) or {} for name in ("rank_pattern", "alpha_pattern"))
    if config.get("use_rslora"):
        return not ranks and not alphas
    rank, alpha = config["r"], config["lora_alpha"]
    layers = ranks.keys() | alphas.keys()
    return all(alphas.get(one, alpha) * rank == alpha * ranks.get(one, rank) for one in layers)


def write_random_adapter(model_name: str, directory: Path, modules: Sequence[str] = ALL_LINEAR) -> None:
    """Write an adapter whose effect on every layer is about as large as that of the base model's weights."""
    config = AutoConfig.from_pretrained(model_name, trust_remote_code=False)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    generator = torch.Generator().manual_seed(0)
    tensors: dict[str, torch.Tensor] = {}
    found: set[str] = set()
    for name, module in model.named_modules():
        ending = name.rpartition(".")[2]
        if ending in modules and isinstance(module, torch.nn.Linear):
            found.add(ending)
            outputs, inputs = module.weight.shape
            prefix = f"base_model.model.{name}"
            a_RI = torch.randn(PROOF_RANK, inputs, generator=generator) / inputs**0.5
            b_OR = torch.randn(outputs, PROOF_RANK, generator=generator) / (2 * PROOF_RANK**0.5)
            tensors |= {f"{prefix}.lora_A.weight": a_RI, f"{prefix}.lora_B.weight": b_OR}
    save_file(tensors, directory / ADAPTER_FILE)
    described = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": model_name}
    shape = {"r": PROOF_RANK, "lora_alpha": PROOF_RANK, "target_modules": sorted(found), "bias": "none"}
    (directory / ADAPTER_CONFIG).write_text(json.dumps(described | shape))
