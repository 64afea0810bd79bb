"""Write a model with an adapter merged into its weights."""

from functools import partial
from pathlib import Path

import torch
from rich.console import Console

from sparring.learn.adapter_weights import read_weights
from sparring.learn.model_files import resolve_model
from sparring.learn.policy import LoraSettings, PolicyModel
from sparring.run.progress_views import print_line


def write_merged(base: str, adapter: Path, directory: Path, console: Console) -> None:
    """Write the base model with the adapter merged, in float32, and its tokenizer to a directory.

    Raises:
        InputError: the base model cannot be loaded, or the adapter does not fit it.
        OSError: the directory cannot be written.
    """
    name = resolve_model(base, partial(print_line, console))
    policy = PolicyModel(name, LoraSettings.read(adapter), dtype=torch.float32)
    policy.load_adapter_state(read_weights(adapter))
    merged = policy.model.merge_and_unload(safe_merge=True)
    merged.save_pretrained(directory)
    policy.tokenizer.save_pretrained(directory)
