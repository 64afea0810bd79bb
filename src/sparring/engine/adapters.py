"""Adapters from elsewhere: which of them clients may name, and whether an engine serves what a learner wrote.

Names, paths and files of clients are an attacker's. Log-probabilities are natural logarithms at
temperature 1.
"""

import asyncio
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from safetensors import SafetensorError, safe_open

from sparring.core import InputError, SparringError
from sparring.core.adapters import ADAPTER_CONFIG, ADAPTER_FILE, DELIVERY_FILE, MANIFEST_FILE
from sparring.core.files import check_regular, sha256_of
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
    check_regular([directory / ADAPTER_FILE], "adapter")
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


FINE_TUNED = "ft:"
"""The beginning of the names of fine-tuned models, which no other model may have."""
NAME = re.compile(r"(?=.{1,128}$)[A-Za-z0-9][A-Za-z0-9._:@+-]*(/[A-Za-z0-9._:@+-]+)*")
LONGEST_PATH = 1024


class Publisher(Protocol):
    """Where adapters are published and withdrawn while an engine answers."""

    def names(self) -> list[str]:
        """Return the names of all models that are served, the base model's included."""

    async def publish_in_background(
        self, name: str, directory: Path, version: int | None = None, *, proof: bool = False
    ) -> Delivery:
        """Serve the adapter in a PEFT ``directory`` as ``name``, in place of one of that name, as ``version``
        (one more than the newest by default). ``proof``: its answers must be those that its learner
        described.

        Raises InputError: it does not fit the model; DeliveryError: its answers are others; SparringError:
        there is no engine or memory.
        """

    def withdraw(self, name: str) -> None:
        """Stop serving ``name``."""


class ClientAdapters:
    """Adapters that clients publish from the directory ``root``, under names that are not ``reserved``."""

    def __init__(self, publisher: Publisher, root: Path, reserved: frozenset[str]) -> None:
        self.publisher = publisher
        self.root = root.resolve()
        self.reserved = reserved
        self._loading = asyncio.Lock()

    async def publish(self, name: str, path: str, *, replace: bool) -> int:
        """Serve the adapter at ``path``, inside the root, as ``name``; return its policy version. Adapters
        are loaded one at a time. Raises InputError."""
        async with self._loading:
            self._check_name(name)
            if name in self.publisher.names() and not replace:
                problem = f"{name} is served already"
                raise InputError("lora_name", problem, "Unload it first, or set load_inplace to true.")
            try:
                directory = self._below_root(path)
                return (await self.publisher.publish_in_background(name, directory)).version
            except DeliveryError as error:
                raise InputError("adapter", error.problem, "Save it again.") from error

    def withdraw(self, name: str) -> None:
        """Stop serving adapter ``name``. Raises InputError: the name is the server's own."""
        self._check_name(name)
        self.publisher.withdraw(name)

    def _check_name(self, name: str) -> None:
        if not NAME.fullmatch(name):
            problem = f"{_shown(name)} cannot name an adapter"
            raise InputError(
                "lora_name", problem, "Use at most 128 letters, digits and . _ : @ + -, and / between them"
            )
        if name in self.reserved or name.startswith(FINE_TUNED):
            raise InputError("lora_name", f"{name} is the server's own name", "Give another name.")

    def _below_root(self, path: str) -> Path:
        """Return the directory that a client names. Links cannot leave the root, and files are regular ones:
        a pipe would be read forever."""
        fix = "Give a path relative to the directory that --adapters names."
        if len(path) > LONGEST_PATH or not path.isprintable():
            raise InputError("lora_path", f"{_shown(path)} cannot be a path", fix)
        try:
            directory = (self.root / path).resolve()
            if not directory.is_relative_to(self.root):
                raise InputError("lora_path", f"{path!r} is outside the directory of adapters", fix)
            for name in (ADAPTER_CONFIG, ADAPTER_FILE, DELIVERY_FILE, MANIFEST_FILE):
                file = (directory / name).resolve()
                if not file.is_relative_to(self.root):
                    problem = f"{name} in {path!r} is a link out of the directory of adapters"
                    raise InputError("lora_path", problem, "Copy the file.")
                if file.exists() and not file.is_file():
                    raise InputError("lora_path", f"{name} in {path!r} is not a regular file", "Copy it.")
        except (OSError, ValueError, RuntimeError) as error:  # no file can have this name, or a loop of links
            raise InputError("lora_path", f"{_shown(path)} cannot be a path", fix) from error
        return directory


def _shown(text: str) -> str:
    return ascii(text[:60])
