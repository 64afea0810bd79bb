"""What gpu_check.py measures of play: decoding beside ``generate``, a league's update, vLLM that sleeps."""

import asyncio
import importlib.util
import io
import json
import random
import tempfile
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from rich.console import Console

import gpu_models
from measuring import interleave
from sparring.config import load_config
from sparring.core import ModelResponse
from sparring.engine.answering import AnswerOptions, EngineCall, Shaping
from sparring.engine.engine import EmbeddedEngine
from sparring.learn.policy import TRAINED, PolicyModel
from sparring.run.single_process import train

CONTEXTS = (64, 256)
PROMPT, ANSWER = 128, 128
"""Tokens of a prompt, of which no two begin alike, and of an answer."""
LEAGUE = 8
Rows = list[list[str]]


def measure_decoding(device: str, small: bool) -> Rows:
    """Return tokens per second of the engine and of transformers' ``generate`` on the same prompts, and the
    share of prompts to which both give the same likeliest first token."""
    policy = gpu_models.large_policy(device, small)
    plain = gpu_models.plain(policy)
    rows = []
    for contexts in (4,) if small else CONTEXTS:
        prompt, answer = (16, 8) if small else (PROMPT, ANSWER)
        texts = [_text(number, prompt) for number in range(contexts)]
        ours = [one.completion_token_ids for one in _answered(policy, texts, 1, 0.0)]
        theirs = _generated(plain, policy, texts, 1, sample=False)
        alike = sum(one == other for one, other in zip(ours, theirs, strict=True)) / contexts
        contenders = {
            "engine": partial(_answered, policy, texts, answer, 1.0),
            "generate": partial(_generated, plain, policy, texts, answer, sample=True),
        }
        speeds = [
            f"{contexts * answer / median(seconds):,.0f}"
            for seconds in interleave(contenders, rounds=3).values()
        ]
        rows.append([str(contexts), *speeds, f"{alike:.0%}"])
    return rows


def _text(number: int, length: int) -> str:
    return "".join(random.Random(number).choices("abcdefghijklmnopqrstuvwxyz ", k=length))


def _answered(policy: PolicyModel, texts: list[str], length: int, temperature: float) -> list[ModelResponse]:
    """Answer with the engine, from an empty cache, with ``length`` tokens each."""

    async def ask() -> list[ModelResponse]:
        engine = EmbeddedEngine(policy, max_cached_tokens=1 << 17)
        engine.publish(TRAINED, TRAINED, 0)
        options = AnswerOptions(Shaping(), ignore_eos=True)
        calls = (
            EngineCall(gpu_models.prompt(text), temperature, length, seed=number, options=options)
            for number, text in enumerate(texts)
        )
        return await asyncio.gather(*map(engine.answer, calls))

    return asyncio.run(ask())


def _generated(
    plain: Any, policy: PolicyModel, texts: list[str], length: int, *, sample: bool
) -> list[list[int]]:
    """Answer with transformers' ``generate`` and the same adapter; return the new ids."""
    ids = torch.tensor([policy.render(gpu_models.prompt(text)) for text in texts], device=policy.device)
    drawing: dict[str, Any] = {"temperature": 1.0, "top_k": 0, "top_p": 1.0} if sample else {}
    with torch.inference_mode():
        output = plain.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            do_sample=sample,
            min_new_tokens=length,
            max_new_tokens=length,
            pad_token_id=policy.stop_token_ids[0],
            **drawing,
        )
    new: list[list[int]] = output[:, ids.shape[1] :].tolist()
    return new


def measure_league(device: str, small: bool) -> Rows:
    """Train two updates of a league of eight players; return what each took."""
    roles = ["main", *["main_exploiter", "league_exploiter"] * LEAGUE][:LEAGUE]
    names = ["default", *(f"player{number}" for number in range(1, LEAGUE))]
    players = ", ".join(f'{name} = {{role = "{role}"}}' for name, role in zip(names, roles, strict=True))
    changes = {"league.players": f"{{{players}}}", "collection.games_per_step": "32" if small else "2048"}
    return [
        [
            str(int(line["step"])),
            f"{line['accounts/finished']:.0f}",
            f"{line['time/play_seconds']:.1f}",
            f"{line['time/learn_seconds']:.1f}",
        ]
        for line in _trained("league", device, small, changes)
    ]


def measure_vllm(device: str, small: bool) -> Rows:
    """Train three updates with vLLM, which sleeps while the learner learns; return what each took."""
    if importlib.util.find_spec("vllm") is None:
        raise SystemExit("vllm is not installed here: pip install 'sparring[vllm]'")
    changes = {"inference.engine": "vllm", "inference.gpu_memory": "0.4", "learning.steps": "3"}
    changes["inference.sleep"] = "0" if device == "cpu" else "1"
    return [
        [
            str(int(line["step"])),
            f"{line['time/play_seconds']:.1f}",
            f"{line['time/learn_seconds']:.1f}",
            f"{line['learner/mismatch']:.2g}",
        ]
        for line in _trained("quickstart", device, small, changes)
    ]


def _trained(preset: str, device: str, small: bool, changes: dict[str, str]) -> list[dict[str, float]]:
    """Train without evaluations; return the lines of the run's metrics."""
    fields = {"model.device": device, "learning.steps": "2", "evaluation.every": "0", "evaluation.games": "2"}
    fields["evaluation.nash_conv"] = "false"
    if small:
        fields |= {"model.name": str(gpu_models.small_model()), "inference.max_tokens": "4"}
    with tempfile.TemporaryDirectory() as directory:
        run = Path(directory) / "run"
        train(load_config(preset, fields | changes), run, Console(file=io.StringIO()))
        return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
