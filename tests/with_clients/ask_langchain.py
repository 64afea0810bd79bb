"""LangChain: ask_langchain.py URL MODEL, with the key in OPENAI_API_KEY."""

import json
import sys
from importlib.metadata import version

from langchain_openai import ChatOpenAI, OpenAI

url, model = sys.argv[1:]
chat = ChatOpenAI(base_url=url, model=model, temperature=0.7, max_tokens=12, seed=3, max_retries=0)
text = chat.invoke("rules").content
completion = OpenAI(base_url=url, model=model, temperature=0.0, max_tokens=5, max_retries=0)
print(
    json.dumps(
        {
            "version": version("langchain-openai"),
            "text": text,
            "streamed": "".join(chunk.content for chunk in chat.stream("rules")),
            "batch": [one.content for one in chat.batch(["rules", "rules"])],
            "stopped": chat.bind(stop=[text[3]]).invoke("rules").content,
            "logprobs": len(
                chat.bind(logprobs=True, top_logprobs=2)
                .invoke("rules")
                .response_metadata["logprobs"]["content"]
            ),
            "completion": completion.invoke("rules"),
        }
    )
)
