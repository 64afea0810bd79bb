"""Tiny randomly initialised Llama and Qwen3 models with a byte tokenizer, made offline, for tests."""

import atexit
import functools
import json
import shutil
import tempfile
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from sparring.config.learning import LearningSettings
from sparring.core import Messages, TrainingRecord
from sparring.learn.algorithms import BaseAlgo
from sparring.learn.checkpoints import save_adapter
from sparring.learn.policy import LoraSettings, PolicyModel

torch.set_num_threads(1)

ARCHITECTURES = ("llama", pytest.param("qwen3", marks=pytest.mark.slow))
STOP = "<|im_end|>"
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CONTEXT_LENGTH = 256
_DIRECTORY = tempfile.TemporaryDirectory(prefix="sparring-tiny-models-")
atexit.register(_DIRECTORY.cleanup)


def text_prompt(text: str) -> Messages:
    """A prompt whose tokens are the bytes of ``text``."""
    return [{"role": "text", "content": text}]


@functools.cache
def tiny_model(architecture: str, tied: bool = True, seed: int = 0, head_size: int = 8) -> Path:
    """Save a model of 2 layers, hidden size 32, 4 heads on 2 key-value heads; return its directory.

    The weights are large enough for next-token distributions to be far from uniform.
    """
    directory = Path(_DIRECTORY.name) / f"{architecture}-{'tied' if tied else 'untied'}-{seed}-{head_size}"
    tokenizer = _byte_tokenizer()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = _build_model(architecture, tied, head_size, len(tokenizer), tokenizer.eos_token_id)
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory


@functools.cache
def roomy_model(head_size: int = 8) -> Path:
    """A tiny Llama whose context has room for a few-shot prompt of bytes."""
    directory = Path(_DIRECTORY.name) / f"roomy-{head_size}"
    shutil.copytree(tiny_model("llama", head_size=head_size), directory)
    config = json.loads((directory / "config.json").read_text())
    config["max_position_embeddings"] = 16384
    (directory / "config.json").write_text(json.dumps(config))
    return directory


def tiny_policy(
    architecture: str = "llama",
    *,
    tied: bool = True,
    perturbed: bool = True,
    dtype: torch.dtype = torch.float32,
    rank: int = 4,
    shard_base: bool = False,
) -> PolicyModel:
    """Load a tiny model with a LoRA adapter; ``perturbed``: with random, non-zero A and B."""
    policy = PolicyModel(
        str(tiny_model(architecture, tied)),
        LoraSettings(rank, 2.0 * rank),
        dtype=dtype,
        shard_base=shard_base,
    )
    if perturbed:
        perturb_adapter(policy)
    return policy


def perturb_adapter(policy: PolicyModel, name: str = "default", seed: int = 1) -> None:
    """Give an adapter random, non-zero weights."""
    generator = torch.Generator().manual_seed(seed)
    state = policy.adapter_state(name) or policy.adapter_state("default")
    policy.load_adapter_state(
        {key: 0.2 * torch.randn(value.shape, generator=generator) for key, value in state.items()}, name
    )


def constant(rate: float = 1e-3, **fields) -> LearningSettings:
    """Settings of a learner with a constant rate, which accept any mismatch unless they say otherwise."""
    given = {"max_mismatch": 1e6, "max_generation_len": 4, **fields}
    return LearningSettings(learning_rate=rate, schedule="constant", warmup_steps=0, **given)


def algorithm_of(kind: type[BaseAlgo], **options) -> BaseAlgo:
    """An algorithm of the package with these settings."""
    return kind(type(kind.settings)(**options))


def logits_of(policy: PolicyModel, ids: list[int]) -> torch.Tensor:
    """The logits after each token, TV, as transformers and PEFT compute them from the policy's own files."""
    with torch.inference_mode():
        return _as_of_others(policy)(torch.tensor([ids])).logits[0].double()


@functools.cache
def _as_of_others(policy: PolicyModel) -> PeftModel:
    with tempfile.TemporaryDirectory() as directory:
        save_adapter(Path(directory), policy, "default")
        base = AutoModelForCausalLM.from_pretrained(policy.model_name)
        return PeftModel.from_pretrained(base, directory).eval()


def make_record(
    prompt: list[int],
    completion: list[int],
    advantage: float = 1.0,
    *,
    logprobs: list[float] | None = None,
    alternatives: list[list[int]] | None = None,
    policy_version: int = 0,
    temperature: float = 1.0,
) -> TrainingRecord:
    """A training record of given tokens; without ``logprobs`` each token's is 0."""
    return TrainingRecord(
        role_id="player_0",
        rollout_id="r",
        prompt_token_ids=prompt,
        completion_token_ids=completion,
        logprobs=[0.0] * len(completion) if logprobs is None else logprobs,
        reward=advantage,
        advantage=advantage,
        alternatives=alternatives or [],
        policy_version=policy_version,
        temperature=temperature,
    )


def _byte_tokenizer() -> PreTrainedTokenizerFast:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token="<|endoftext|>",
        eos_token=STOP,
        additional_special_tokens=["<|im_start|>"],
        chat_template=CHAT_TEMPLATE,
    )


def _build_model(
    architecture: str, tied: bool, head_size: int, vocab_size: int, eos_token_id: int
) -> PreTrainedModel:
    shape = {
        "vocab_size": vocab_size,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": head_size,
        "max_position_embeddings": CONTEXT_LENGTH,
        "initializer_range": 0.3,
        "tie_word_embeddings": tied,
        "eos_token_id": eos_token_id,
        "bos_token_id": None,
    }
    if architecture == "llama":
        return LlamaForCausalLM(LlamaConfig(**shape))
    return Qwen3ForCausalLM(Qwen3Config(**shape))
