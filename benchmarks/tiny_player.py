"""Make a tiny Llama that answers legally in Kuhn and Leduc poker and liar's dice: for ``ladders/tiny.toml``.

It begins with random weights and is taught a policy of each game that was drawn at random: in each
information state, answers have probabilities of their own. So it reads positions and plays badly. Its chat
template begins with the last question, so that rules and examples, which never change, cost nothing.

Command:  python benchmarks/tiny_player.py DIRECTORY [--steps 2000]
Needs:    this package. Minutes of one core.
"""

import argparse
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from measuring import pin_one_thread
from sparring.core import Messages
from sparring.envs.templates import get_template
from sparring.evaluation.nash_conv import prompt_of, states_of

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from tiny_models import STOP

GAMES = ("kuhn_poker", "leduc_poker", "liars_dice(dice_sides=3)")
TEMPLATE = "fewshot-chat"
START, PAD = "<|im_start|>", "<|endoftext|>"
CHAT_TEMPLATE = (
    "{% set last = namespace(question=0) %}"
    "{% for message in messages %}{% if message['role'] != 'assistant' %}"
    "{% set last.question = loop.index0 %}{% endif %}{% endfor %}"
    "{% for message in messages[last.question:] %}"
    "<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
VOCABULARY = 800
SHAPE = {"hidden_size": 64, "intermediate_size": 192, "num_hidden_layers": 3, "max_position_embeddings": 4096}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "tie_word_embeddings": True}
BATCH, RATE, IGNORED = 32, 3e-3, -100


class Lesson(NamedTuple):
    """A prompt, the legal answers, and their weights."""

    prompt: Messages
    answers: list[str]
    weights: list[float]


def main() -> None:
    """Make the model, teach it, and save it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("directory", type=Path)
    parser.add_argument("--steps", type=int, default=2000)
    options = parser.parse_args()
    pin_one_thread()
    torch.manual_seed(0)
    generator = random.Random(0)
    lessons = {game: lessons_of(game, generator) for game in GAMES}
    tokenizer = tokenizer_of([one for of_game in lessons.values() for one in of_game])
    ids = {"eos_token_id": tokenizer.eos_token_id, "bos_token_id": None, "vocab_size": len(tokenizer)}
    model = LlamaForCausalLM(LlamaConfig(**SHAPE, **HEADS, **ids))
    teach(model, tokenizer, [*lessons.values()], options.steps, generator)
    model.save_pretrained(options.directory)
    tokenizer.save_pretrained(options.directory)


def lessons_of(game: str, generator: random.Random) -> list[Lesson]:
    """Return a lesson for each information state."""
    template, found = get_template(TEMPLATE), []
    for state in states_of(game):
        answers = list(map(template.answer, state.legal_actions))
        weights = [generator.expovariate(1) for _ in answers]
        found.append(Lesson(prompt_of(game, template, state), answers, weights))
    return found


def tokenizer_of(lessons: Sequence[Lesson]) -> PreTrainedTokenizerFast:
    """Return a tokenizer that has the words of the games."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[PAD, START, STOP],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = [message["content"] for one in lessons for message in one.prompt]
    backend.train_from_iterator([*texts, *(answer for one in lessons for answer in one.answers)], trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token=PAD,
        eos_token=STOP,
        additional_special_tokens=[START],
        chat_template=CHAT_TEMPLATE,
    )


def teach(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    games: Sequence[Sequence[Lesson]],
    steps: int,
    generator: random.Random,
) -> None:
    """Teach answers that are drawn from the weights, as many of each game."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=steps)
    for step in range(1, steps + 1):
        drawn = [generator.choice(generator.choice(games)) for _ in range(BATCH)]
        rows = [row_of(tokenizer, one, generator.choices(one.answers, one.weights)[0]) for one in drawn]
        longest = max(len(ids) for ids, _ in rows)
        pad = tokenizer.pad_token_id
        ids = torch.tensor([ids + [pad] * (longest - len(ids)) for ids, _ in rows])
        targets = torch.tensor([[*target, *[IGNORED] * (longest - len(target))] for _, target in rows])
        logits = model(input_ids=ids).logits[:, :-1]
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 200 == 0:
            print(f"step {step}: loss {loss.item():.3f}", flush=True)


def row_of(tokenizer: PreTrainedTokenizerFast, lesson: Lesson, answer: str) -> tuple[list[int], list[int]]:
    """Return the token ids of a prompt with an answer, and the targets, which only the answer has."""
    text = tokenizer.apply_chat_template(lesson.prompt, add_generation_prompt=True, tokenize=False)
    prompt = tokenizer.encode(text, add_special_tokens=False)
    said = [*tokenizer.encode(answer, add_special_tokens=False), tokenizer.eos_token_id]
    return prompt + said, [IGNORED] * len(prompt) + said


if __name__ == "__main__":
    main()
