"""The model card of what is exported: how others load it, and from which base model it was trained."""

import os
import re
from pathlib import Path

from sparring.core.adapters import BUNDLED_MODEL, VLLM_RANKS

BUNDLED_ID = "HuggingFaceTB/SmolLM2-135M-Instruct"
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")

CARD = """---
{front}---

# {title}

{what}

## Use

{use}"""
ADAPTER = """With [PEFT](https://huggingface.co/docs/peft), from this directory or its id on the hub:

```python
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

base = "{base}"
model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), "{directory}")
tokenizer = AutoTokenizer.from_pretrained(base)
```

With [vLLM](https://docs.vllm.ai):

```console
$ vllm serve {base} --enable-lora --max-lora-rank {limit} --lora-modules {directory}={directory}
```
"""
MERGED = """With [transformers](https://huggingface.co/docs/transformers), from this directory or its id:

```python
from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained("{directory}")
tokenizer = AutoTokenizer.from_pretrained("{directory}")
```

With [vLLM](https://docs.vllm.ai):

```console
$ vllm serve {directory}
```
"""
GGUF_MODEL = """With [llama.cpp](https://github.com/ggml-org/llama.cpp):

```console
$ llama-server -m {file}
```
"""
GGUF_ADAPTER = """With [llama.cpp](https://github.com/ggml-org/llama.cpp) and a GGUF file of `{base}`:

```console
$ llama-server -m BASE.gguf --lora {file}
```
"""


def public_name(base: str) -> str:
    """Return the name of a base model without a directory of this machine: the last part of a path."""
    path = Path(os.path.expanduser(base))
    if path.exists() or base.startswith(("/", ".", "~")) or base.count("/") > 1:
        return path.resolve().name
    return base


def model_card(
    base: str, directory: str, rank: int, *, merged: bool, origin: str = "", gguf: str | None = None
) -> str:
    """Return the card in Markdown.

    Args:
        base: the base model: a Hugging Face id, a directory, or ``smollm2-135m``.
        directory: name of the directory that is written.
        rank: the adapter's rank.
        merged: whether the adapter is merged into the base model.
        origin: a sentence on what the run trained on; empty if it is not known.
        gguf: name of the GGUF file, if that is what is written.
    """
    name = public_name(base)
    hub = BUNDLED_ID if base == BUNDLED_MODEL else name if _HUB_ID.fullmatch(name) else None
    tags = ["sparring"] if merged else ["lora", "sparring"]
    library = "gguf" if gguf is not None else "transformers" if merged else "peft"
    lines = [f"library_name: {library}", "pipeline_tag: text-generation"]
    if hub is not None:
        lines.insert(0, f"base_model: {hub}")
        tags.append(f"base_model:{'finetune' if merged else 'adapter'}:{hub}")
    lines += ["tags:", *(f"- {tag}" for tag in tags)]
    what = f"{'A model' if merged else 'A LoRA adapter'} trained with sparring on `{hub or name}`."
    if base == BUNDLED_MODEL:
        what += " The weights were those in four bits (Q4_1 of GGUF); the original's differ a little."
    elif hub is None:
        what += (
            " That is the name of a directory or file of the author, who should say here which model it is."
        )
        if not merged and gguf is None:
            what += " To load the adapter, write its place or id on the hub into `base_model_name_or_path`."
    what += f" {origin}" if origin else ""
    if gguf is not None:
        use = (GGUF_MODEL if merged else GGUF_ADAPTER).format(base=hub or name, file=gguf)
        return CARD.format(front="".join(f"{line}\n" for line in lines), title=directory, what=what, use=use)
    limit = next((one for one in VLLM_RANKS if one >= rank), rank)
    use = (MERGED if merged else ADAPTER).format(base=hub or name, directory=directory, limit=limit)
    front = "".join(f"{line}\n" for line in lines)
    return CARD.format(front=front, title=directory, what=what, use=use)
