"""Gradients of recipes beside those of TRL's own loss code, on a batch in which ratios differ and clips act.

TRL computes the log-probabilities of padded rows with transformers and peft, this package those of prefix
trees. TRL takes old log-probabilities and advantages as they are given, so both get the same.
"""

import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from peft import LoraConfig, get_peft_model, set_peft_model_state_dict
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer

from sparring.config import load_config
from sparring.core import TrainingRecord
from sparring.learn.algorithms import build_algorithm
from sparring.learn.policy import ALL_LINEAR, PolicyModel
from tiny_models import make_record, tiny_model, tiny_policy

M, RANK = 6, 4
PLAIN_K3 = {"use_bias_correction_kl": False}
"""By default, TRL multiplies k3 by the ratio and its gradient flows through both, as in DeepSeek-V3.2."""
Gradients = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Case:
    """A recipe with changes to its algorithm, and TRL's options for the same loss."""

    recipe: str
    trl: dict[str, Any]
    changes: dict[str, Any] = field(default_factory=dict)
    moved: bool = True
    """Whether the policy has moved since the batch was recorded."""


def kl_case(recipe: str, beta: float, **trl: Any) -> Case:
    """Return a case with a KL divergence after some steps."""
    return Case(recipe, PLAIN_K3 | {"beta": beta} | trl, {"kl_weight": beta})


CASES = {
    "grpo": Case("grpo", PLAIN_K3 | {"loss_type": "grpo", "beta": 0.04}, moved=False),
    "grpo with ratios": kl_case("grpo", 0.04, loss_type="grpo"),
    "dr_grpo": Case("dr_grpo", {"loss_type": "dr_grpo"}),
    "dr_grpo with KL": kl_case("dr_grpo", 0.4, loss_type="dr_grpo"),
    "dapo": Case("dapo", {"loss_type": "dapo", "epsilon_high": 0.28}),
    "dapo with KL": kl_case("dapo", 0.4, loss_type="dapo", epsilon_high=0.28),
    "gspo": Case(
        "gspo",
        {"loss_type": "grpo", "importance_sampling_level": "sequence", "epsilon": 3e-4, "epsilon_high": 4e-4},
    ),
    "gspo with wide bounds": Case(
        "gspo",
        {"loss_type": "grpo", "importance_sampling_level": "sequence", "epsilon": 0.1, "epsilon_high": 0.15},
        {"clip_low": 0.1, "clip_high": 0.15},
    ),
    # TRL's upper bound is that of the weight itself.
    "cispo": Case("cispo", {"loss_type": "cispo", "epsilon_high": 5.0}),
    "cispo with a low bound": Case("cispo", {"loss_type": "cispo", "epsilon_high": 1.2}, {"clip_high": 0.2}),
    "sapo": Case("sapo", {"loss_type": "sapo"}),
    "opsm": Case("opsm", {"loss_type": "grpo", "off_policy_mask_threshold": 0.1}, {"opsm_threshold": 0.1}),
    "rloo": Case("rloo", {}, moved=False),
    # TRL clips the ratio of a whole answer, for which there is no loss here: the bound is out of reach.
    "rloo with ratios": Case(
        "rloo",
        {"epsilon": 1e6},
        {"correction": "tis", "correction_level": "sequence", "max_importance_weight": 1e6},
    ),
}
CLIPS = {"gspo", "gspo with wide bounds", "cispo with a low bound", "opsm"} | {
    name for name, case in CASES.items() if case.moved and case.recipe in ("grpo", "dr_grpo", "dapo")
}


def plain_model(weights: Gradients) -> Any:
    base = AutoModelForCausalLM.from_pretrained(tiny_model("llama"), dtype=torch.float32)
    lora = LoraConfig(r=RANK, lora_alpha=2 * RANK, target_modules=list(ALL_LINEAR), task_type="CAUSAL_LM")
    model = get_peft_model(base, lora)
    set_peft_model_state_dict(model, weights)
    return model.eval()


def trl_trainer(case: Case, model: Any, folder: Path) -> Any:
    """Return TRL's trainer of a model; it is used for its loss only."""
    config, trainer = (RLOOConfig, RLOOTrainer) if case.recipe == "rloo" else (GRPOConfig, GRPOTrainer)
    args = config(
        output_dir=str(folder),
        use_cpu=True,
        bf16=False,
        report_to=[],
        per_device_train_batch_size=2,
        num_generations=2,
        max_completion_length=M,
        **({"beta": 0.0} | case.trl),
    )
    built = trainer(
        model=model,
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=args,
        train_dataset=Dataset.from_list([{"prompt": "a"}] * 2),
        processing_class=AutoTokenizer.from_pretrained(tiny_model("llama")),
    )
    built.model.eval()
    return built


def padded(rows: list[list[Any]], side: str) -> torch.Tensor:
    return pad_sequence([torch.tensor(row) for row in rows], batch_first=True, padding_side=side)


def logprobs_of(model: Any, prompt: list[int], completion: list[int]) -> list[float]:
    with torch.no_grad():
        logits_TV = model(input_ids=torch.tensor([prompt + completion])).logits[0, len(prompt) - 1 : -1]
    return torch.log_softmax(logits_TV, dim=-1)[torch.arange(len(completion)), completion].tolist()


def inputs_of(records: list[TrainingRecord], model: Any) -> dict[str, torch.Tensor]:
    """Return the records as TRL's trainers make them from generated answers."""
    prompts = [record.prompt_token_ids for record in records]
    completions = [record.completion_token_ids for record in records]
    mask_NT = padded([[1] * len(ids) for ids in completions], "right")
    with model.disable_adapter():
        base = [logprobs_of(model, *ids) for ids in zip(prompts, completions, strict=True)]
    return {
        "prompt_ids": padded(prompts, "left"),
        "prompt_mask": padded([[1] * len(ids) for ids in prompts], "left"),
        "completion_ids": padded(completions, "right"),
        "completion_mask": mask_NT,
        "advantages": torch.tensor([record.advantage for record in records]),
        "old_per_token_logps": padded([record.logprobs for record in records], "right"),
        "ref_per_token_logps": padded(base, "right"),
        "old_logps": torch.tensor([sum(record.logprobs) for record in records]),
        "num_items_in_batch": mask_NT.sum(),
    }


def policy_near_its_base() -> PolicyModel:
    """Return a policy to which no token is so unlikely that our k3 is bounded, which TRL's is not."""
    policy = tiny_policy(rank=RANK)
    policy.load_adapter_state({name: 0.35 * one for name, one in policy.adapter_state().items()})
    return policy


def recorded(policy: PolicyModel) -> list[TrainingRecord]:
    """Return answers in groups that share prompts, with their log-probabilities at the policy's weights."""
    draw, model = random.Random(5), plain_model(policy.adapter_state())
    records = []
    for number in range(60):
        prompt = [1, 2, 3, *range(4, 5 + number % 4)]
        completion = [draw.randrange(4, 9) for _ in range(draw.randrange(1, M + 1))]
        logprobs = logprobs_of(model, prompt, completion)
        records.append(make_record(prompt, completion, draw.uniform(-2, 2), logprobs=logprobs))
    return records


def moved(weights: Gradients) -> Gradients:
    """Return weights some steps later: ratios of tokens are then between about 0.2 and 4."""
    generator = torch.Generator().manual_seed(7)
    return {name: one + 0.012 * torch.randn(one.shape, generator=generator) for name, one in weights.items()}


def our_gradients(case: Case, policy: PolicyModel, records: list[TrainingRecord]) -> tuple[Gradients, Any]:
    """Return the gradients of a recipe's algorithm, and its metrics."""
    changes = {f"learning.algorithm.{name}": repr(value) for name, value in case.changes.items()}
    algorithm = build_algorithm(load_config("quickstart", changes, case.recipe).learning.algorithm)
    algorithm.initialize(policy, M)
    algorithm.begin(records)
    batch = algorithm.prepare_batch(records)
    if case.moved:
        algorithm.keep_logprobs(batch)
        policy.load_adapter_state(moved(policy.adapter_state()))
    metrics = algorithm.update(batch)
    names, parameters = policy.adapter_state(), policy.adapter_parameters()
    assert all(torch.equal(one, p) for one, p in zip(names.values(), parameters, strict=True))
    return {name: p.grad for name, p in zip(names, parameters, strict=True)}, metrics


def trl_gradients(case: Case, weights: Gradients, records: list[TrainingRecord], folder: Path) -> Gradients:
    trainer = trl_trainer(case, plain_model(weights), folder)
    trainer._compute_loss(trainer.model, inputs_of(records, plain_model(weights))).backward()
    parameters = trainer.model.named_parameters()
    return {name.replace(".default", ""): p.grad for name, p in parameters if p.grad is not None}


@pytest.mark.parametrize("name", CASES)
def test_the_gradient_of_a_recipe_is_that_of_trl(name, tmp_path):
    case = CASES[name]
    policy = policy_near_its_base() if "beta" in case.trl else tiny_policy(rank=RANK)
    records = recorded(policy)
    ours, metrics = our_gradients(case, policy, records)
    theirs = trl_gradients(case, policy.adapter_state(), records, tmp_path)
    assert ours.keys() == theirs.keys()
    for parameter, gradient in theirs.items():
        assert gradient.norm() > 1e-4
        assert (ours[parameter] - gradient).norm() < 1e-4 * gradient.norm(), parameter
    if name in CLIPS:
        acted = metrics["correction_masked" if name == "opsm" else "clip_fraction"]
        assert 0.05 < acted < 0.95
