"""The tensors from which the training of an adapter continues: its weights and its optimizer's state."""

import torch
from torch import Tensor

from selfplay.learning.policy import PolicyModel


def training_tensors(
    policy: PolicyModel, adapter: str, optimizer: torch.optim.Optimizer
) -> dict[str, Tensor]:
    """Return trained weights and AdamW's moments and step counts, under the same names for any policy."""
    tensors = {f"weights.{key}": value for key, value in policy.adapter_state(adapter).items()}
    for index, parameter in enumerate(policy.adapter_parameters(adapter)):
        for name, value in optimizer.state.get(parameter, {}).items():
            tensors[f"optimizer.{index}.{name}"] = torch.as_tensor(value).detach().clone().cpu()
    return tensors


def load_training_tensors(
    policy: PolicyModel, adapter: str, optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]
) -> None:
    """Restore the state of :func:`training_tensors`.

    Raises:
        InputError: the weights belong to another adapter.
    """
    prefix = "weights."
    weights = {key.removeprefix(prefix): v for key, v in tensors.items() if key.startswith(prefix)}
    policy.load_adapter_state(weights, adapter)
    for index, parameter in enumerate(policy.adapter_parameters(adapter)):
        prefix = f"optimizer.{index}."
        moments = {key.removeprefix(prefix): v for key, v in tensors.items() if key.startswith(prefix)}
        optimizer.state[parameter] = {
            name: value if name == "step" else value.to(policy.device) for name, value in moments.items()
        }
