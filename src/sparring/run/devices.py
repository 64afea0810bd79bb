"""Choose the device that a model runs on."""

import torch

from sparring.core import InputError


def choose_device(name: str) -> str:
    """Return the torch device that a configured name means: ``auto`` is a GPU if there is one.

    Raises:
        InputError: torch has no such device here.
    """
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name == "auto":
        return "cuda" if gpus else "cpu"
    if name.startswith("cuda") and not gpus:
        raise InputError("model.device", "torch finds no CUDA device here", 'Use "cpu" or "auto"')
    _, _, number = name.partition(":")
    if number and int(number) >= gpus:
        raise InputError(
            "model.device",
            f"torch finds no {name} here, only {gpus} CUDA device(s)",
            "Devices are numbered from cuda:0",
        )
    return name
