"""Adapters, as learners, engines and pools know them: their names, layers and files."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, Self

TRAINED = "default"
"""The policy that is trained if none is named."""
BASE = "base"
"""The model without an adapter."""
AVERAGE = "average"
REFERENCE = "reference"
BUNDLED_MODEL = "smollm2-135m"
"""The base model by default, which comes as a Python package."""

LORA_RANK = 16
LORA_ALPHA = 32
MAX_RANK = 512
ALL_LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""An adapter's shape and layers by default: the linear layers of Llama and similar models. Other models may
not have all of them. ``MAX_RANK`` is the largest rank that a client of the training API may ask for."""
VLLM_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""The limits of an adapter's rank that vLLM takes."""

Quantization = Literal["none", "nf4"]
"""How the base model's linear layers are kept: as they are, or in four bits."""

ADAPTER_FILE = "adapter_model.safetensors"
ADAPTER_CONFIG = "adapter_config.json"
"""The files of an adapter in PEFT's format."""
MIXTURE_FILE = "mixture.json"
"""The file, in its directory, of a mixture of adapters."""
DELIVERY_FILE = "delivery.json"
"""The learner's description of an adapter, with which an engine checks what it serves."""
LEARNER_FILE = "learner.safetensors"
CRITIC_FILE = "critic.safetensors"
"""The weights of a policy's critic, beside its adapter; not without a critic."""
STATE_FILE = "state.json"
MEASURED_FILE = "measured.json"
"""By what the best adapters of a run were kept."""
POLICY_FILE = "policy.jsonl"
"""A run's copy of a policy that was given as a table."""
MANIFEST_FILE = "manifest.json"
"""The hashes of the other files of a saved directory."""
SAVED_FILES = frozenset(
    {
        ADAPTER_FILE,
        ADAPTER_CONFIG,
        DELIVERY_FILE,
        LEARNER_FILE,
        CRITIC_FILE,
        STATE_FILE,
        MEASURED_FILE,
        POLICY_FILE,
        MANIFEST_FILE,
    }
)
"""The names of all files in the directories of adapters, learners and checkpoints."""

RESERVED = (
    f'"{BASE}", a name that ends in "{AVERAGE}" or "{REFERENCE}", or one like "ckpt-10" or "fixed-random"'
)
"""The names of :func:`is_reserved`, for messages."""


def is_reserved(name: str) -> bool:
    """Return whether a name may be another's: the base model, an adapter that follows a policy, or a member
    of the pool (``ckpt-10``, ``solver-ckpt-10``)."""
    of_the_pool = name.startswith("fixed-") or re.fullmatch(r"(.+-)?ckpt-\d+", name) is not None
    return name == BASE or of_the_pool or name.endswith((AVERAGE, REFERENCE))


def is_policy_name(name: str) -> bool:
    """Return whether a policy may have this name: letters of ASCII, digits, ``_`` and ``-``, not reserved."""
    return re.fullmatch(r"[A-Za-z0-9_-]+", name) is not None and not is_reserved(name)


NAMES_OF_POLICIES = f"Use letters (A to Z, a to z), digits, _ and -; not {RESERVED}"
"""What to write in place of a name that :func:`is_policy_name` refuses."""


def average_of(policy: str) -> str:
    """Return the name of the running average of a policy's weights."""
    return AVERAGE if policy == TRAINED else f"{policy}-{AVERAGE}"


def reference_of(policy: str) -> str:
    """Return the name of the adapter that follows a policy and holds it back."""
    return REFERENCE if policy == TRAINED else f"{policy}-{REFERENCE}"


@dataclass(frozen=True)
class AdapterRef:
    """The adapter that is to answer a request: its name in errors, the policy version of its answers, and its
    directory in PEFT's format (None: the base model)."""

    name: str
    version: int
    path: str | None


@dataclass(frozen=True)
class Weights:
    """The newest adapter of each policy after ``step`` updates of the run."""

    step: int
    adapters: dict[str, AdapterRef]

    @classmethod
    def untrained(cls, policies: Iterable[str]) -> Self:
        """Return the base model for each policy."""
        return cls(0, {policy: AdapterRef(policy, 0, None) for policy in policies})
