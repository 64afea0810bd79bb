"""Adapters that are loaded and unloaded while their model is served."""

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import torch
from torch import Tensor

from selfplay.core import InputError
from selfplay.core.errors import first_line
from selfplay.inference.adapter_check import (
    DeliveryError,
    Expectation,
    check_hash,
    file_hash,
    read_expectation,
    tolerance_of,
)
from selfplay.inference.engine import EmbeddedEngine
from selfplay.learning.adapter_files import AdapterFiles
from selfplay.learning.adapter_weights import Shapes, misfit, read_weights
from selfplay.learning.base_fingerprint import check_base
from selfplay.learning.delivery_file import base_canary, mean_canary
from selfplay.learning.policy import LoraSettings, PolicyModel


@dataclass(frozen=True)
class Contents:
    """An adapter's weights, and what the learner wrote about them if it did.

    Attributes:
        directory: where they are.
        weights: the tensors by PEFT's names.
        sha256: hash of the weight file, in hexadecimal; empty without ``expected``.
        expected: the learner's description.
    """

    directory: Path
    weights: dict[str, Tensor]
    sha256: str
    expected: Expectation | None

    @classmethod
    def read(cls, directory: Path) -> Self:
        """Read an adapter's files.

        Raises:
            InputError: they are missing or damaged.
        """
        expected = read_expectation(directory)
        sha256 = "" if expected is None else file_hash(directory)
        return cls(directory, read_weights(directory), sha256, expected)


class ServedAdapters:
    """LoRA adapters of one model, each of its own rank, scale and target modules.

    Every load is a new policy version.
    """

    def __init__(self, policy: PolicyModel, engine: EmbeddedEngine) -> None:
        self.policy = policy
        self.engine = engine
        self._newest = 0
        self._loaded = 0
        self._name_in_model: dict[str, str] = {}

    def load(self, name: str, directory: Path, version: int | None = None) -> int:
        """Serve an adapter as ``name``, replacing one of that name; return its policy version.

        Args:
            name: the model name that clients request.
            directory: an adapter in PEFT's format, safetensors only.
            version: the version that its answers carry; one more than the newest by default.

        Raises:
            InputError: the adapter cannot be read or does not fit the model.
            DeliveryError: it is not what its ``delivery.json`` says.
        """
        files = AdapterFiles.read(directory)
        self.check_fits(files)
        check_base(directory, self.policy.base)
        return self._put(name, files, Contents.read(directory), version)

    def check_fits(self, files: AdapterFiles) -> None:
        """Compare an adapter's shapes with the model's, before memory of its size is allocated.

        Raises:
            InputError: the adapter belongs to another model, or changes its output layer.
        """
        largest = max((shape[0] for name, shape in files.shapes.items() if "lora_A" in name), default=0)
        if files.lora.lora_rank > largest:
            problem = f"its weights do not fit its rank, {files.lora.lora_rank}: the largest has {largest}"
            raise InputError("adapter", problem, "Correct r.")
        wrong = misfit(files.shapes, self._shapes_of(files.lora), self.policy.layers())
        if wrong is not None:
            raise wrong

    def _shapes_of(self, lora: LoraSettings) -> Shapes:
        """Return the shapes of an adapter in this model; PEFT makes one without memory.

        Raises:
            InputError: it can make none.
        """
        name = "shapes-only"
        try:
            with torch.device("meta"):  # tensors there have a shape and no memory
                self.policy.add_adapter(name, lora.for_peft())
            return self.policy.adapter_shapes(name)
        except ValueError as error:
            problem, fix = first_line(error), "Give the adapter's own base model."
            if lora.more.get("target_parameters"):
                problem = f"target_parameters are {lora.more['target_parameters']} ({problem})"
                fix = "Merge it into its base model with PEFT, and use the merged model."
            raise InputError("adapter", f"it does not fit: {problem}", fix) from error
        finally:
            if name in self.policy.model.peft_config:
                self.policy.drop_adapter(name)

    def _put(self, name: str, files: AdapterFiles, contents: Contents, version: int | None = None) -> int:
        """Serve an adapter that fits as ``name``; see :meth:`load`."""
        version = self._newest + 1 if version is None else version
        if contents.expected is not None:
            check_hash(name, version, contents.directory, contents.sha256, contents.expected.sha256)
        in_model = self._new_copy(files.lora, contents.weights)
        try:
            self._check_answers(name, version, in_model, contents.expected)
        except BaseException:
            self.policy.drop_adapter(in_model)
            raise
        replaced = self._name_in_model.get(name)
        self._name_in_model[name] = in_model
        self._newest = max(self._newest, version)
        self.engine.publish(name, in_model, version)
        if replaced is not None:
            self.policy.drop_adapter(replaced)
        return version

    def _check_answers(self, name: str, version: int, in_model: str, said: Expectation | None) -> None:
        """Compare the canary with the learner's, if the base model answers as it did for the learner.

        With another type of weights or other bits, even the right adapter has another canary.
        """
        tolerance = tolerance_of(self.policy.dtype)
        if said is None or abs(base_canary(self.policy) - said.base) > tolerance:
            return
        answered = mean_canary(self.policy, in_model)
        if not abs(answered - said.canary) <= tolerance:
            problem = (
                f"the canary's log-probability is {answered:.4f}, but the learner's is {said.canary:.4f}"
            )
            raise DeliveryError(name, version, problem)

    async def load_while_serving(self, name: str, directory: Path) -> int:
        """Do as :meth:`load` does; files are read in a thread, so that requests are answered meanwhile.

        Raises: as there.
        """
        files = await asyncio.to_thread(AdapterFiles.read, directory)
        self.check_fits(files)
        contents = await asyncio.to_thread(Contents.read, directory)
        check_base(directory, self.policy.base)
        if {key: tuple(value.shape) for key, value in contents.weights.items()} != files.shapes:
            raise InputError("adapter", f"{directory} was changed while it was loaded", "Load it again.")
        return self._put(name, files, contents)

    def names(self) -> list[str]:
        """Return the names of all models that the engine serves, the base model's included."""
        return self.engine.names()

    def unload(self, name: str) -> None:
        """Stop serving adapter ``name`` and free its memory. Pending requests for it fail."""
        self.engine.withdraw(name)
        self.policy.drop_adapter(self._name_in_model.pop(name))

    def _new_copy(self, lora: LoraSettings, weights: dict[str, Tensor]) -> str:
        """Add an adapter with these weights to the model; return the name that it has there."""
        name = f"served-{self._loaded}"
        self._loaded += 1
        self.policy.add_adapter(name, lora.for_peft())
        try:
            self.policy.model.to(self.policy.device)
            names, parameters = self.policy.adapter_shapes(name), self.policy.adapter_parameters(name)
            with torch.no_grad():
                for key, parameter in zip(names, parameters, strict=True):
                    parameter.copy_(weights[key])
        except BaseException:
            self.policy.drop_adapter(name)  # on a GPU, there may be no memory for it
            raise
        return name
