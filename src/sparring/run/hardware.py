"""Choose what a model computes on: its device and dtype, and torch's number of threads.

More threads are not always faster: where other processes use the cores, every small operation waits for the
thread that was descheduled. Results depend on the number, since sums are rounded in another order. So it is
measured when a run starts, written into its configuration and not measured again.
"""

import os
from collections.abc import Callable
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING

from sparring.config import Config
from sparring.config.model import ModelSettings
from sparring.core import InputError

if TYPE_CHECKING:
    import torch


TOKENS, HIDDEN, INNER = 48, 768, 2048
"""The timed operation is a feed-forward layer of a small model, over as many contexts as play has at once."""
LAYERS = 2
"""Layers in one timing: several milliseconds on one thread, so that descheduling shows."""
SECONDS = 0.3
WORTH = 1.25
"""More threads must be faster by this factor: a whole pass gains less than this layer does."""


def with_chosen_threads(config: Config, most: int, say: Callable[[str], None]) -> Config:
    """Return the configuration with a number of threads: its own, or else the fastest up to ``most``."""
    if config.model.threads is not None:
        return config
    model = config.model.model_copy(update={"threads": chosen_threads(config.model, most, say)})
    return config.model_copy(update={"model": model})


def chosen_threads(model: ModelSettings, most: int, say: Callable[[str], None]) -> int:
    """Return the number of threads in the settings, or else the fastest up to ``most``, announced by ``say``.

    With a GPU nothing is measured: threads matter little, and all are used.
    """
    if model.threads is not None:
        return model.threads
    if most == 1 or computes_on_gpu(model.device):
        return most
    seconds = measured_seconds(candidates(most), base_dtype(model.dtype, "cpu"))
    threads = fastest(seconds)
    figures = ", ".join(f"{1000 * taken:.1f} ms on {count}" for count, taken in seconds.items())
    say(f"computing on {threads} of {most} threads: a layer takes {figures} (model.threads)")
    return threads


def available_cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1  # macOS


def computes_on_gpu(device: str) -> bool:
    """Whether the model runs on a GPU."""
    import torch

    return device.startswith("cuda") or (device == "auto" and torch.cuda.is_available())


def candidates(most: int) -> list[int]:
    """Return 1, 2, 4 and so on, and ``most``."""
    return [*(1 << power for power in range(most.bit_length()) if 1 << power < most), most]


def measured_seconds(counts: list[int], dtype: "torch.dtype") -> dict[int, float]:
    """Return seconds per layer by number of threads: medians of interleaved timings, ``SECONDS`` in all."""
    import torch

    hidden = torch.ones(TOKENS, HIDDEN, dtype=dtype)
    up, down = (torch.full(shape, 1e-3, dtype=dtype) for shape in ((INNER, HIDDEN), (HIDDEN, INNER)))
    timings: dict[int, list[float]] = {count: [] for count in counts}
    before, deadline = torch.get_num_threads(), perf_counter() + SECONDS
    try:
        while perf_counter() < deadline:
            for count in counts:
                torch.set_num_threads(count)
                _feed_forward(hidden, up, down)  # this call starts the threads
                started = perf_counter()
                for _ in range(LAYERS):
                    hidden = _feed_forward(hidden, up, down)
                timings[count].append((perf_counter() - started) / LAYERS)
    finally:
        torch.set_num_threads(before)
    return {count: median(taken) for count, taken in timings.items()}


def _feed_forward(hidden: "torch.Tensor", up: "torch.Tensor", down: "torch.Tensor") -> "torch.Tensor":
    import torch.nn.functional as F

    inner = F.linear(F.rms_norm(hidden, hidden.shape[-1:]), up)
    return hidden + F.linear(F.silu(inner) * inner, down)


def fastest(seconds: dict[int, float]) -> int:
    """Return the number of threads that takes the least time; a larger number must be faster by ``WORTH``."""
    chosen, *larger = sorted(seconds)
    for count in larger:
        if WORTH * seconds[count] <= seconds[chosen]:
            chosen = count
    return chosen


def base_dtype(name: str, device: str) -> "torch.dtype":
    """Return the base model's type: ``auto`` is bfloat16 where the machine has instructions for it."""
    import torch

    if name != "auto":
        return torch.float32 if name == "float32" else torch.bfloat16
    if device.startswith("cuda"):
        return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float32
    return torch.bfloat16 if torch.cpu._is_avx512_bf16_supported() else torch.float32


def choose_device(name: str) -> str:
    """Return the torch device that a configured name means: ``auto`` is a GPU if there is one.

    Raises InputError if torch has no such device here.
    """
    import torch

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
