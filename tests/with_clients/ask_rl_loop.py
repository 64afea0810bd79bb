"""tinker-cookbook: ask_rl_loop.py URL LOSS, with the key in SPARRING_API_KEY, in a directory with the model
Qwen/Qwen3-8B-Base and the data set openai/gsm8k: ``rl_loop`` with a reward that a tiny model can earn."""

import json
import os
import sys
from importlib.metadata import version

os.environ["TINKER_API_KEY"] = f"tml-{os.environ['SPARRING_API_KEY']}"
import tinker
from tinker_cookbook.recipes import rl_loop

sent = []
forward_backward = tinker.TrainingClient.forward_backward


def listened(self: tinker.TrainingClient, data: list[tinker.types.Datum], loss_fn: str) -> object:
    """Note how much is sent."""
    sent.append(len(data))
    return forward_backward(self, data, loss_fn)


tinker.TrainingClient.forward_backward = listened
rl_loop.get_reward = lambda response, answer: float(len(response) % 2)
rl_loop.main(
    rl_loop.Config(
        base_url=sys.argv[1].removesuffix("/v1"),
        log_path=f"log-{sys.argv[2]}",
        model_name="Qwen/Qwen3-8B-Base",
        batch_size=2,
        group_size=4,
        lora_rank=4,
        max_steps=3,
        max_tokens=8,
        save_every=2,
        learning_rate=1e-3,
        loss_fn=sys.argv[2],
    )
)
with open(f"log-{sys.argv[2]}/metrics.jsonl") as file:
    rows = [json.loads(line) for line in file]
print(json.dumps({"version": version("tinker-cookbook"), "sent": sent, "rows": rows}))
