"""llama.cpp: ask_llama_cpp.py MODEL LORA QUESTIONS, GGUF files (LORA may be empty) and JSON lists of texts to
split and of prompts, as ids, to continue at temperature 0."""

import json
import sys
import urllib.request
from importlib.metadata import version

import xllamacpp

model, lora, questions = sys.argv[1:]
settings = xllamacpp.CommonParams()
settings.model.path = model
settings.n_ctx, settings.n_parallel, settings.cpuparams.n_threads, settings.warmup = 512, 1, 1, False
settings.cache_type_k = settings.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32  # random weights are close
settings.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
if lora:
    adapter = xllamacpp.CommonAdapterLoraInfo()
    adapter.path, adapter.scale = lora, 1.0
    settings.lora_adapters = [adapter]
server = xllamacpp.Server(settings)


def ask(path: str, **body: object) -> dict:
    content, kind = json.dumps(body).encode(), {"Content-Type": "application/json"}
    request = urllib.request.Request(server.listening_address + path, content, kind)
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


asked = json.loads(questions)
greedy = {"temperature": 0, "n_predict": 20, "return_tokens": True, "cache_prompt": False, "ignore_eos": True}
print(
    json.dumps(
        {
            "version": version("xllamacpp"),
            "ids": [ask("/tokenize", content=text)["tokens"] for text in asked["texts"]],
            "continued": [ask("/completion", prompt=ids, **greedy)["tokens"] for ids in asked["prompts"]],
        }
    )
)
