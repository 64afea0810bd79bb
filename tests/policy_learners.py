"""Learners of two policies of one model."""

import torch

from sparring.core import derive_seed
from sparring.learn.algorithms import Reinforce
from sparring.learn.learner import Learner
from sparring.learn.policy import LoraSettings, PolicyModel
from tiny_models import algorithm_of, constant, make_record, tiny_model

POLICIES = ("proposer", "solver")


LORA = LoraSettings(4, 8.0)


RECORDS = {
    "proposer": [make_record([1, 2, 3], [4, 5], 1.0), make_record([1, 2, 3], [4, 6, 7], -1.0)],
    "solver": [make_record([9, 8], [1, 2], 0.5), make_record([9, 7], [3], -2.0)],
}


def make_policy(architecture: str, policies: tuple[str, ...] = POLICIES) -> PolicyModel:
    """Return a tiny model whose policies have random, non-zero weights that depend only on their names."""
    policy = PolicyModel(str(tiny_model(architecture)), LORA, policies=policies)
    for name in policies:
        generator = torch.Generator().manual_seed(derive_seed(1, name))
        state = policy.adapter_state(name)
        policy.load_adapter_state(
            {key: 0.2 * torch.randn(value.shape, generator=generator) for key, value in state.items()}, name
        )
    return policy


def make_learner(policy: PolicyModel, name: str, **options) -> Learner:
    return Learner(policy, algorithm_of(Reinforce, kl_weight=0.1), constant(0.01, **options), adapter=name)


def make_learners(policy: PolicyModel, **options) -> dict[str, Learner]:
    return {name: make_learner(policy, name, **options) for name in policy.policies}
