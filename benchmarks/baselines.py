"""Compare reward baselines on the batches of finished runs: the mean squared advantage that each one gives.

    python benchmarks/baselines.py runs/ttt

Every step of a game has the game's reward. On each batch in a run's batches/, the advantages are computed
without a baseline, with the mean of the other steps at the same prompt or else of the other steps in the seat
(one step left out), with the mean of the seat's other episodes, and with the default, ``SamePromptBaseline``.
Means over batches have 95% bootstrap intervals, which resample batches; the last columns compare the default
with each other baseline on the same batches. A baseline that lowers the mean square lowers the variance of
the gradient. None of them changes its expectation, except that leaving out one step lets an episode's own
reward into its baseline.
"""

import math
import random
import sys
from collections import defaultdict
from collections.abc import Callable, Hashable
from dataclasses import replace
from pathlib import Path

from measuring import print_table
from sparring.collection import BatchLog, SamePromptBaseline
from sparring.core import Step

RESAMPLES = 10_000
EARLY = 10
Baseline = Callable[[list[Step]], list[float]]


def steps_of(log: BatchLog, number: int) -> list[Step]:
    """Return a batch's steps with their rewards before the baseline; equal positions have equal prompts."""
    numbers: dict[Hashable, int] = {}
    steps = []
    for line in log.read(number):
        position = (line["env_id"], line["pid"], line["obs"])
        steps.append(
            Step(
                line["role_id"],
                [],
                [],
                prompt_token_ids=[numbers.setdefault(position, len(numbers))],
                reward=line["rewards"]["step"],
                info={"rollout_id": line["rollout_id"]},
                pid=line["pid"],
                env_id=line["env_id"],
            )
        )
    return steps


def without(steps: list[Step]) -> list[float]:
    """Return the rewards themselves."""
    return [step.reward for step in steps]


def one_step_left_out(steps: list[Step]) -> list[float]:
    """Subtract the mean of the other steps at the prompt, or else of the other steps in the seat."""
    advantages = {id(step): step.reward for step in steps}
    for key in (seat, prompt):
        for bucket in buckets(steps, key):
            total = math.fsum(step.reward for step in bucket)
            for step in bucket if len(bucket) > 1 else []:
                advantages[id(step)] = step.reward - (total - step.reward) / (len(bucket) - 1)
    return [advantages[id(step)] for step in steps]


def seats_other_episodes(steps: list[Step]) -> list[float]:
    """Subtract the mean reward of the seat's other episodes, each of which counts once."""
    rewards: dict[Hashable, dict[str, float]] = defaultdict(dict)
    for step in steps:
        rewards[seat(step)][step.info["rollout_id"]] = step.reward
    advantages = []
    for step in steps:
        others = rewards[seat(step)]
        mean = (math.fsum(others.values()) - step.reward) / max(len(others) - 1, 1)
        advantages.append(step.reward - mean)
    return advantages


def default(steps: list[Step]) -> list[float]:
    """Apply ``SamePromptBaseline`` to copies of the steps."""
    copies = [replace(step, advantage=step.reward) for step in steps]
    return [step.advantage for step in SamePromptBaseline()(copies)]


def seat(step: Step) -> Hashable:
    return step.env_id, step.pid


def prompt(step: Step) -> Hashable:
    return tuple(step.prompt_token_ids or ())


def buckets(steps: list[Step], key: Callable[[Step], Hashable]) -> list[list[Step]]:
    found: dict[Hashable, list[Step]] = defaultdict(list)
    for step in steps:
        found[key(step)].append(step)
    return list(found.values())


BASELINES: dict[str, Baseline] = {
    "none": without,
    "prompt, one step left out": one_step_left_out,
    "seat, other episodes": seats_other_episodes,
    "default": default,
}


def mean_and_interval(values: list[float]) -> str:
    """Return the mean with its 95% bootstrap interval."""
    draw = random.Random(0)
    means = sorted(math.fsum(draw.choices(values, k=len(values))) / len(values) for _ in range(RESAMPLES))
    low, high = means[round(0.025 * RESAMPLES)], means[round(0.975 * RESAMPLES)]
    return f"{math.fsum(values) / len(values):.3f} ({low:.3f} to {high:.3f})"


def rows_of(run: Path) -> list[list[str]]:
    """Return a row for each baseline on a run's batches."""
    log = BatchLog(run / "batches")
    batches = [steps_of(log, number + 1) for number in range(len(list(log.directory.glob("batch-*"))))]
    squares = {
        name: [math.fsum(value**2 for value in baseline(steps)) / len(steps) for steps in batches]
        for name, baseline in BASELINES.items()
    }
    rows = []
    for name, values in squares.items():
        shares = [ours / theirs for ours, theirs in zip(squares["default"], values, strict=True)]
        cells = [mean_and_interval(values), mean_and_interval(shares[:EARLY]), mean_and_interval(shares)]
        rows.append([run.name, name, f"{values[0]:.3f}", *cells])
    return rows


def main() -> None:
    """Print a table for the runs named on the command line."""
    rows = [row for argument in sys.argv[1:] for row in rows_of(Path(argument))]
    if not rows:
        sys.exit("name at least one run directory")
    header = ["run", "baseline", "first batch", "all batches", f"default over it, first {EARLY}", "all"]
    print_table(header, rows)


if __name__ == "__main__":
    main()
