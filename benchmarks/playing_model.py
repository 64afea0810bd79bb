"""A tiny Llama that answers with the words of Kuhn poker, or of another game, so that games last for moves.

Its choice of words is nearly random, which suffices for tests of everything around the model.
"""

import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from sparring.envs.catalog import make_game
from sparring.envs.templates import get_template

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from tiny_models import tiny_model

WORDS = ("check", "bet", "fold", "call")
CONTEXT_LENGTH = 16384
LESSONS = 60
RATE = 1e-2


def save_playing_model(
    directory: Path, env_id: str = "kuhn_poker", words: Sequence[str] = WORDS, players: int = 2
) -> Path:
    """Create ``directory`` and save the model in it. This takes a few seconds on one core.

    Another game has other words, its moves.
    """
    shutil.copytree(tiny_model("llama"), directory)
    config = json.loads((directory / "config.json").read_text())
    config["max_position_embeddings"] = CONTEXT_LENGTH
    (directory / "config.json").write_text(json.dumps(config))
    tokenizer = AutoTokenizer.from_pretrained(directory)
    model = AutoModelForCausalLM.from_pretrained(directory)
    teach(model, tokenizer, env_id, words, players)
    model.save_pretrained(directory)
    return directory


def teach(
    model: torch.nn.Module, tokenizer: Any, env_id: str, words: Sequence[str], players: int = 2
) -> None:
    """Train a model to begin a game with one of these words."""
    _teach(model, *_lesson(tokenizer, env_id, words, players))


def _lesson(
    tokenizer: Any, env_id: str, words: Sequence[str], players: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the token ids of a first move's prompt with each word as the answer, and the targets at the end.

    Their shapes are (words, tokens) and (words, answer tokens); targets after a shorter answer are -100.
    """
    messages = get_template("fewshot-chat").messages(make_game(env_id, players, seed=0), 0)
    text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    prompt = tokenizer.encode(text, add_special_tokens=False)
    stop = tokenizer.eos_token_id
    answers = [[*tokenizer.encode(word, add_special_tokens=False), stop] for word in words]
    longest = max(map(len, answers))
    ids = [prompt + answer + [stop] * (longest - len(answer)) for answer in answers]
    targets = [answer + [-100] * (longest - len(answer)) for answer in answers]
    return torch.tensor(ids), torch.tensor(targets)


def _teach(model: torch.nn.Module, ids: torch.Tensor, targets: torch.Tensor) -> None:
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
    for _ in range(LESSONS):
        logits = model(input_ids=ids, logits_to_keep=targets.shape[1] + 1).logits[:, :-1]
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
