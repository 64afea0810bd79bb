"""An adapter's directory, described without its weights."""

from dataclasses import dataclass, replace
from pathlib import Path

from selfplay.core.adapter_config import EVERY_LINEAR_LAYER, read_adapter_config
from selfplay.learning.adapter_weights import Shapes, layer_of, read_shapes
from selfplay.learning.policy import LoraSettings


@dataclass(frozen=True)
class AdapterFiles:
    """The LoRA configuration of an adapter and the shapes of its tensors."""

    lora: LoraSettings
    shapes: Shapes

    @classmethod
    def read(cls, directory: Path) -> "AdapterFiles":
        """Read the configuration and the header of the weights.

        If the configuration says ``all-linear``, the layers are those that have weights.

        Raises:
            InputError: files are missing or damaged, or the adapter is more than a LoRA adapter.
        """
        config = read_adapter_config(directory)
        shapes = read_shapes(directory)
        lora = LoraSettings.of(config)
        if config["target_modules"] == EVERY_LINEAR_LAYER:
            lora = replace(lora, target_modules=sorted({layer_of(name) for name in shapes}))
        return cls(lora, shapes)
