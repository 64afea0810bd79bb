"""OpenAI's package for Python: ask_openai.py URL MODEL, with the key in OPENAI_API_KEY."""

import json
import sys

import openai

url, model = sys.argv[1:]
client = openai.OpenAI(base_url=url, max_retries=0)
asked = [{"role": "user", "content": "rules"}]
options = {"temperature": 0.7, "max_tokens": 12, "seed": 3}

raw = client.chat.completions.with_raw_response.create(model=model, messages=asked, **options)
chunks = list(
    client.chat.completions.create(
        model=model, messages=asked, stream=True, stream_options={"include_usage": True}, **options
    )
)
scored = client.chat.completions.create(
    model=model, messages=asked, logprobs=True, top_logprobs=2, top_p=0.9, **options
)
echoed = client.completions.create(model=model, prompt="rules", echo=True, logprobs=1, max_tokens=0)
text = raw.parse().choices[0].message.content
stopped = client.chat.completions.create(model=model, messages=asked, stop=[text[3]], **options)


def refusal(**changes: object) -> str:
    """Return the kind of error with which a changed request ends."""
    try:
        client.chat.completions.create(**({"model": model, "messages": asked} | changes))
    except openai.APIStatusError as error:
        return type(error).__name__
    return "none"


print(
    json.dumps(
        {
            "version": openai.__version__,
            "text": text,
            "request_id": raw.parse()._request_id,
            "streamed": "".join(c.choices[0].delta.content or "" for c in chunks if c.choices),
            "usage": chunks[-1].usage.total_tokens,
            "alternatives": [len(one.top_logprobs) for one in scored.choices[0].logprobs.content],
            "echo": echoed.choices[0].text,
            "logprobs": echoed.choices[0].logprobs.token_logprobs,
            "stopped": stopped.choices[0].message.content,
            "models": [one.id for one in client.models.list()],
            "default": client.models.retrieve("default").id,
            "unknown model": refusal(model="nobody"),
            "unknown field": refusal(extra_body={"temprature": 0}),
            "tools": refusal(tools=[{"type": "function", "function": {"name": "f", "parameters": {}}}]),
        }
    )
)
