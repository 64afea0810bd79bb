"""Proof that an adapter answers as its maker says: its file's hash, and the log-probabilities of the canary.

Log-probabilities are natural logarithms at temperature 1. Nothing here needs torch before a file is opened.
"""

import hashlib
import json
import math
from dataclasses import dataclass, field
from pathlib import Path

from safetensors import SafetensorError, safe_open

from selfplay.core import InputError, SelfplayError

TOLERANCES = {"float32": 1e-3, "bfloat16": 0.1, "float16": 0.05}
"""Largest mean difference of log-probabilities that rounding explains, by the type of the model's weights."""

ADAPTER_FILE = "adapter_model.safetensors"
ADAPTER_CONFIG = "adapter_config.json"
DELIVERY_FILE = "delivery.json"


class DeliveryError(SelfplayError):
    """An adapter was loaded, or was to be, and is not what it should be.

    Args:
        name: of the adapter.
        version: its policy version.
        problem: what differs.
    """

    def __init__(self, name: str, version: int, problem: str) -> None:
        self.name, self.version, self.problem = name, version, problem
        super().__init__(f"{name} version {version} was not delivered: {problem}")

    def __reduce__(self) -> tuple[type["DeliveryError"], tuple[str, int, str]]:
        """Errors travel between processes; Python would rebuild this one from its message alone."""
        return type(self), (self.name, self.version, self.problem)


@dataclass(frozen=True)
class Expectation:
    """What the maker of an adapter says of it in ``delivery.json``.

    Attributes:
        version: the policy version.
        sha256: of the weight file, in hexadecimal.
        canary: mean log-probability of the canary's tokens but the first.
        base: the same of the base model.
    """

    version: int
    sha256: str
    canary: float
    base: float


@dataclass(frozen=True)
class Delivery:
    """Proof that a version answers.

    Attributes:
        name: what clients ask for.
        version: the policy version.
        sha256: of the adapter's weight file; empty for the base model.
        canary: log-probability of each canary token but the first, as the engine gives it.
        expected: their mean as the maker gives it, if known.
    """

    name: str
    version: int
    sha256: str
    canary: tuple[float, ...] = field(repr=False)
    expected: float | None = None

    @property
    def mean(self) -> float:
        """Mean log-probability of a canary token; what the maker's is compared with."""
        return sum(self.canary) / len(self.canary)


def tolerance_of(dtype: object) -> float:
    """Largest difference of a canary's mean that rounding explains, for a torch type of weights."""
    return TOLERANCES[str(dtype).removeprefix("torch.")]


def read_expectation(directory: Path) -> Expectation | None:
    """What an adapter's maker says of it; None if nothing.

    Raises:
        InputError: ``delivery.json`` is damaged.
    """
    path = directory / DELIVERY_FILE
    try:
        said = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise _damaged(path) from error
    if not isinstance(said, dict):
        raise _damaged(path)
    version, sha256, canary, base = (said.get(key) for key in ("version", "sha256", "canary", "base"))
    if type(version) is not int or not isinstance(sha256, str):
        raise _damaged(path)
    if not isinstance(canary, float) or not isinstance(base, float):
        raise _damaged(path)
    if not math.isfinite(canary + base):
        raise _damaged(path)
    return Expectation(version, sha256, canary, base)


def check_hash(name: str, version: int, directory: Path | None, sha256: str, expected: str) -> None:
    """Check that the weights are those that their maker wrote.

    Raises:
        DeliveryError: they are not.
    """
    if sha256 != expected:
        raise DeliveryError(
            name,
            version,
            f"the weights in {directory} have hash {sha256[:12]}, the learner's {expected[:12]}",
        )


def check_delivery(
    delivery: Delivery,
    *,
    expected_canary: float | None,
    expected_base: float | None = None,
    before: Delivery | None,
    base: Delivery,
    changes_nothing: bool,
    tolerance: float,
) -> None:
    """Check that the version just published answers.

    A stale adapter is caught without any expectation: the same weights give the very same numbers, other
    weights give others. (Under load even the same weights round differently, and this check sees less.) Only
    an update that is too small to be seen at all may give the same numbers, and its maker knows: where the
    expectations lie closer than a tenth of the tolerance, alike is right.

    Args:
        delivery: of the new version.
        expected_canary: mean log-probability of a canary token by whoever made the adapter, if known.
        expected_base: the same of the base model.
        before: of the version that answered until now, if any.
        base: of the base model.
        changes_nothing: every B of the adapter is zero.
        tolerance: largest difference from ``expected_canary``.

    Raises:
        DeliveryError: it does not.
    """
    name, version = delivery.name, delivery.version
    like_base = delivery.canary == base.canary
    if like_base and not changes_nothing and _can_be_seen(expected_canary, expected_base, tolerance):
        raise DeliveryError(name, version, "it answers exactly like the base model")
    # The base model and adapters that were never trained rightly answer alike.
    like_before = before is not None and not like_base and before.canary == delivery.canary
    if (
        before is not None
        and like_before
        and before.sha256 != delivery.sha256
        and _can_be_seen(expected_canary, before.expected, tolerance)
    ):
        problem = f"its weights are new, but it answers exactly like version {before.version}"
        raise DeliveryError(name, version, problem)
    if expected_canary is not None and not abs(delivery.mean - expected_canary) <= tolerance:
        raise DeliveryError(
            name,
            version,
            f"the canary's log-probability is {delivery.mean:.4f} a token where the learner's is "
            f"{expected_canary:.4f} (rounding explains {tolerance:g})",
        )


def _can_be_seen(expected: float | None, other: float | None, tolerance: float) -> bool:
    """Whether two versions answer differently, by those who made them; yes if nobody says."""
    return expected is None or other is None or abs(expected - other) > tolerance / 10


def file_hash(directory: Path) -> str:
    """SHA-256 of an adapter's weight file, in hexadecimal.

    Raises:
        InputError: there is none.
    """
    try:
        with (directory / ADAPTER_FILE).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise InputError("adapter", f"{directory} has no {ADAPTER_FILE}", "Give a PEFT directory.") from error


def changes_nothing(directory: Path) -> bool:
    """Whether every B of an adapter is zero, as in one that was never trained.

    Raises:
        InputError: the file is damaged.
    """
    try:
        with safe_open(directory / ADAPTER_FILE, framework="pt") as file:
            names = [name for name in file.keys() if "lora_B" in name]  # noqa: SIM118 (it is no dict)
            return not any(bool(file.get_tensor(name).any()) for name in names)
    except (OSError, SafetensorError) as error:
        raise InputError("adapter", f"{directory / ADAPTER_FILE} is damaged", "Save it again.") from error


def _damaged(path: Path) -> InputError:
    fix = "Save the adapter again, or delete the file: then only what it says is not checked."
    return InputError("adapter", f"{path} is damaged", fix)
