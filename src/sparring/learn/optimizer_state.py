"""The tensors from which the training of an adapter continues: weights, critic and the optimizer's state."""

import torch
from torch import Tensor
from torch.nn import Parameter

from sparring.learn.critic import Critic
from sparring.learn.policy import PolicyModel

CRITIC = "critic."
"""How the names of the critic's weights begin."""


def training_tensors(
    policy: PolicyModel, adapter: str, optimizer: torch.optim.Optimizer, critic: Critic | None = None
) -> dict[str, Tensor]:
    """Return trained weights and AdamW's moments and step counts, under the same names for any policy."""
    tensors = {f"weights.{key}": value for key, value in policy.adapter_state(adapter).items()}
    if critic is not None:
        tensors |= {CRITIC + key: value for key, value in critic.state().items()}
    for index, parameter in enumerate(_parameters(policy, adapter, critic)):
        for name, value in optimizer.state.get(parameter, {}).items():
            tensors[f"optimizer.{index}.{name}"] = torch.as_tensor(value).detach().clone().cpu()
    return tensors


def load_training_tensors(
    policy: PolicyModel,
    adapter: str,
    optimizer: torch.optim.Optimizer,
    tensors: dict[str, Tensor],
    critic: Critic | None = None,
) -> None:
    """Restore the state of :func:`training_tensors`. Tensors without a critic leave it as it is.

    Raises:
        InputError: the weights belong to another adapter.
    """
    policy.load_adapter_state(part_of(tensors, "weights."), adapter)
    head = part_of(tensors, CRITIC)
    if critic is not None and head:
        critic.load_state(head)
    for index, parameter in enumerate(_parameters(policy, adapter, critic)):
        moments = part_of(tensors, f"optimizer.{index}.")
        optimizer.state[parameter] = {
            name: value if name == "step" else value.to(policy.device) for name, value in moments.items()
        }


def part_of(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return the tensors whose names begin with ``prefix``, without it."""
    return {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}


def _parameters(policy: PolicyModel, adapter: str, critic: Critic | None) -> list[Parameter]:
    """Return what the optimizer steps, in its order."""
    return [*policy.adapter_parameters(adapter), *(critic.parameters() if critic is not None else [])]
