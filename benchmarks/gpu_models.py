"""The models, plans and engines of gpu_check.py."""

import functools
import importlib.util
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from peft import get_peft_model, set_peft_model_state_dict
from transformers import AutoModelForCausalLM

from memory_formulas import SHAPES
from memory_model import save_random_model
from sparring.core import Messages
from sparring.core.adapters import Quantization
from sparring.engine.engine import EmbeddedEngine
from sparring.learn.policy import TRAINED, LoraSettings, PolicyModel
from sparring.learn.trie import TreePlan, build_plan

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from tiny_models import perturb_adapter, roomy_model, text_prompt

_DIRECTORY = tempfile.TemporaryDirectory(prefix="sparring-gpu-models-")
HEAD_SIZE = 16
"""Size of the tiny model's heads: on GPUs, torch's flex_attention takes no smaller ones."""
VOCABULARY = 200
"""Token ids of plans are below this: every model here has as many."""


def describe(device: str) -> str:
    """Return the name of a device."""
    return "a CPU" if device == "cpu" else torch.cuda.get_device_name(torch.device(device))


def small_model() -> Path:
    """Return the directory of a tiny model."""
    return roomy_model(HEAD_SIZE)


def quantizations() -> list[Quantization]:
    """Return the ways to keep a base for which the packages are installed."""
    return ["none", "nf4"] if importlib.util.find_spec("bitsandbytes") else ["none"]


def small_policy(dtype: torch.dtype, device: str, quantization: Quantization = "none") -> PolicyModel:
    """Load the tiny model with an adapter that changes its answers."""
    shape = LoraSettings(4, 8.0)
    policy = PolicyModel(str(small_model()), shape, dtype=dtype, device=device, quantization=quantization)
    perturb_adapter(policy)
    return policy


@functools.cache
def large_policy(device: str, small: bool) -> PolicyModel:
    """Load a random model of Qwen3-0.6B's shape in bfloat16 with an adapter of rank 16."""
    if small:
        return small_policy(torch.bfloat16, device)
    return PolicyModel(str(large_model()), LoraSettings(16, 32.0), dtype=torch.bfloat16, device=device)


@functools.cache
def large_model() -> Path:
    """Save a random model of Qwen3-0.6B's shape; return its directory, which goes with this process."""
    directory = Path(_DIRECTORY.name) / "large"
    save_random_model(SHAPES["Qwen3-0.6B"], str(small_model()), directory)
    return directory


def plain(policy: PolicyModel) -> Any:
    """Load the policy's base and adapter with transformers and PEFT alone."""
    base = AutoModelForCausalLM.from_pretrained(
        policy.model_name, dtype=policy.dtype, attn_implementation="sdpa"
    )
    model = get_peft_model(base, LoraSettings.of(policy.adapter_config(TRAINED)).for_peft())
    set_peft_model_state_dict(model, policy.adapter_state(TRAINED))
    return model.to(policy.device).eval()


def tree(answers: int, prompt: int, length: int) -> TreePlan:
    """Return a plan of answers of this length to a prompt of this length, in random tokens."""
    draw = random.Random(0)
    ids = [draw.choices(range(VOCABULARY), k=count) for count in (prompt, *[length] * answers)]
    return build_plan([ids[0]] * answers, ids[1:])


def add_copies(policy: PolicyModel, count: int) -> list[str]:
    """Add frozen adapters of other weights; return the names of all adapters."""
    names = [f"copy-{number}" for number in range(count)]
    for number, name in enumerate(names):
        perturb_adapter(policy, name, seed=number + 2)
    return [TRAINED, *names]


def engine(policy: PolicyModel, names: list[str]) -> EmbeddedEngine:
    """Return an engine that serves these adapters."""
    serving = EmbeddedEngine(policy, max_tokens=16)
    for name in names:
        serving.publish(name, name, 0)
    return serving


def prompt(text: str) -> Messages:
    """Return a prompt whose tokens are the bytes of ``text``."""
    return text_prompt(text)
