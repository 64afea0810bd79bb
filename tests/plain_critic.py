"""A critic by its formulas: single prompts through transformers and peft, and sums over turns."""

import copy
import functools
import itertools
from typing import Any

import torch
from peft import LoraConfig, get_peft_model, set_peft_model_state_dict
from transformers import AutoModelForCausalLM

from sparring.core import TrainingRecord
from sparring.learn.critic import Critic
from sparring.learn.policy import ALL_LINEAR
from tiny_models import tiny_model, tiny_policy

DEFAULTS = {"gamma": 1.0, "gae_lambda": 0.95, "value_weight": 0.5}


def state_of(model: Any, record: TrainingRecord) -> torch.Tensor:
    """Return the hidden state of a prompt's last token, after the last norm."""
    found = model(input_ids=torch.tensor([record.prompt_token_ids]), output_hidden_states=True)
    return found.hidden_states[-1][0, -1]


class PlainCritic:
    """The head of a critic that has not yet seen a batch.

    After :meth:`judge`, ``advantages`` has the advantage of each record, by its identity.
    """

    def __init__(self, critic: Critic, options: dict[str, Any]) -> None:
        self.options = DEFAULTS | options
        self.head = [one.detach().clone().requires_grad_() for one in critic.parameters()]
        self.advantages = dict[int, float]()
        self.old = dict[int, float]()
        self.targets = dict[int, float]()

    def judge(self, model: Any, records: list[TrainingRecord]) -> None:
        """Compute advantages and targets before the first step; records are in the order of their games."""
        with torch.no_grad():
            states_RD = torch.stack([state_of(model, one) for one in records]).double()
            self.centre_D = states_RD.mean(0)
            distance_R = (states_RD - self.centre_D).norm(dim=1)
            self.divisor = distance_R.square().mean().sqrt() * states_RD.shape[1] ** 0.5
            values = [self.value(state_D.float()).item() for state_D in states_RD]
        scale = (sum(one.reward**2 for one in records) / len(records)) ** 0.5
        pairs = zip(records, values, strict=True)
        for _, game in itertools.groupby(pairs, key=lambda pair: pair[0].rollout_id):
            self._judge_game(list(game), scale)
        with torch.no_grad():
            for parameter in self.head:
                parameter /= scale
        if self.options.get("normalize_advantages"):
            given = torch.tensor(list(self.advantages.values()), dtype=torch.float64)
            unit = (given - given.mean()) / given.std(correction=0)
            self.advantages = dict(zip(self.advantages, unit.tolist(), strict=True))

    def _judge_game(self, turns: list[tuple[TrainingRecord, float]], scale: float) -> None:
        gamma, decay = self.options["gamma"], self.options["gamma"] * self.options["gae_lambda"]
        values = [value for _, value in turns] + [0.0]
        later = [record.reward for record, _ in turns[1:]] + [0.0]
        deltas = [
            record.reward - later[t] + gamma * values[t + 1] - value
            for t, (record, value) in enumerate(turns)
        ]
        for t, (record, value) in enumerate(turns):
            advantage = sum(decay**k * delta for k, delta in enumerate(deltas[t:]))
            self.advantages[id(record)] = advantage / scale
            self.old[id(record)] = value / scale
            self.targets[id(record)] = (advantage + value) / scale

    def value(self, state_D: torch.Tensor) -> torch.Tensor:
        """Return w . u + b."""
        weight_D, bias = self.head
        share = self.options["value_weight"]
        read_D = share * state_D + (1 - share) * state_D.detach()
        return weight_D @ ((read_D - self.centre_D) / self.divisor).float() + bias

    def loss(self, model: Any, record: TrainingRecord) -> torch.Tensor:
        """Return the value loss of one answer."""
        value, old, target = (
            self.value(state_of(model, record)),
            self.old[id(record)],
            self.targets[id(record)],
        )
        error = (value - target) ** 2
        bound = self.options.get("value_clip")
        if bound is not None:
            error = torch.maximum(error, (torch.clip(value, old - bound, old + bound) - target) ** 2)
        return 0.5 * error


RANK = 4


@functools.cache
def _base() -> Any:
    return AutoModelForCausalLM.from_pretrained(tiny_model("llama"), attn_implementation="eager")


@functools.cache
def _start() -> dict[str, torch.Tensor]:
    return tiny_policy(rank=RANK).adapter_state()


def new_plain_model(weights: dict[str, torch.Tensor] | None = None) -> Any:
    model = get_peft_model(
        copy.deepcopy(_base()),
        LoraConfig(r=RANK, lora_alpha=2 * RANK, target_modules=list(ALL_LINEAR), task_type="CAUSAL_LM"),
    )
    set_peft_model_state_dict(model, weights or _start())
    return model
