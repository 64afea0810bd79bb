"""Inspect: ask_inspect.py URL MODEL TEXTS, with the key in SPARRING_API_KEY: an evaluation of one sample, and
the log-likelihoods of texts, which are a list in JSON.
"""

import asyncio
import json
import sys
from importlib.metadata import version

from inspect_ai import Task, eval
from inspect_ai.dataset import Sample
from inspect_ai.model import GenerateConfig, get_model
from inspect_ai.scorer import includes
from inspect_ai.solver import generate

url, model, texts = sys.argv[1:]


def log(**more: object) -> object:
    """Evaluate, and return the log."""
    config = GenerateConfig(temperature=0.7, max_tokens=12, seed=3, max_retries=0, **more)
    asked = get_model(f"openai-api/sparring/{model}", base_url=url, config=config, memoize=False)
    task = Task(dataset=[Sample(input="rules", target="x")], solver=generate(), scorer=includes())
    return eval(task, model=asked, display="none", log_dir="logs", fail_on_error=True)[0]


async def likelihoods() -> list[list[float]]:
    """Return the log-probability of each token of the texts but the first, and of one that is drawn."""
    config = GenerateConfig(logprobs=True, max_tokens=1, max_retries=0, extra_body={"echo": True})
    asked = get_model(f"openai-api-completions/sparring/{model}", base_url=url, config=config, memoize=False)
    outputs = [await asked.generate(text) for text in json.loads(texts)]
    return [[one.logprob for one in output.choices[0].logprobs.content] for output in outputs]


plain = log()
text = plain.samples[0].output.completion
stopped = log(stop_seqs=[text[3]])
scored = log(logprobs=True, top_logprobs=2)
print(
    json.dumps(
        {
            "version": version("inspect_ai"),
            "likelihoods": asyncio.run(likelihoods()),
            "status": [one.status for one in (plain, stopped, scored)],
            "text": text,
            "stopped": stopped.samples[0].output.completion,
            "alternatives": [
                len(one.top_logprobs) for one in scored.samples[0].output.choices[0].logprobs.content
            ],
        }
    )
)
