"""Adapters that are loaded and unloaded while their model is served."""

import asyncio
from dataclasses import dataclass
from pathlib import Path

import torch
from peft import LoraConfig
from safetensors import SafetensorError, safe_open
from torch import Tensor

from selfplay.core import InputError
from selfplay.core.adapters import ADAPTER_FILE
from selfplay.inference.engine import EmbeddedEngine
from selfplay.learning.checkpoints import load_adapter, load_adapter_config
from selfplay.learning.policy import PolicyModel

Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class AdapterFiles:
    """The description of an adapter without its weights: the LoRA configuration and the tensors' shapes."""

    lora: LoraConfig
    shapes: Shapes

    @classmethod
    def read(cls, directory: Path) -> "AdapterFiles":
        """Read the configuration and the header of the weights.

        Raises:
            InputError: files are missing or damaged, or the adapter is not a plain LoRA adapter.
        """
        config = load_adapter_config(directory)
        lora = LoraConfig(
            r=config["r"],
            lora_alpha=config["lora_alpha"],
            target_modules=config["target_modules"],
            task_type="CAUSAL_LM",
            inference_mode=True,
        )
        path = directory / ADAPTER_FILE
        try:
            with safe_open(path, framework="pt") as file:
                names = list(file.keys())
                shapes = {name: tuple(file.get_slice(name).get_shape()) for name in names}
        except (OSError, SafetensorError) as error:
            raise InputError("adapter", f"{path} is missing or damaged", "Save it again.") from error
        return cls(lora, shapes)


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
        weights, _ = load_adapter(directory)
        return self.put(name, files, weights, version)

    def check_fits(self, files: AdapterFiles) -> None:
        """Compare an adapter's shapes with the model's, before memory of its size is allocated.

        Raises:
            InputError: the adapter belongs to another model, or changes its output layer.
        """
        ranks = {shape[0] for name, shape in files.shapes.items() if "lora_A" in name and shape}
        name, expected = "shapes-only", None
        if ranks == {files.lora.r}:
            try:
                with torch.device("meta"):  # tensors there have a shape and no memory
                    self.policy.add_adapter(name, files.lora)
            except ValueError as error:
                raise _misfit() from error
            expected = self.policy.adapter_shapes(name)
            self.policy.drop_adapter(name)
        if expected != files.shapes:
            raise _misfit()

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
        weights, _ = await asyncio.to_thread(load_adapter, directory)
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

    def _new_copy(self, lora: LoraConfig, weights: dict[str, Tensor]) -> str:
        """Add an adapter with these weights to the model; return the name that it has there."""
        name = f"served-{self._loaded}"
        self._loaded += 1
        self.policy.add_adapter(name, lora)
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


def _misfit() -> InputError:
    return InputError(
        "adapter", "its weights do not fit this base model", "Give the adapter's own base model."
    )
