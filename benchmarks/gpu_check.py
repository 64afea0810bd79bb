"""Check and measure a CUDA GPU, and write a page of figures: scripts/test-gpu runs it.

In order of worth:

- gradients: gradients of an adapter by every execution of attention, whole, in sections and computed again,
  in float32 and bfloat16, against float32 in runs on the CPU.
- engine: the engine's log-probabilities against the learner's, with several adapters in a forward pass.
- decoding: tokens per second at 64 and 256 contexts that share nothing, beside transformers' ``generate``, on
  a random model of Qwen3-0.6B's shape in bfloat16.
- learning: tokens per second and peak memory of an update with 16,384 packed tokens on that model. prime-rl
  publishes 13,300 tokens/s and 5.1 GiB for it, rank 16, on one H100.
- swap: from an optimizer's step to the first token with 8 adapters in one process.
- quickstart: a few updates of it.
- league: two updates of a league of eight players.
- vllm: three updates with vLLM, which sleeps while the learner learns; only where it is installed.

The page grows a part at a time. Another call measures what it does not have, or what failed; parts that are
named are measured again.

Command:  scripts/test-gpu [PART...] [--out gpu-report.md]
Needs:    a CUDA GPU with 16 GB; 10 minutes. ``--device cpu --small`` runs everything at toy sizes.
"""

import argparse
import asyncio
import io
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from time import perf_counter

import torch
from rich.console import Console
from torch import Tensor

import gpu_models
from gpu_playing import LEAGUE, measure_decoding, measure_league, measure_vllm
from gpu_report import Part, Report
from measuring import print_table
from sparring.config import load_config
from sparring.core import ModelResponse
from sparring.engine.engine import EmbeddedEngine
from sparring.learn.attention_choice import TreeAttention, choose_attention
from sparring.learn.flex_attention import FlexAttention
from sparring.learn.logprobs import PassLimits, plan_logprobs
from sparring.learn.memory import KeptMemory
from sparring.learn.policy import TRAINED, PolicyModel
from sparring.learn.tree_attention import RunAttention
from sparring.learn.trie import TreePlan, build_plan
from sparring.run.single_process import train

EXECUTIONS: dict[str, TreeAttention] = {"runs": RunAttention, "flex_attention": FlexAttention}
LEAST_COSINE = {torch.float32: 0.9999, torch.bfloat16: 0.99}
MOST_NATS = {torch.float32: 0.002, torch.bfloat16: 0.3}
"""Largest difference of a token's log-probability between engine and learner."""
ADAPTERS = 8
SWAPS = 20
Rows = list[list[str]]


def gradient(policy: PolicyModel, plan: TreePlan, limits: PassLimits) -> Tensor:
    """Return the gradient of the mean log-probability over an adapter, in float32 on the CPU."""
    policy.model.zero_grad()
    plan_logprobs(policy, plan, limits=limits).mean().backward()
    return torch.cat(
        [one.grad.flatten().float().cpu() for one in policy.adapter_parameters() if one.grad is not None]
    )


def check_gradients(device: str) -> tuple[Rows, list[str]]:
    """Compare all executions with float32 on the CPU. Return the table, and a line for each that differs."""
    plan = gpu_models.tree(answers=6, prompt=150, length=60)
    rows, wrong = [], []
    for quantization in gpu_models.quantizations():
        for dtype, least in LEAST_COSINE.items():
            # Four bits of weights in bfloat16 are others than those of weights in float32.
            exact = gpu_models.small_policy(
                torch.float32 if quantization == "none" else dtype, "cpu", quantization
            )
            expected = gradient(exact, plan, PassLimits(1 << 20, KeptMemory(exact, TRAINED)))
            policy = gpu_models.small_policy(dtype, device, quantization)
            base = f"{dtype}, {quantization}".removesuffix(", none").removeprefix("torch.")
            for name, how, limits in passes(policy):
                found = gradient(policy, plan, limits)
                if limits.attention is not EXECUTIONS[name]:
                    wrong.append(f"{name}, {how}, {base}: {policy.notes[-1]}")
                cosine = float(torch.nn.functional.cosine_similarity(found, expected, dim=0))
                error = float((found - expected).norm() / expected.norm())
                rows.append([base, name, how, f"{cosine:.6f}", f"{error:.2g}"])
                if cosine < least:
                    wrong.append(f"{name}, {how}, {base}: the gradient's cosine is {cosine:.4f}")
    return rows, wrong


def passes(policy: PolicyModel) -> Iterator[tuple[str, str, PassLimits]]:
    """Yield all ways of a pass: whole, computed again, and in sections; by every execution of attention."""
    for name, attention in executions(policy.device.type).items():
        for how, max_tokens in (("whole", 1 << 20), ("computed again", 1 << 20), ("in sections", 64)):
            memory = KeptMemory(policy, TRAINED)
            if how == "computed again":
                memory.limit = 0.0
            yield name, how, PassLimits(max_tokens, memory, attention)


def executions(device: str) -> dict[str, TreeAttention]:
    """Return the executions of attention that a learner may use; flex_attention cannot learn on CPUs."""
    return {name: one for name, one in EXECUTIONS.items() if device != "cpu" or one is RunAttention}


def check_engine(device: str) -> Rows:
    """Compare the engine's log-probabilities with the learner's."""
    rows = []
    for dtype, most in MOST_NATS.items():
        policy = gpu_models.small_policy(dtype, device)
        names = gpu_models.add_copies(policy, 3)
        largest = 0.0
        for name, answer in asyncio.run(ask_all(gpu_models.engine(policy, names), names)):
            drawn, told = answer.completion_token_ids or [], answer.completion_logprobs or []
            with torch.no_grad(), policy.adapter(name):
                logprobs = plan_logprobs(
                    policy, build_plan([answer.prompt_token_ids or []], [drawn])
                ).tolist()
            largest = max(largest, *(abs(one - other) for one, other in zip(logprobs, told, strict=True)))
        rows.append([str(dtype).removeprefix("torch."), str(len(names)), f"{largest:.2g}"])
        if largest > most:
            raise SystemExit(f"{dtype}: engine and learner differ by {largest:.2g} nats")
    return rows


async def ask_all(engine: EmbeddedEngine, names: list[str]) -> list[tuple[str, ModelResponse]]:
    """Ask every adapter the same, all together."""
    prompts = [gpu_models.prompt(f"{'rules ' * 20}{number}") for number in range(12)]
    asked = [(name, engine.complete(prompt, seed=1, model=name)) for name in names for prompt in prompts]
    answers = await asyncio.gather(*(call for _, call in asked))
    return list(zip((name for name, _ in asked), answers, strict=True))


def measure_learning(device: str, small: bool) -> Rows:
    """Return tokens per second and peak memory of forward and backward passes."""
    policy = gpu_models.large_policy(device, small)
    tokens = 256 if small else 16_384
    plans = {
        "one sequence": gpu_models.tree(answers=1, prompt=tokens - 64, length=64),
        "tree": gpu_models.tree(answers=16, prompt=tokens // 4, length=3 * tokens // 64),
    }
    chosen = choose_attention(policy, TRAINED, PassLimits(tokens, KeptMemory(policy, TRAINED)))
    rows = []
    for shape, plan in plans.items():
        for name, attention in executions(policy.device.type).items():
            limits = PassLimits(tokens, KeptMemory(policy, TRAINED), attention)
            seconds, peak = timed(partial(gradient, policy, plan, limits), device)
            speed = f"{plan.num_tokens / seconds:,.0f}"
            mark = " (chosen)" if attention is chosen else ""
            if limits.attention is not attention:
                mark = f" ({policy.notes[-1]})"
            rows.append([shape, name + mark, f"{plan.num_tokens:,}", speed, f"{peak:.1f}"])
    return rows


def timed(run: Callable[[], object], device: str, rounds: int = 3) -> tuple[float, float]:
    """Return the median seconds of a run after a first one, and the peak GiB on the device (0 on a CPU)."""
    run()
    if device != "cpu":
        torch.cuda.reset_peak_memory_stats()
    seconds = []
    for _ in range(rounds):
        started = perf_counter()
        run()  # ends with a copy to the CPU, so it has been computed
        seconds.append(perf_counter() - started)
    return median(seconds), 0.0 if device == "cpu" else torch.cuda.max_memory_allocated() / 2**30


def measure_handover(device: str, small: bool) -> Rows:
    """Return milliseconds from the end of an optimizer's step to the first token of the new version."""
    policy = gpu_models.large_policy(device, small)
    names = gpu_models.add_copies(policy, ADAPTERS - 1)
    engine = gpu_models.engine(policy, names)
    optimizer = torch.optim.AdamW(policy.adapter_parameters(), lr=1e-5)
    found = []
    for version in range(1, 4 if small else SWAPS + 1):
        for parameter in policy.adapter_parameters():
            parameter.grad = torch.randn_like(parameter)
        optimizer.step()
        if device != "cpu":
            torch.cuda.synchronize()
        started = perf_counter()
        engine.publish(TRAINED, TRAINED, version)
        asyncio.run(engine.complete(gpu_models.prompt("rules " * 40), max_tokens=1, model=TRAINED))
        found.append(1000 * (perf_counter() - started))
    return [[str(ADAPTERS), f"{median(found):.0f}", f"{max(found):.0f}"]]


def measure_quickstart(device: str, small: bool) -> Rows:
    """Train a few updates of the quickstart, and return what its last metrics say."""
    updates = "2" if small else "20"
    changes = {"model.device": device, "learning.steps": updates, "evaluation.games": "2" if small else "400"}
    if small:
        changes |= {"model.name": str(gpu_models.small_model()), "collection.games_per_step": "4"}
        changes |= {"inference.max_tokens": "4", "evaluation.every": "0"}
    with tempfile.TemporaryDirectory() as directory:
        started = perf_counter()
        train(load_config("quickstart", changes), Path(directory) / "run", Console(file=io.StringIO()))
        seconds = perf_counter() - started
    return [[updates, f"{seconds:.0f}"]]


def parts(device: str, small: bool) -> list[Part]:
    """Return all parts, in order of worth."""

    def gradients() -> None:
        rows, wrong = check_gradients(device)
        print_table(["base", "attention", "pass", "cosine", "relative error"], rows)
        if wrong:
            raise SystemExit("; ".join(wrong))

    def learning() -> None:
        rows = measure_learning(device, small)
        print_table(["batch", "attention", "packed tokens", "tokens/s", "peak GiB"], rows)
        print("\nprime-rl publishes 13,300 tokens/s and 5.1 GiB: Qwen3-0.6B, rank 16, 16k packed, one H100.")

    def table(measure: Callable[[str, bool], Rows], header: list[str]) -> Callable[[], None]:
        return lambda: print_table(header, measure(device, small))

    of_updates = ["update", "s of playing", "s of learning"]
    speeds = ["contexts", "engine, tokens/s", "generate, tokens/s", "same first token"]
    return [
        Part("gradients", "Gradients against float32 on the CPU", gradients),
        Part(
            "engine",
            "Engine against learner",
            table(
                lambda device, small: check_engine(device),
                ["base", "adapters in a pass", "largest difference, nats"],
            ),
        ),
        Part("decoding", "Decoding", table(measure_decoding, speeds)),
        Part("learning", "Learning", learning),
        Part(
            "swap",
            "From an optimizer's step to the first token",
            table(measure_handover, ["adapters", "median ms", "most ms"]),
        ),
        Part("quickstart", "Quickstart", table(measure_quickstart, ["updates", "seconds, with evaluation"])),
        Part(
            "league",
            f"A league of {LEAGUE}",
            table(measure_league, [of_updates[0], "games so far", *of_updates[1:]]),
        ),
        Part(
            "vllm",
            "vLLM that sleeps",
            table(measure_vllm, [*of_updates, "mismatch of log-probabilities, nats"]),
        ),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help="measured again; by default what is absent")
    parser.add_argument("--out", type=Path, default=Path("gpu-report.md"), help="the page")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--small", action="store_true", help="toy sizes, to test this script")
    arguments = parser.parse_args()
    device, small = arguments.device, arguments.small
    every = parts(device, small)
    if unknown := set(arguments.parts) - {part.name for part in every}:
        known = ", ".join(part.name for part in every)
        print(f"error: there is no part {min(unknown)}. Name some of {known}", file=sys.stderr)
        raise SystemExit(2)
    if device != "cpu" and not torch.cuda.is_available():
        print(
            "error: torch finds no CUDA device here. Run this where one is, or give --device cpu --small",
            file=sys.stderr,
        )
        raise SystemExit(2)
    sizes = ", toy sizes" if small else ""
    heading = f"# sparring on {gpu_models.describe(device)}, torch {torch.__version__}{sizes}"
    report = Report(arguments.out, heading)
    for part in every:
        is_due = part.name in arguments.parts if arguments.parts else not report.has(part)
        if is_due and (part.name != "vllm" or arguments.parts or find_spec("vllm")):
            report.measure(part)
    print(report.path.read_text())
    if failed := report.failed():
        raise SystemExit(f"error: failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
