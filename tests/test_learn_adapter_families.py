"""An adapter of every family that trains: what is written is read back, by us and by plain PEFT."""

from pathlib import Path

import pytest
import torch
from peft import PeftModel
from rich.console import Console
from transformers import AutoModelForCausalLM

from family_models import FAMILIES, family_model
from sparring.commands.export import export
from sparring.engine.engine import EmbeddedEngine
from sparring.engine.published_adapters import PublishedAdapters
from sparring.learn.checkpoints import (
    SavedLearner,
    check_lora_shape,
    load_adapter,
    load_checkpoint,
    save_checkpoint,
)
from sparring.learn.logprobs import plan_logprobs
from sparring.learn.policy import TRAINED, LoraSettings, PolicyModel
from sparring.learn.trie import build_plan
from tiny_models import perturb_adapter

pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")

TOKENS = [40 + 7 * place % 200 for place in range(16)]
# Families whose layers have other names than LoRA's targets by default.
TARGETS = {
    "Phi-3": ["qkv_proj", "o_proj", "gate_up_proj", "down_proj"],
    "Phi": ["q_proj", "dense", "fc1", "fc2"],
    "GPT-NeoX": ["query_key_value", "dense", "dense_h_to_4h"],
    "GPT-2": ["c_attn", "c_proj"],
    "GPT-BigCode": ["c_attn", "c_proj", "c_fc"],
    "Persimmon": ["query_key_value", "dense"],
    "OPT": ["q_proj", "out_proj", "fc1"],
    "StarCoder 2": ["q_proj", "c_fc", "c_proj"],
    "JetMoE": ["kv_proj"],
}
# What cannot be trained is not saved; test_learn_load_check.py says which and why.
UNTRAINED = {
    "StableLM",
    "Nemotron",
    "Doge",
    "Llama 4",
    "Qwen3-Next",
    "LFM2",
    "Falcon-H1",
    "Bamba",
    "Granite 4 (hybrid)",
    "MiniMax",
    "GPT-Neo",
    "RecurrentGemma",
    "Mamba 2",
}


def policy_of(family: str, targets: list[str] | None) -> PolicyModel:
    lora = LoraSettings(3, 7.0) if targets is None else LoraSettings(3, 7.0, targets)
    return PolicyModel(str(family_model(family)), lora)


def own_logprobs(policy: PolicyModel, adapter: str = TRAINED) -> torch.Tensor:
    with torch.no_grad(), policy.adapter(adapter):
        return plan_logprobs(policy, build_plan([TOKENS[:1]], [TOKENS[1:]]))


def logprobs_of(model) -> torch.Tensor:
    with torch.no_grad():
        logits_TV = model.eval()(input_ids=torch.tensor([TOKENS])).logits[0, :-1].float()
    return torch.log_softmax(logits_TV, dim=-1).gather(1, torch.tensor(TOKENS[1:])[:, None])[:, 0]


def plain(directory: Path):
    return AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)


def assert_close(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


# One of every way to name layers and to store experts; the other families are slow.
QUICK = {"Llama", "DeepSeek-V3", "Phi-3", "GPT-2"}
EXPERTS = ["gate_proj", "up_proj", "down_proj"]
"""Layers for which PEFT leaves nothing in target_modules if all of them are stacked experts."""
ALL = [
    pytest.param(name, TARGETS.get(name), marks=[] if name in QUICK else pytest.mark.slow)
    for name in FAMILIES
    if name not in UNTRAINED
]
ALL += [pytest.param("Qwen3-MoE", EXPERTS), pytest.param("GLM 4.5", EXPERTS, marks=pytest.mark.slow)]


@pytest.mark.parametrize(("family", "targets"), ALL)
async def test_what_is_saved_is_read_back_with_the_same_log_probabilities(family, targets, tmp_path):
    base = family_model(family)
    policy = policy_of(family, targets)
    untrained = own_logprobs(policy)
    perturb_adapter(policy)
    trained = own_logprobs(policy)
    assert float((trained - untrained).abs().max()) > 0.01, "or the test could not tell them apart"
    state = {"step": 1}
    learner = SavedLearner(TRAINED, TRAINED, {"weights.x": torch.zeros(1)})
    directory = tmp_path / "step-000001"
    save_checkpoint(directory, policy, str(base), [learner], state)

    resumed = policy_of(family, targets)
    check_lora_shape(directory, load_adapter(directory)[1], resumed)
    resumed.load_adapter_state(load_checkpoint(directory).adapters[TRAINED])
    assert_close(own_logprobs(resumed), trained)

    server = PolicyModel(str(base), LoraSettings(1, 1.0, policy.lora.target_modules))
    engine = EmbeddedEngine(server)
    PublishedAdapters(engine).publish("mine", directory)
    assert_close(torch.tensor(engine.logprobs(TOKENS, model="mine")), trained)
    engine.close()

    assert_close(logprobs_of(PeftModel.from_pretrained(plain(base), directory)), trained)
    export(str(directory), tmp_path / "merged", merge=True, policy=None, console=Console(quiet=True))
    assert_close(logprobs_of(plain(tmp_path / "merged")), trained)
