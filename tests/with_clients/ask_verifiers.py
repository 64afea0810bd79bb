"""Verifiers' client for training: ask_verifiers.py URL MODEL TOKENIZER, with the key in OPENAI_API_KEY."""

import asyncio
import json
import sys
from importlib.metadata import version

from verifiers.v1.clients.train import TrainClient
from verifiers.v1.configs.client import TrainClientConfig
from verifiers.v1.dialects.chat import ChatDialect
from verifiers.v1.types import SamplingConfig

url, model, tokenizer = sys.argv[1:]


async def main() -> None:
    """Ask once, and again with a limit that the context cannot have."""
    config = TrainClientConfig(base_url=url, api_key_var="OPENAI_API_KEY", renderer_model_name=tokenizer)
    client = TrainClient(config)
    body = {"model": model, "messages": [{"role": "user", "content": "rules"}]}
    sampling = SamplingConfig(temperature=0.7, max_tokens=12, seed=3)
    answer = await client.get_response(ChatDialect(), body, sampling)
    print(json.dumps({"version": version("verifiers"), **answer.model_dump(mode="json")}, default=str))


asyncio.run(main())
