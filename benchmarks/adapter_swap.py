"""Time until an inference actor answers with a new version, from the end of the optimizer's step.

The learner's weights are in memory when the clock starts. It writes them to disk with their hash and its own
log-probability of the canary. The engine host gets a request for a new path, reads, loads and checks the
files, and answers with one token. Meanwhile clients send requests to the resident adapters, including the
previous version, and all their answers are counted. The optimizer steps are AdamW's on random gradients;
their cost is not measured. Learner and host share this process; vLLM computes in a process of its own.

Before anything is timed, some versions must answer a few prompts with the learner's log-probabilities up to
rounding, without losing a request. Every timed answer is checked as well.

Command:  OMP_NUM_THREADS=1 python benchmarks/adapter_swap.py [--engine embedded|vllm|both] [--swaps 40]
Needs:    for vLLM, an environment made by scripts/test-vllm. It takes about five minutes on two free cores.
"""

import argparse
import asyncio
import itertools
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from time import perf_counter

import numpy as np
import torch

from measuring import pin_one_thread, print_table
from sparring.core import Messages, ModelResponse
from sparring.core.adapters import BUNDLED_MODEL, AdapterRef
from sparring.engine.adapters import tolerance_of
from sparring.engine.answering import EngineCall
from sparring.engine.engine import EmbeddedEngine
from sparring.engine.hosts import EmbeddedHost, EngineHost, EngineRequest, VLLMHost
from sparring.engine.vllm_engine import VLLMEngine
from sparring.learn.checkpoints import save_adapter, write_delivery
from sparring.learn.logprobs import plan_logprobs
from sparring.learn.model_files import resolve_model
from sparring.learn.policy import TRAINED, LoraSettings, PolicyModel
from sparring.learn.trie import build_plan

RULES = "You play a card game with three cards: J, Q and K. The higher card wins. Answer [check] or [bet]."
PROMPTS: list[Messages] = [
    [
        {"role": "system", "content": RULES},
        {"role": "user", "content": f"Game {game}. You hold {card}. What do you do, and why?"},
    ]
    for game, card in enumerate("JQKQJKKJQ")
]
CLIENTS = 2
PAUSE_SECONDS = 0.05
LOAD_TOKENS = 8
CHECKED_VERSIONS = 3
CHECKED_TOKENS = 12
MAX_CONTEXT = 1024


class LearnerLike:
    """Steps an optimizer and saves the resulting adapter as the learner does."""

    def __init__(self, model: str, dtype: torch.dtype, directory: Path) -> None:
        self.policy = PolicyModel(model, LoraSettings(), dtype=dtype)
        self.directory = directory
        self.optimizer = torch.optim.AdamW(self.policy.adapter_parameters(), lr=1e-4)
        self.generator = torch.Generator().manual_seed(0)
        self.version = 0

    def step(self) -> None:
        for parameter in self.policy.adapter_parameters():
            parameter.grad = torch.randn(parameter.shape, generator=self.generator)
        self.optimizer.step()
        self.version += 1

    def save(self, name: str = TRAINED) -> tuple[AdapterRef, list[float]]:
        """Save the adapter; returns its location, and the seconds for its files and for the delivery file."""
        path = self.directory / f"{self.version:06}"
        times = [perf_counter()]
        save_adapter(path, self.policy, BUNDLED_MODEL)
        times.append(perf_counter())
        write_delivery(path, self.policy, TRAINED, self.version)
        times.append(perf_counter())
        return AdapterRef(name, self.version, str(path)), np.diff(times).tolist()

    def off(self, responses: list[ModelResponse]) -> float:
        """Mean difference between the answers' log-probabilities and the learner's, in nats per token."""
        plan = build_plan(
            [response.prompt_token_ids or [] for response in responses],
            [response.completion_token_ids or [] for response in responses],
        )
        with torch.no_grad(), self.policy.adapter(TRAINED):
            logprobs_C = plan_logprobs(self.policy, plan)
        own = [float(logprobs_C[prediction]) for prediction in plan.prediction_S]
        place = zip(plan.sample_S, plan.offset_S, strict=True)
        theirs = [(responses[sample].completion_logprobs or [])[offset] for sample, offset in place]
        return float(np.abs(np.array(own) - np.array(theirs)).mean())


class Load:
    """Clients that send requests to the resident adapters in turn. A failed request ends the benchmark."""

    def __init__(self, host: EngineHost, resident: list[AdapterRef]) -> None:
        self.host = host
        self.resident = resident
        self.asked = 0
        self.answered = 0
        self.going_on = True

    async def client(self, numbers: Iterator[int]) -> None:
        while self.going_on:
            number = next(numbers)
            adapter = self.resident[number % len(self.resident)]
            self.asked += 1
            prompt = PROMPTS[number % len(PROMPTS)]
            request = EngineRequest(number, adapter, EngineCall(prompt, 1.0, LOAD_TOKENS, seed=number))
            response = await self.host.complete(request)
            assert response.policy_version == adapter.version
            assert response.completion_token_ids
            self.answered += 1
            await asyncio.sleep(PAUSE_SECONDS)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run the body under load, then wait for every answer."""
        numbers = itertools.count()
        clients = [asyncio.create_task(self.client(numbers)) for _ in range(CLIENTS)]
        try:
            yield
        finally:
            self.going_on = False
            await asyncio.gather(*clients)
        assert self.asked == self.answered, f"{self.asked - self.answered} requests were lost"


async def check(host: EngineHost, learner: LearnerLike, load: Load, tolerance: float) -> float:
    """Let some versions answer; returns how far their log-probabilities are from the learner's."""
    worst = 0.0
    for _ in range(CHECKED_VERSIONS):
        learner.step()
        adapter, _ = await asyncio.to_thread(learner.save)
        asked = [
            host.complete(EngineRequest(seed, adapter, EngineCall(prompt, 1.0, CHECKED_TOKENS, seed=seed)))
            for seed, prompt in enumerate(PROMPTS)
        ]
        worst = max(worst, learner.off(await asyncio.gather(*asked)))
        load.resident[0] = adapter
    assert worst <= tolerance, (
        f"log-probabilities are {worst:.4f} from the learner's; {tolerance:g} is allowed"
    )
    return worst


async def swap(host: EngineHost, learner: LearnerLike, load: Load, tolerance: float) -> list[float]:
    """Milliseconds of a new version: in total, for the files, for the canary, and from request to answer."""
    learner.step()
    started = perf_counter()
    adapter, parts = await asyncio.to_thread(learner.save)
    saved = perf_counter()
    response = await host.complete(
        EngineRequest(0, adapter, EngineCall(PROMPTS[0], 1.0, 1, seed=adapter.version))
    )
    answered = perf_counter()
    load.resident[0] = adapter
    assert response.policy_version == adapter.version
    # The rounding error of one token may be several times the mean over many.
    assert learner.off([response]) <= 5 * tolerance
    return [1000 * seconds for seconds in (answered - started, *parts, answered - saved)]


async def measure(name: str, adapters: int, swaps: int, dtype: torch.dtype, directory: Path) -> list[str]:
    model = resolve_model(BUNDLED_MODEL, print)
    learner = LearnerLike(model, dtype, directory)
    host = build_host(name, model, dtype, max_adapters=adapters + 1)  # the previous version answers meanwhile
    await host.start()
    try:
        resident = []
        for index in range(adapters):
            learner.step()
            resident.append(learner.save(f"other-{index}" if index else TRAINED)[0])
        load = Load(host, resident)
        async with load.running():
            off = await check(host, learner, load, tolerance_of(dtype))
            rounds = [await swap(host, learner, load, tolerance_of(dtype)) for _ in range(swaps)]
        assert host.stats()["adapters"] == adapters + 1
    finally:
        await host.close()
    whole = [times[0] for times in rounds]
    parts = " + ".join(f"{part:.0f}" for part in np.median(np.array(rounds), axis=0)[1:])
    figures = [f"{np.percentile(whole, 50):.0f}", f"{np.percentile(whole, 95):.0f}", parts]
    return [name, str(adapters), *figures, f"{load.answered} of {load.asked}", f"{off:.4f}"]


def build_host(name: str, model: str, dtype: torch.dtype, max_adapters: int) -> EngineHost:
    if name == "embedded":
        return EmbeddedHost(
            lambda: PolicyModel(model, LoraSettings(), dtype=dtype),
            lambda policy: EmbeddedEngine(policy, max_context=MAX_CONTEXT, max_cached_tokens=8192),
            max_adapters,
        )
    weights = str(dtype).removeprefix("torch.")
    return VLLMHost(
        lambda: VLLMEngine(
            model, max_context=MAX_CONTEXT, max_batch=64, max_adapters=max_adapters, dtype=weights
        )
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--engine", choices=["embedded", "vllm", "both"], default="both")
    parser.add_argument("--swaps", type=int, default=40)
    parser.add_argument(
        "--adapters", type=int, nargs="+", default=[1, 8], help="numbers of resident adapters"
    )
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="bfloat16")
    arguments = parser.parse_args()
    pin_one_thread()
    dtype = getattr(torch, arguments.dtype)
    rows = []
    for name in ("embedded", "vllm") if arguments.engine == "both" else (arguments.engine,):
        for adapters in arguments.adapters:
            with tempfile.TemporaryDirectory() as directory:
                rows.append(asyncio.run(measure(name, adapters, arguments.swaps, dtype, Path(directory))))
    print(f"optimizer's step to first token, {arguments.swaps} swaps, {arguments.dtype}, one thread\n")
    print_table(
        [
            "engine",
            "adapters",
            "p50 ms",
            "p95 ms",
            "medians: files + canary + first token",
            "answered",
            "off",
        ],
        rows,
    )


if __name__ == "__main__":
    main()
