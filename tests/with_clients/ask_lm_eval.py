"""The Language Model Evaluation Harness: ask_lm_eval.py URL MODEL TOKENIZER TASKS, the key in OPENAI_API_KEY.

TASKS is a directory with the tasks ``choices`` (log-likelihoods) and ``words`` (answers).
"""

import json
import sys
from importlib.metadata import version

import lm_eval
from lm_eval.tasks import TaskManager

url, model, tokenizer, tasks = sys.argv[1:]


def samples(kind: str, path: str, task: str, **more: object) -> list[object]:
    """Return what the model answered to each request of a task."""
    given = {"base_url": f"{url}/{path}", "model": model, "num_concurrent": 2, "max_retries": 1, **more}
    results = lm_eval.simple_evaluate(
        model=kind,
        model_args=given,
        tasks=[task],
        task_manager=TaskManager(include_path=tasks, include_defaults=False),
        apply_chat_template=kind.endswith("chat-completions"),
        bootstrap_iters=0,
    )
    return [one["filtered_resps"] for one in results["samples"][task]]


local = {"tokenizer": tokenizer, "tokenizer_backend": "huggingface"}
print(
    json.dumps(
        {
            "version": version("lm_eval"),
            "ids": samples("local-completions", "completions", "choices", tokenized_requests=True, **local),
            "texts": samples(
                "local-completions", "completions", "choices", tokenized_requests=False, **local
            ),
            "completions": samples("local-completions", "completions", "words", **local),
            "chat": samples("local-chat-completions", "chat/completions", "words", tokenized_requests=False),
        }
    )
)
