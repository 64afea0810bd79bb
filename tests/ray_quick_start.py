"""The quick start of seed 000, run as it stands but for import lines, names of models and sizes."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray

SOURCE = Path(__file__).with_name("seed_000_quick_start.txt").read_text()
"""As it stands in the seed."""

NAMES = ("Tracker", "StepBuffer", "ModelPool", "Collector", "Learner")
NAMESPACE = "unstable"

IMPORTS = {
    "import ray, unstable\n": "import ray, selfplay.ray as unstable\n",
    "import unstable.reward_transformations": "import selfplay.ray.reward_transformations",
    'ray.init(namespace="unstable")\n': "",  # the tests share one cluster, in this namespace
}
SIZES = {
    "max_buffer_size=768": "max_buffer_size=48",
    '"lora_rank": 32, "lora_alpha": 32': '"lora_rank": 2, "lora_alpha": 4',
    '"max_tokens": 4096': '"max_tokens": 8',
    "batch_size=384": "batch_size=16",
    "num_gpus=1": "num_gpus=0",
    "max_generation_len=4096": "max_generation_len=8",
    "num_workers=384, num_eval_workers=16": "num_workers=16, num_eval_workers=4",
    "train.remote(200)": "train.remote(2)",
}


@dataclass(frozen=True)
class Demo:
    """What there was to see when the quick start had ended.

    ``named`` are the actors that a lookup by name found, ``info`` is the tracker's for interfaces.
    """

    directory: Path
    named: list[str]
    snapshot: dict[str, Any]
    accounts: dict[str, int]
    steps: dict[str, int]
    info: dict[str, Any]


def quick_start(model: str, opponent: str, sizes: Mapping[str, str]) -> str:
    """The code, with other imports, a model and an opponent of this machine, and other sizes."""
    models = {"Qwen/Qwen3-1.7B-base": model, "google/gemini-2.0-flash-lite-001": opponent}
    source = SOURCE
    for old, new in {**IMPORTS, **models, **sizes}.items():
        assert old in source, f"the seed has no {old!r}"
        source = source.replace(old, new)
    return source


def run_quick_start(source: str) -> Demo:
    """Run it on the cluster that is connected, look at what came of it, and end its actors."""
    script: dict[str, Any] = {}
    try:
        exec(compile(source, "quick start", "exec"), script)
        return Demo(
            Path(ray.get(script["tracker"].run_directory.remote())),
            [name for name in NAMES if find(name) is not None],
            ray.get(script["model_pool"].snapshot.remote()),
            ray.get(script["model_pool"].accounts.remote()),
            ray.get(script["step_buffer"].counts.remote()),
            ray.get(script["tracker"].get_interface_info.remote()),
        )
    finally:
        end()


def find(name: str) -> Any:
    """The actor of this name, or nothing."""
    with suppress(ValueError):
        return ray.get_actor(name, namespace=NAMESPACE)
    return None


def end() -> None:
    """End the actors that have names of the quick start, so that others can take them."""
    for name in NAMES:
        while (actor := find(name)) is not None:
            ray.kill(actor)
