"""LiteLLM: ask_litellm.py URL MODEL, with the key in OPENAI_API_KEY."""

import json
import sys
from importlib.metadata import version

import litellm

url, model = sys.argv[1:]
asked = [{"role": "user", "content": "rules"}]
options = {"api_base": url, "temperature": 0.7, "max_tokens": 12, "seed": 3, "num_retries": 0}


def text(**more: object) -> str:
    """Return the text of an answer."""
    answer = litellm.completion(model=f"openai/{model}", messages=asked, **options, **more)
    return answer.choices[0].message.content


def refusal(name: str, content: str) -> str:
    """Return the kind of error with which a request ends."""
    try:
        litellm.completion(model=name, messages=[{"role": "user", "content": content}], **options)
    except Exception as error:  # noqa: BLE001 - its kind is what is asked for
        return type(error).__name__
    return "none"


plain = text()
chunks = litellm.completion(model=f"openai/{model}", messages=asked, stream=True, **options)
echoed = litellm.text_completion(
    model=f"text-completion-openai/{model}",
    prompt="rules",
    api_base=url,
    echo=True,
    logprobs=1,
    max_tokens=1,
    temperature=0,
)
print(
    json.dumps(
        {
            "version": version("litellm"),
            "text": plain,
            "hosted": litellm.completion(
                model=f"hosted_vllm/{model}", messages=asked, api_key="the-token", **options
            )
            .choices[0]
            .message.content,
            "streamed": "".join(chunk.choices[0].delta.content or "" for chunk in chunks),
            "stopped": text(stop=[plain[3]]),
            "shaped": text(top_p=0.5),
            "logprobs": echoed.choices[0].logprobs.token_logprobs,
            "unknown model": refusal("openai/nobody", "rules"),
            "too long": refusal(f"openai/{model}", "rules " * 5000),
        }
    )
)
