"""Gradients of model families with sliding windows, sinks or latent attention, against transformers and peft.

Prompts are longer than the windows of 32 tokens. The tree goes through the model whole, and in sections that
are shorter than a window.
"""

import pytest
import torch
from peft import LoraConfig, get_peft_model, set_peft_model_state_dict
from transformers import AutoModelForCausalLM
from transformers.utils import logging as transformers_logging

from family_models import family_model
from matrices import first_of
from sparring.learn.logprobs import PassLimits, plan_logprobs
from sparring.learn.memory import KeptMemory
from sparring.learn.policy import TRAINED, LoraSettings, PolicyModel
from sparring.learn.trie import build_plan
from tiny_models import perturb_adapter

pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
transformers_logging.disable_progress_bar()

FAMILIES = [
    "Gemma 2",
    "Gemma 3",
    "Mistral, window of 32",
    "Phi-3, window of 32",
    "Qwen2, window of 32",
    "Cohere 2",
    "EXAONE 4",
    "gpt-oss",
    "DeepSeek-V3",
]
PROMPT = list(range(40, 90))
ANSWERS = [[7, 8, 9, *range(100, 112)], [7, 10, 11, 12], [13]]
WEIGHTS = [0.7, -1.3, 0.4]


def gradients_of(model: torch.nn.Module) -> torch.Tensor:
    found = [p.grad.flatten() for _, p in sorted(model.named_parameters()) if p.grad is not None]
    return torch.cat(found)


def plain_gradients(policy: PolicyModel, family: str) -> torch.Tensor:
    """Return the gradients of the weighted log-probabilities, one sequence at a time."""
    base = AutoModelForCausalLM.from_pretrained(family_model(family), attn_implementation="eager")
    lora = LoraConfig(r=4, lora_alpha=8.0, target_modules=policy.lora.target_modules, task_type="CAUSAL_LM")
    model = get_peft_model(base, lora).eval()
    set_peft_model_state_dict(model, policy.adapter_state())
    for answer, weight in zip(ANSWERS, WEIGHTS, strict=True):
        logits_TV = model(input_ids=torch.tensor([PROMPT + answer])).logits[0, len(PROMPT) - 1 : -1]
        logprobs_TV = torch.log_softmax(logits_TV.float(), dim=-1)
        (weight * logprobs_TV.gather(1, torch.tensor(answer)[:, None]).sum()).backward()
    return gradients_of(model)


@pytest.mark.parametrize("family", first_of([*FAMILIES], 3))
def test_gradients_of_a_family_are_those_of_its_sequences_one_by_one(family):
    policy = PolicyModel(str(family_model(family)), LoraSettings(4, 8.0))
    perturb_adapter(policy)
    expected = plain_gradients(policy, family)
    plan = build_plan([PROMPT] * 3, ANSWERS)
    weight_S = torch.cat([torch.full((len(a),), w) for a, w in zip(ANSWERS, WEIGHTS, strict=True)])
    for max_tokens in (4096, 20):
        policy.model.zero_grad()
        limits = PassLimits(max_tokens, KeptMemory(policy, TRAINED))
        logprobs_C = plan_logprobs(policy, plan, limits=limits)
        (weight_S * logprobs_C[torch.from_numpy(plan.prediction_S)]).sum().backward()
        found = gradients_of(policy.model)
        assert found.shape == expected.shape
        assert float((found - expected).norm() / expected.norm()) < 1e-4
