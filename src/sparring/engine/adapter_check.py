"""Check that an engine serves the adapter that the learner wrote: by its file's hash and a canary text.
Log-probabilities are natural logarithms at temperature 1."""

from dataclasses import dataclass, field
from pathlib import Path

from safetensors import SafetensorError, safe_open

from sparring.core import InputError, SparringError
from sparring.core.adapters import ADAPTER_FILE
from sparring.core.files import sha256_of
from sparring.core.manifest import Expectation

TOLERANCES = {"float32": 1e-3, "bfloat16": 0.1, "float16": 0.05}
"""Maximum mean difference of log-probabilities that counts as rounding, by the dtype of the weights."""


class DeliveryError(SparringError):
    """An adapter could not be loaded, or the engine does not answer with it."""

    def __init__(self, name: str, version: int, problem: str) -> None:
        self.name, self.version, self.problem = name, version, problem
        super().__init__(f"{name} version {version} was not delivered: {problem}")

    def __reduce__(self) -> tuple[type["DeliveryError"], tuple[str, int, str]]:
        """Python would rebuild the error from its message alone in another process."""
        return type(self), (self.name, self.version, self.problem)


@dataclass(frozen=True)
class Delivery:
    """Proof that a version answers: the hash of its weight file (empty for the base model), and the engine's
    log-probability of each canary token but the first. ``expected`` is their mean as the learner had it."""

    name: str
    version: int
    sha256: str
    canary: tuple[float, ...] = field(repr=False)
    expected: float | None = None

    @property
    def mean(self) -> float:
        """Mean log-probability of a canary token, which is compared with the learner's."""
        return sum(self.canary) / len(self.canary)


def tolerance_of(dtype: object) -> float:
    """Return the maximum difference of a canary's mean that counts as rounding, for a torch dtype."""
    return TOLERANCES[str(dtype).removeprefix("torch.")]


def check_hash(name: str, version: int, directory: Path | None, sha256: str, expected: str) -> None:
    """Check that the weights are those that the learner wrote. Raises DeliveryError."""
    if sha256 != expected:
        raise DeliveryError(
            name,
            version,
            f"the weights in {directory} have hash {sha256[:12]}, the learner's have {expected[:12]}",
        )


def check_delivery(
    delivery: Delivery,
    said: Expectation | None,
    *,
    before: Delivery | None,
    base: Delivery,
    changes_nothing: bool,
    tolerance: float,
) -> None:
    """Check that the engine answers with the version that was just published. Raises DeliveryError.

    The same weights give the same numbers and others give others, so a stale adapter shows without a
    description, except for an update too small to have an effect: one whose description (``said``) differs by
    less than a tenth of the tolerance. ``before`` answered until now; ``changes_nothing``: every B of the
    adapter is zero.
    """
    name, version = delivery.name, delivery.version
    expected_canary, expected_base = (said.canary, said.base) if said else (None, None)
    like_base = delivery.canary == base.canary
    if like_base and not changes_nothing and _can_be_seen(expected_canary, expected_base, tolerance):
        raise DeliveryError(name, version, "it answers exactly like the base model")
    # The base model and adapters that were never trained give the same answers.
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
            f"the canary's log-probability is {delivery.mean:.4f} per token, but the learner's is "
            f"{expected_canary:.4f} (rounding explains {tolerance:g})",
        )


def _can_be_seen(expected: float | None, other: float | None, tolerance: float) -> bool:
    """Return whether two versions should answer differently by their expectations; true if one is unknown."""
    return expected is None or other is None or abs(expected - other) > tolerance / 10


def file_hash(directory: Path) -> str:
    """Return the SHA-256 of an adapter's weight file, in hexadecimal. Raises InputError: there is none."""
    try:
        return sha256_of(directory / ADAPTER_FILE)
    except OSError as error:
        raise InputError("adapter", f"{directory} has no {ADAPTER_FILE}", "Give a PEFT directory.") from error


def changes_nothing(directory: Path) -> bool:
    """Return whether every B of an adapter is zero, as before any training. Raises InputError: the file is
    damaged, or a number is not finite."""
    untrained = True
    try:
        with safe_open(directory / ADAPTER_FILE, framework="pt") as file:
            for name in list(file.keys()):
                tensor = file.get_tensor(name)
                if not bool(tensor.isfinite().all()):
                    problem = f"{directory / ADAPTER_FILE} has weights that are not finite numbers"
                    raise InputError("adapter", problem, "Take an earlier one.")
                if "lora_B" in name and bool(tensor.any()):
                    untrained = False
    except (OSError, SafetensorError) as error:
        raise InputError("adapter", f"{directory / ADAPTER_FILE} is damaged", "Save it again.") from error
    return untrained
