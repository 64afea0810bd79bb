"""The same weights loaded by plain transformers and peft, as a baseline for comparisons."""

from typing import Any

import torch
from peft import LoraConfig, get_peft_model, set_peft_model_state_dict
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForCausalLM

from record_batches import disturb_adapter, load_policy
from sparring.learn.policy import ALL_LINEAR, PolicyModel


def load_both(dtype: torch.dtype) -> tuple[PolicyModel, Any]:
    """Return our model and the plain one, with the same base and the same adapter, which is not zero."""
    policy = load_policy(dtype)
    disturb_adapter(policy)
    base = AutoModelForCausalLM.from_pretrained(policy.model_name, dtype=dtype, attn_implementation="sdpa")
    config = LoraConfig(r=16, lora_alpha=32, target_modules=list(ALL_LINEAR), task_type="CAUSAL_LM")
    model = get_peft_model(base, config)
    set_peft_model_state_dict(model, policy.adapter_state())
    return policy, model.train()


def pad(rows: list[list[int]], *, left: bool) -> tuple[Tensor, Tensor]:
    """Return (ids, mask), both [rows, longest]."""
    side = "left" if left else "right"
    ids = pad_sequence([torch.tensor(row) for row in rows], batch_first=True, padding_side=side)
    ones = [torch.ones(len(row), dtype=torch.long) for row in rows]
    return ids, pad_sequence(ones, batch_first=True, padding_side=side)
