"""Play speed: the embedded engine in self-play against transformers' own batched ``generate``.

- engine: whole games of mirror self-play, many in flight, with an engine whose cache is empty at the start;
  the time for the games' own code, prompts and prefill is included. ``unshared`` answers as many different
  prompts of random numbers instead, with 128 tokens each, whatever they are;
- generate: ``model.generate`` with the same weights and active peft adapter on prompts drawn from those that
  occurred there, padded left, in batches of 16 and of 64 (``unshared``: of 64); same temperature, no top-k or
  top-p, same limit of new tokens;
- vLLM, with ``--vllm`` and for ``unshared`` only: 64 of the same prompts at once, in this process, with the
  adapter and without a prefix cache.

The figure is generated tokens (stop token included) per second of the processor, which other programs disturb
less than the clock's. Both run in turn, on one thread, in the type that a run would choose if ``--dtype``
names none. First the log-probabilities with which the engine sampled its tokens must agree with a forward
pass of transformers over the same tokens, in float32.

Command:  python benchmarks/play_speed.py [--batches kuhn tictactoe unshared] [--rounds 3] [--dtype float32]
          .venv-vllm/bin/python benchmarks/play_speed.py --batches unshared --dtype float32 --vllm
Needs:    this package; for --vllm the environment of scripts/test-vllm. About 15 minutes on one core, nearly
          all of them in ``generate``.
"""

import argparse
import asyncio
import os
import random
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from time import process_time
from typing import Any

import torch

from measuring import interleave, pin_one_thread, print_table
from plain_model import load_both, pad
from record_batches import ENV_IDS, MAX_TOKENS, auto_dtype, make_arena, play_games
from sparring.core import Messages, Step
from sparring.core.adapters import BUNDLED_MODEL
from sparring.engine.answering import AnswerOptions, EngineCall
from sparring.engine.engine import EmbeddedEngine
from sparring.learn.checkpoints import save_adapter
from sparring.learn.policy import TRAINED, PolicyModel

UNSHARED = "unshared"
GAMES = {"kuhn": 256, "tictactoe": 64, UNSHARED: 64}
GATE_GAMES = 4
CONTENDERS = ["engine", "generate 16", "generate 64", "vLLM"]
UNSHARED_BATCH, UNSHARED_NUMBERS, UNSHARED_TOKENS = 64, 18, 128
NO_TOKEN = -1


@dataclass
class SelfPlay:
    """Plays ``games`` new games at every call."""

    policy: PolicyModel
    env_id: str
    games: int
    played: int = 0
    tokens: list[int] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)

    def __call__(self) -> None:
        engine = EmbeddedEngine(self.policy)
        seeds = list(range(self.played, self.played + self.games))
        self.played += self.games
        self.steps += asyncio.run(play_games(make_arena(engine, self.env_id), self.env_id, seeds))
        self.tokens.append(engine.stats.generated_tokens)


@dataclass
class Answers:
    """Answers ``games`` new prompts of random numbers at every call."""

    policy: PolicyModel
    games: int
    answered: int = 0
    tokens: list[int] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)

    def __call__(self) -> None:
        engine = EmbeddedEngine(self.policy)
        engine.publish(TRAINED, TRAINED, 0)
        self.steps += asyncio.run(self._answer(engine))
        self.answered += self.games
        self.tokens.append(engine.stats.generated_tokens)

    async def _answer(self, engine: EmbeddedEngine) -> list[Step]:
        seeds = range(self.answered, self.answered + self.games)
        drawn = [random.Random(seed).choices(range(100, 1000), k=UNSHARED_NUMBERS) for seed in seeds]
        asked: list[Messages] = [[{"role": "user", "content": " ".join(map(str, one))}] for one in drawn]
        endless = AnswerOptions(ignore_eos=True)
        calls = [
            EngineCall(messages, max_tokens=UNSHARED_TOKENS, model=TRAINED, seed=seed, options=endless)
            for messages, seed in zip(asked, seeds, strict=True)
        ]
        answers = await asyncio.gather(*map(engine.answer, calls))
        return [one.to_step("player_0", messages) for one, messages in zip(answers, asked, strict=True)]


def contender(policy: PolicyModel, batch: str, games: int) -> SelfPlay | Answers:
    """Return what the engine does for a row of the table."""
    return Answers(policy, games) if batch == UNSHARED else SelfPlay(policy, ENV_IDS[batch], games)


@dataclass
class Generate:
    """Answers another ``batch_size`` of the games' prompts at every call."""

    model: Any
    play: SelfPlay | Answers
    batch_size: int
    stop_id: int
    tokens: list[int] = field(default_factory=list)

    def __call__(self) -> None:
        chosen = random.Random(len(self.tokens)).sample(self.play.steps, self.batch_size)
        ids, mask = pad([step.prompt_token_ids or [] for step in chosen], left=True)
        with torch.inference_mode():
            output = self.model.generate(
                input_ids=ids,
                attention_mask=mask,
                do_sample=True,
                temperature=1.0,
                top_k=0,
                top_p=1.0,
                max_new_tokens=UNSHARED_TOKENS if isinstance(self.play, Answers) else MAX_TOKENS,
                eos_token_id=self.stop_id,
                pad_token_id=self.stop_id,
            )
        stopped = output[:, ids.shape[1] :] == self.stop_id
        self.tokens.append(int((stopped.cumsum(dim=1) - stopped.int() == 0).sum()))


class VLLM:
    """Answers 64 of the prompts at every call with vLLM."""

    def __init__(self, policy: PolicyModel, play: Answers) -> None:
        os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
        from vllm import LLM
        from vllm.lora.request import LoRARequest

        adapter = Path(tempfile.mkdtemp(), "adapter")
        save_adapter(adapter, policy, BUNDLED_MODEL)
        self.play = play
        self.tokens: list[int] = []
        self.request = LoRARequest("policy", 1, str(adapter))
        self.llm = LLM(
            policy.model_name,
            dtype=str(policy.dtype).removeprefix("torch."),
            max_model_len=1024,
            enable_lora=True,
            max_lora_rank=16,
            enable_prefix_caching=False,
            gpu_memory_utilization=0.3,  # on a CPU, of the machine's memory
        )

    def __call__(self) -> None:
        from vllm import SamplingParams

        chosen = random.Random(len(self.tokens)).sample(self.play.steps, UNSHARED_BATCH)
        prompts = [{"prompt_token_ids": step.prompt_token_ids} for step in chosen]
        settings = SamplingParams(temperature=1.0, max_tokens=UNSHARED_TOKENS, ignore_eos=True, logprobs=0)
        answers = self.llm.generate(prompts, settings, lora_request=self.request, use_tqdm=False)
        self.tokens.append(sum(len(answer.outputs[0].token_ids) for answer in answers))


def largest_difference(model: Any, steps: list[Step]) -> float:
    """Return the largest difference between the steps' log-probabilities and a plain forward pass's."""
    worst = 0.0
    for step in steps:
        prompt, completion = step.prompt_token_ids or [], step.completion_token_ids or []
        with torch.inference_mode():
            logits = model(input_ids=torch.tensor([prompt + completion])).logits[0, len(prompt) - 1 : -1]
        logprobs = torch.log_softmax(logits.float(), dim=-1)[range(len(completion)), completion]
        difference = (logprobs - torch.tensor(step.completion_logprobs)).abs().max()
        worst = max(worst, float(difference))
    return worst


def check_logprobs(batches: list[str]) -> None:
    """Check the log-probability of every token of a few games, in float32."""
    policy, model = load_both(torch.float32)
    for batch in batches:
        play = contender(policy, batch, GATE_GAMES)
        play()
        worst = largest_difference(model.eval(), play.steps)
        print(
            f"{batch}: log-probabilities of {sum(play.tokens)} sampled tokens differ by at most {worst:.0e}"
        )
        if worst > 1e-3:
            raise SystemExit("the engine does not sample from the model's distribution")


def measure(policy: PolicyModel, model: Any, batch: str, arguments: argparse.Namespace) -> list[str]:
    """Time one game; returns its row of the table."""
    games = arguments.games or GAMES[batch]
    contender(policy, batch, GATE_GAMES)()  # the first passes of a process take longer
    play = contender(policy, batch, games)
    stop_id, sizes = (NO_TOKEN, (64,)) if batch == UNSHARED else (policy.stop_token_ids[0], (16, 64))
    contenders: dict[str, Any] = {"engine": play}
    contenders |= {f"generate {size}": Generate(model, play, size, stop_id) for size in sizes}
    if arguments.vllm and isinstance(play, Answers):
        contenders["vLLM"] = VLLM(policy, play)
    seconds = interleave(contenders, arguments.rounds, process_time)
    rates = {
        name: [tokens / time for tokens, time in zip(one.tokens, seconds[name], strict=True)]
        for name, one in contenders.items()
    }
    best = max((name for name in rates if name != "engine"), key=lambda name: median(rates[name]))
    ratios = [ours / theirs for ours, theirs in zip(rates["engine"], rates[best], strict=True)]
    prompts = sorted(len(step.prompt_token_ids or []) for step in play.steps)
    row = [batch, str(games), str(int(median(play.tokens))), f"{prompts[0]} to {prompts[-1]}"]
    row += [f"{median(rates[name]):,.1f}" if name in rates else "" for name in CONTENDERS]
    return [*row, f"{median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batches", nargs="+", choices=list(GAMES), default=list(GAMES))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--games", type=int, help="games in flight; by default 256 for kuhn and 64 for the others"
    )
    parser.add_argument("--dtype", choices=["float32", "bfloat16"])
    parser.add_argument("--vllm", action="store_true", help="also ask vLLM, for unshared")
    arguments = parser.parse_args()
    pin_one_thread()
    check_logprobs(arguments.batches)
    policy, model = load_both(getattr(torch, arguments.dtype) if arguments.dtype else auto_dtype())
    model.eval()
    print(f"{arguments.rounds} rounds, 1 thread, {policy.dtype}; generated tokens per CPU second")
    header = ["game", "in flight", "tokens per round", "prompt tokens", *CONTENDERS]
    header.append("engine / best other (least and most of the rounds)")
    rows = [measure(policy, model, batch, arguments) for batch in arguments.batches]
    print_table(header, rows)


if __name__ == "__main__":
    main()
