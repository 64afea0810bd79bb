"""Adapters that are loaded and unloaded while their model is served."""

import asyncio
from pathlib import Path

import torch
from torch import Tensor

from selfplay.core import InputError
from selfplay.core.errors import first_line
from selfplay.inference.engine import EmbeddedEngine
from selfplay.learning.adapter_files import AdapterFiles
from selfplay.learning.adapter_weights import Shapes, misfit, read_weights
from selfplay.learning.policy import LoraSettings, PolicyModel


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
        """
        files = AdapterFiles.read(directory)
        self.check_fits(files)
        return self.put(name, files, read_weights(directory), version)

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

    def put(
        self, name: str, files: AdapterFiles, weights: dict[str, Tensor], version: int | None = None
    ) -> int:
        """Serve checked weights as ``name``; see :meth:`load`."""
        version = self._newest + 1 if version is None else version
        in_model = self._new_copy(files.lora, weights)
        replaced = self._name_in_model.get(name)
        self._name_in_model[name] = in_model
        self._newest = max(self._newest, version)
        self.engine.publish(name, in_model, version)
        if replaced is not None:
            self.policy.drop_adapter(replaced)
        return version

    async def load_while_serving(self, name: str, directory: Path) -> int:
        """Do as :meth:`load` does; files are read in a thread, so that requests are answered meanwhile.

        Raises:
            InputError: as there.
        """
        files = await asyncio.to_thread(AdapterFiles.read, directory)
        self.check_fits(files)
        weights = await asyncio.to_thread(read_weights, directory)
        if {key: tuple(value.shape) for key, value in weights.items()} != files.shapes:
            raise InputError("adapter", f"{directory} was changed while it was loaded", "Load it again.")
        return self.put(name, files, weights)

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
