"""What the maker of an adapter says of it, for the engine that is to serve it: ``delivery.json``."""

import hashlib
import json
from functools import lru_cache
from pathlib import Path

import torch

from selfplay.core.canary import CANARY_TEXT, MAX_CANARY_TOKENS
from selfplay.learning.checkpoints import ADAPTER_FILE, put_in_place, scratch_for, write_adapter
from selfplay.learning.logprobs import plan_logprobs
from selfplay.learning.policy import BASE, PolicyModel
from selfplay.learning.trie import build_plan

DELIVERY_FILE = "delivery.json"


def canary_tokens(policy: PolicyModel) -> list[int]:
    """Token ids of the canary."""
    ids: list[int] = policy.tokenizer(CANARY_TEXT, add_special_tokens=False).input_ids
    return ids[:MAX_CANARY_TOKENS]


def save_proven_adapter(
    directory: Path, policy: PolicyModel, base_name: str, adapter: str, version: int
) -> None:
    """Write an adapter with its ``delivery.json``; ``directory`` is there when both are."""
    scratch = scratch_for(directory)
    write_adapter(scratch, policy, base_name, adapter)
    write_delivery(scratch, policy, adapter, version)
    put_in_place(scratch, directory)


def write_delivery(directory: Path, policy: PolicyModel, adapter: str, version: int) -> None:
    """Write ``delivery.json`` beside the files of an adapter that was saved to ``directory``.

    It holds ``version``, ``sha256`` (of the weight file, in hexadecimal) and ``canary``: the mean
    log-probability of the canary's tokens but the first, at temperature 1, by one forward pass. ``base`` is
    the same of the base model: how far the two lie apart says whether an engine can tell them apart.

    Args:
        directory: has the adapter's files.
        policy: holds the adapter.
        adapter: its name there.
        version: the policy version that the files are.
    """
    with (directory / ADAPTER_FILE).open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    said = {
        "version": version,
        "sha256": sha256,
        "canary": _mean_canary(policy, adapter),
        "base": _base_canary(policy),
    }
    scratch = directory / f".{DELIVERY_FILE}.partial"
    scratch.write_text(json.dumps(said))
    scratch.replace(directory / DELIVERY_FILE)


@lru_cache(maxsize=4)
def _base_canary(policy: PolicyModel) -> float:
    """The base model stays as it is, so one pass is enough."""
    return _mean_canary(policy, BASE)


def _mean_canary(policy: PolicyModel, adapter: str) -> float:
    ids = canary_tokens(policy)
    plan = build_plan([ids[:1]], [ids[1:]])
    with torch.no_grad(), policy.adapter(adapter):
        logprobs_C = plan_logprobs(policy, plan)
    return float(logprobs_C.mean())
