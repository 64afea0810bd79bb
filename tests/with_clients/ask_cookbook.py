"""tinker-cookbook: ask_cookbook.py URL, with the key in SPARRING_API_KEY, in a directory with the model
Qwen/Qwen3-8B-Base and the data set HuggingFaceH4/no_robots: ``sl_loop``, unchanged, and what it sent."""

import json
import os
import sys
from importlib.metadata import version

os.environ["TINKER_API_KEY"] = f"tml-{os.environ['SPARRING_API_KEY']}"
import tinker
from tinker_cookbook.recipes import sl_loop

sent, models = [], []
forward_backward = tinker.TrainingClient.forward_backward


def listened(self: tinker.TrainingClient, data: list[tinker.types.Datum], loss_fn: str) -> object:
    """Note what is sent."""
    models.append(self.model_id)
    sent.append(
        [
            {
                "tokens": one.model_input.to_ints(),
                "targets": one.loss_fn_inputs["target_tokens"].data,
                "weights": one.loss_fn_inputs["weights"].data,
            }
            for one in data
        ]
    )
    return forward_backward(self, data, loss_fn)


tinker.TrainingClient.forward_backward = listened
sl_loop.main(
    sl_loop.Config(
        base_url=sys.argv[1].removesuffix("/v1"),
        log_path="log",
        model_name="Qwen/Qwen3-8B-Base",
        batch_size=4,
        lora_rank=4,
        max_steps=10,
        save_every=4,
        learning_rate=1e-3,
    )
)
with open("log/metrics.jsonl") as file:
    rows = [json.loads(line) for line in file]
told = {"version": version("tinker-cookbook"), "model": models[0], "sent": sent, "rows": rows}
print(json.dumps(told, default=lambda one: one.tolist()))
