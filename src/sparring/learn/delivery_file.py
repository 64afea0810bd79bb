"""``delivery.json``: the learner's description of an adapter, with which an engine checks what it serves."""

from pathlib import Path
from weakref import WeakKeyDictionary

import torch

from sparring.core.adapters import ADAPTER_FILE, BASE
from sparring.core.delivery import CANARY_TEXT, MAX_CANARY_TOKENS, Expectation
from sparring.core.files import put_in_place, scratch_for, sha256_of
from sparring.core.manifest import seal
from sparring.learn.checkpoints import write_adapter
from sparring.learn.logprobs import plan_logprobs
from sparring.learn.policy import PolicyModel
from sparring.learn.trie import build_plan

_BASE_CANARIES: WeakKeyDictionary[PolicyModel, float] = WeakKeyDictionary()


def canary_tokens(policy: PolicyModel) -> list[int]:
    """Return the token ids of the canary."""
    ids: list[int] = policy.tokenizer(CANARY_TEXT, add_special_tokens=False).input_ids
    return ids[:MAX_CANARY_TOKENS]


def save_proven_adapter(
    directory: Path, policy: PolicyModel, base_name: str, adapter: str, version: int
) -> None:
    """Write an adapter with its ``delivery.json``; ``directory`` appears once both are complete."""
    scratch = scratch_for(directory)
    write_adapter(scratch, policy, base_name, adapter)
    write_delivery(scratch, policy, adapter, version)
    seal(scratch, policy.base)
    put_in_place(scratch, directory)


def write_delivery(directory: Path, policy: PolicyModel, adapter: str, version: int) -> None:
    """Write ``delivery.json`` beside the files of an adapter that was saved to ``directory``.

    Args:
        directory: directory with the adapter's files.
        policy: the model that holds the adapter.
        adapter: the adapter's name in ``policy``.
        version: the policy version of the files.
    """
    sha256 = sha256_of(directory / ADAPTER_FILE)
    Expectation(version, sha256, mean_canary(policy, adapter), base_canary(policy)).write(directory)


def base_canary(policy: PolicyModel) -> float:
    """Return the canary of the base model, which does not change, so it is computed once."""
    if policy not in _BASE_CANARIES:
        _BASE_CANARIES[policy] = mean_canary(policy, BASE)
    return _BASE_CANARIES[policy]


def mean_canary(policy: PolicyModel, adapter: str) -> float:
    """Return the mean log-probability of the canary's tokens without the first with an adapter."""
    ids = canary_tokens(policy)
    plan = build_plan([ids[:1]], [ids[1:]])
    with torch.no_grad(), policy.adapter(adapter):
        logprobs_C = plan_logprobs(policy, plan)
    return float(logprobs_C.mean())
