"""Files of a run as artifacts of Weights & Biases. The package is imported only if a run asks for it."""

import importlib
import re
from pathlib import Path
from typing import Any


def add_file(run: Any, artifact_name: str, artifact_type: str, file_path: Path) -> None:
    """Log a new version of an artifact of a W&B run: its files so far, and this one.

    The artifact is made if there is none. What it holds so far need not be known here, so this works without
    a network and after a restart.
    """
    wandb = importlib.import_module("wandb")
    name = re.sub(r"[^\w.-]", "-", artifact_name, flags=re.ASCII)
    artifact = wandb.Artifact(name, artifact_type, incremental=True)
    artifact.add_file(str(file_path))
    run.log_artifact(artifact)
