"""Adapters that come and go while their model is served."""

from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig
from torch import Tensor

from selfplay.core import InputError
from selfplay.inference.engine import EmbeddedEngine
from selfplay.learning.checkpoints import load_adapter
from selfplay.learning.policy import TRAINED, PolicyModel


class ServedAdapters:
    """LoRA adapters of one model, each of its own rank, scale and target modules.

    Every adapter that is loaded is a new policy version.
    """

    def __init__(self, policy: PolicyModel, engine: EmbeddedEngine) -> None:
        self.policy = policy
        self.engine = engine
        self._newest = 0
        self._loaded = 0
        self._name_in_model: dict[str, str] = {}

    def load(self, name: str, directory: Path, version: int | None = None) -> int:
        """Serve an adapter as ``name``, in the place of one of that name; returns its policy version.

        Args:
            name: what clients ask for.
            directory: in PEFT's format, safetensors only.
            version: what its answers are tagged with; one more than the newest by default.

        Raises:
            InputError: it cannot be read or does not fit the model, or ``name`` is the base model's.
        """
        if name in self.engine.names() and name not in self._name_in_model:
            raise InputError("lora_name", f"{name} is the base model's name", "Give the adapter another.")
        weights, config = load_adapter(_expanded(directory))
        version = self._newest + 1 if version is None else version
        in_model = f"served-{self._loaded}"
        _add_adapter(self.policy, in_model, weights, config)
        replaced = self._name_in_model.get(name)
        self._name_in_model[name] = in_model
        self._newest, self._loaded = max(self._newest, version), self._loaded + 1
        self.engine.publish(name, in_model, version)
        if replaced is not None:
            self.policy.drop_adapter(replaced)
        return version

    def unload(self, name: str) -> None:
        """Stop serving adapter ``name`` and free its memory. Who waits for an answer of it gets an error.

        Raises:
            InputError: there is no such adapter.
        """
        if name not in self._name_in_model:
            raise InputError("lora_name", f"{name} is no adapter", "Name one that was loaded.")
        self.engine.withdraw(name)
        self.policy.drop_adapter(self._name_in_model.pop(name))


def _expanded(directory: Path) -> Path:
    """The path with the home directory that "~" stands for.

    Raises:
        InputError: nobody here has that home.
    """
    try:
        return directory.expanduser()
    except RuntimeError as error:
        raise InputError("lora_path", f"{directory} is in nobody's home", "Give the whole path.") from error


def _add_adapter(policy: PolicyModel, name: str, weights: dict[str, Tensor], config: dict[str, Any]) -> None:
    """Add a frozen adapter whose shape is its own.

    Raises:
        InputError: it is another model's.
    """
    lora = LoraConfig(
        r=config["r"],
        lora_alpha=config["lora_alpha"],
        target_modules=config["target_modules"],
        task_type="CAUSAL_LM",
        inference_mode=True,
    )
    misfit = InputError("adapter", "its weights do not fit this base model", "Give the adapter's own base.")
    try:
        with policy.adapter(TRAINED):
            policy.model.add_adapter(name, lora)
            policy.model.to(policy.device)
    except ValueError as error:
        raise misfit from error
    shapes = {key: value.shape for key, value in policy.adapter_state(name).items()}
    if shapes != {key: value.shape for key, value in weights.items()}:
        policy.drop_adapter(name)
        raise misfit
    with torch.no_grad():
        for key, parameter in zip(shapes, policy.adapter_parameters(name), strict=True):
            parameter.copy_(weights[key])
