"""vLLM against the embedded engine, with SmolLM2-135M: do they agree, and how soon does a version arrive?

- agreement: each engine answers the same prompts with the base and with an adapter; its log-probabilities of
  the tokens that it sampled are compared with the learner's, in nats per token;
- delivery: milliseconds from the end of an optimizer step to the first token of the new version. For the
  embedded engine that is a change of pointers, and the prompt computed again. For vLLM it is the learner's
  own log-probability of the canary, then the adapter written to disk, hashed, loaded and checked, and then
  the prompt. There are no other requests meanwhile; 1 or 8 adapters are served. The optimizer steps are
  AdamW's on random gradients; their cost is not measured.

Command:  python benchmarks/vllm_against_embedded.py [--rounds 20] [--adapters 1 8] [--dtype bfloat16]
Needs:    an environment with vLLM, made by scripts/test-vllm. Ten minutes on one free core.
"""

import argparse
import asyncio
import math
import tempfile
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch

from measuring import pin_one_thread, print_table
from sparring.core import Messages, ModelResponse
from sparring.core.adapters import BUNDLED_MODEL
from sparring.core.manifest import Expectation
from sparring.engine.adapters import file_hash
from sparring.engine.engine import EmbeddedEngine
from sparring.engine.vllm_engine import VLLMEngine
from sparring.learn.checkpoints import save_adapter
from sparring.learn.logprobs import plan_logprobs
from sparring.learn.model_files import resolve_model
from sparring.learn.policy import BASE, TRAINED, LoraSettings, PolicyModel
from sparring.learn.trie import build_plan

RULES = "You play a card game with three cards: J, Q and K. The higher card wins. Answer [check] or [bet]."
PROMPTS: list[Messages] = [
    [
        {"role": "system", "content": RULES},
        {"role": "user", "content": f"Game {game}. You hold {card}. What do you do, and why?"},
    ]
    for game, card in enumerate("JQKQJKKJQ")
]


def disturb(policy: PolicyModel) -> None:
    """Make B, which starts at zero, random."""
    generator = torch.Generator().manual_seed(0)
    state = policy.adapter_state()
    for key, value in state.items():
        if "lora_B" in key:
            state[key] = 0.01 * torch.randn(value.shape, generator=generator)
    policy.load_adapter_state(state)


def learner_logprobs(policy: PolicyModel, adapter: str, responses: list[ModelResponse]) -> list[float]:
    """Return the log-probability of every token of all answers, in an unspecified but fixed order."""
    plan = build_plan(
        [response.prompt_token_ids or [] for response in responses],
        [response.completion_token_ids or [] for response in responses],
    )
    with torch.no_grad(), policy.adapter(adapter):
        logprobs_C = plan_logprobs(policy, plan)
    by_sample: list[list[float]] = [[] for _ in responses]
    for sample, prediction in zip(plan.sample_S, plan.prediction_S, strict=True):
        by_sample[sample].append(float(logprobs_C[prediction]))
    return [logprob for logprobs in by_sample for logprob in logprobs]


async def differences(engine: Any, policy: PolicyModel, tokens: int) -> dict[str, np.ndarray]:
    """Return the absolute differences between the engine's and the learner's log-probabilities, by model."""
    names = {"base": BASE, "default": TRAINED}
    asked = {
        name: [
            engine.complete(prompt, model=name, seed=seed, max_tokens=tokens)
            for seed, prompt in enumerate(PROMPTS)
        ]
        for name in names
    }
    # Both models at once, so that their answers share batches.
    answered = await asyncio.gather(*(asyncio.gather(*calls) for calls in asked.values()))
    result = {}
    for (name, adapter), responses in zip(names.items(), answered, strict=True):
        drawn = [logprob for response in responses for logprob in response.completion_logprobs or []]
        result[name] = np.abs(np.array(drawn) - np.array(learner_logprobs(policy, adapter, responses)))
    return result


class Deliveries:
    """Steps an optimizer and measures the time until the new version's first token.

    Both engines' methods return milliseconds: in total, and of the parts. ``canary_off`` are the differences
    between vLLM's and the learner's mean log-probability of a canary token, in nats.
    """

    def __init__(self, policy: PolicyModel, directory: Path) -> None:
        self.policy = policy
        self.directory = directory
        self.optimizer = torch.optim.AdamW(policy.adapter_parameters(), lr=1e-4)
        self.generator = torch.Generator().manual_seed(0)
        self.version = 1
        self.canary_off: list[float] = []

    def step(self) -> None:
        for parameter in self.policy.adapter_parameters():
            parameter.grad = torch.randn(parameter.shape, generator=self.generator)
        self.optimizer.step()
        self.version += 1

    async def embedded(self, engine: EmbeddedEngine) -> list[float]:
        self.step()
        times = [perf_counter()]
        engine.publish(TRAINED, TRAINED, self.version)
        times.append(perf_counter())
        await self.first_token(engine)
        times.append(perf_counter())
        return milliseconds(times)

    async def vllm(self, engine: VLLMEngine) -> list[float]:
        self.step()
        path = self.directory / f"version-{self.version}"
        canary = ModelResponse(
            "", [], prompt_token_ids=engine.canary[:1], completion_token_ids=engine.canary[1:]
        )
        times = [perf_counter()]
        logprobs = learner_logprobs(self.policy, TRAINED, [canary])
        times.append(perf_counter())
        save_adapter(path, self.policy, BUNDLED_MODEL)
        times.append(perf_counter())
        expected = sum(logprobs) / len(logprobs)
        said = Expectation(self.version, file_hash(path), expected, base=math.inf)
        delivery = await engine.publish(TRAINED, path, self.version, said=said)
        times.append(perf_counter())
        self.canary_off.append(abs(delivery.mean - expected))
        await self.first_token(engine)
        times.append(perf_counter())
        return milliseconds(times)

    async def first_token(self, engine: Any) -> None:
        response = await engine.complete(PROMPTS[0], seed=self.version, max_tokens=1)
        assert response.policy_version == self.version


def milliseconds(times: list[float]) -> list[float]:
    """Return the total, then the parts."""
    return [1000 * (times[-1] - times[0]), *(1000 * np.diff(times)).tolist()]


def summary(engine: str, adapters: int, rounds: list[list[float]]) -> list[str]:
    whole = [times[0] for times in rounds]
    parts = " + ".join(f"{part:.0f}" for part in np.median(np.array(rounds), axis=0)[1:])
    return [
        engine,
        str(adapters),
        f"{np.percentile(whole, 50):.0f}",
        f"{np.percentile(whole, 95):.0f}",
        parts,
    ]


async def measure(arguments: argparse.Namespace, directory: Path) -> None:
    dtype = getattr(torch, arguments.dtype)
    model = resolve_model(BUNDLED_MODEL, print)
    policy = PolicyModel(model, LoraSettings(), dtype=dtype)
    disturb(policy)
    embedded = EmbeddedEngine(policy)
    embedded.publish("base", BASE, 0)
    embedded.publish(TRAINED, TRAINED, 1)
    vllm = VLLMEngine(model, max_context=1024, max_batch=64, dtype=arguments.dtype)
    started = perf_counter()
    await vllm.start()
    print(
        f"vLLM started and was checked in {perf_counter() - started:.0f} s; {arguments.dtype}, one thread\n"
    )
    try:
        await vllm.publish("base", None, 0)
        save_adapter(directory / "first", policy, BUNDLED_MODEL)
        await vllm.publish(TRAINED, directory / "first", 1)
        rows = []
        for name, engine in (("embedded", embedded), ("vLLM", vllm)):
            for served, off in (await differences(engine, policy, arguments.tokens)).items():
                rows.append([name, served, str(len(off)), f"{off.mean():.5f}", f"{off.max():.5f}"])
        print_table(["engine", "model", "tokens", "mean difference", "largest"], rows)
        print()
        rows = []
        deliveries = Deliveries(policy, directory)
        for adapters in sorted(arguments.adapters):
            for index in range(1, adapters):
                policy.load_adapter_state(policy.adapter_state(), f"other-{index}")
                embedded.publish(f"other-{index}", f"other-{index}", 0)
                await vllm.publish(f"other-{index}", directory / "first", 0)
            rounds = [
                (await deliveries.embedded(embedded), await deliveries.vllm(vllm))
                for _ in range(arguments.rounds + 1)
            ][1:]
            rows.append(summary("embedded", adapters, [one for one, _ in rounds]))
            rows.append(summary("vLLM", adapters, [one for _, one in rounds]))
        print_table(["engine", "adapters", "p50 ms", "p95 ms", "medians of the parts, in order"], rows)
        print(f"\ncanary off by {max(deliveries.canary_off):.5f} at most (allowed: {vllm.tolerance:g})")
        print("parts, embedded: publish, first token; vLLM: learner's canary, save, publish, first token")
    finally:
        await vllm.close()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--adapters", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--tokens", type=int, default=24, help="most tokens of an answer")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="bfloat16")
    arguments = parser.parse_args()
    pin_one_thread()
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(measure(arguments, Path(directory)))


if __name__ == "__main__":
    main()
