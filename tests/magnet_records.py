"""Records with legal answers, and learners of them."""

import math

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from sparring.core import TrainingRecord
from sparring.core.adapters import reference_of
from sparring.learn.algorithms import BaseAlgo
from sparring.learn.algorithms.magnet import Magnet
from sparring.learn.learner import Learner
from sparring.learn.logprobs import plan_logprobs
from sparring.learn.policy import TRAINED, PolicyModel, average_of
from sparring.learn.trie import build_plan
from tiny_models import constant, make_record, perturb_adapter, tiny_policy

YES, NO, MAYBE = [4, 5], [4, 6, 7], [8]


LEGAL = [YES, NO]


RECORDS = [
    make_record([1, 2, 3], YES, 1.0, alternatives=LEGAL),
    make_record([1, 2, 3], YES, 0.5, alternatives=LEGAL),
    make_record([1, 2, 3], NO, -0.5, alternatives=LEGAL),
    make_record([9, 8], NO, 2.0, alternatives=[YES, NO, MAYBE]),
    make_record([9, 8], [1], -2.0, alternatives=[YES, NO, MAYBE]),  # an illegal answer
    make_record([7], [1], 1.0),  # a position whose answers nobody can list
]


UNIFORM = 1e-8
"""About the probability that the tiny model gives to a legal answer, so that a magnet has some of both."""


SCALE = math.sqrt((1.0 + 0.25 + 0.25 + 4.0 + 4.0) / 5)
"""The root mean square of the advantages where there are legal answers; the mean of legal ones is 0.75."""


def answer_logprobs(
    policy: PolicyModel, adapter: str, prompt: list[int], legal: list[list[int]], temperature: float = 1.0
) -> torch.Tensor:
    """Return the log-probability of each whole answer, each computed alone."""
    plans = [build_plan([prompt], [ids]) for ids in legal]
    with policy.adapter(adapter):
        return torch.stack([plan_logprobs(policy, plan, temperature=temperature).sum() for plan in plans])


def magnet_of(logprobs: torch.Tensor) -> torch.Tensor:
    """Mix the reference, over all answers, with the uniform distribution over legal ones; keep the legal."""
    mixture = (1 - UNIFORM) * torch.exp(logprobs) + UNIFORM / len(logprobs)
    return mixture / mixture.sum()


def magnet_policy() -> PolicyModel:
    policy = tiny_policy()
    state = policy.adapter_state()
    policy.load_adapter_state({key: 0.5 * value for key, value in state.items()}, reference_of(TRAINED))
    perturb_adapter(policy)
    return policy


def scaled(records: list[TrainingRecord], factor: float) -> list[TrainingRecord]:
    return [
        make_record(
            one.prompt_token_ids,
            one.completion_token_ids,
            factor * one.advantage,
            alternatives=one.alternatives,
        )
        for one in records
    ]


def learned(algorithm: BaseAlgo, sign: float) -> NDArray[np.float32]:
    """Return what 40 updates make of log p(YES) and log p(NO); YES earns more if ``sign`` is positive."""
    policy = tiny_policy()
    before = answer_logprobs(policy, TRAINED, [1, 2, 3], LEGAL).detach()
    assert before.exp().sum() < 0.1
    assert before[0] > before[1] + 1
    settings = constant(3e-3, momentum=0.8, average_decay=0.8, minibatches=2)
    learner = Learner(policy, algorithm, settings)
    for _ in range(40):
        metrics = learner.update(scaled(RECORDS, sign))
    assert metrics["value_scale"] == pytest.approx(SCALE)
    found: NDArray[np.float32] = (
        answer_logprobs(policy, average_of(TRAINED), [1, 2, 3], LEGAL).detach().numpy()
    )
    return found


def learner_with(epochs: int, algorithm: BaseAlgo | None = None, **options) -> Learner:
    return Learner(magnet_policy(), algorithm or Magnet(), constant(0.1, epochs=epochs, **options))
