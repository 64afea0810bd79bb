"""What is measured of an iteration's rollouts, and what a run shows and leaves for its report."""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from statistics import fmean, pstdev

import msgspec

from sparring.collection.sinks import read_metrics
from sparring.core import Rollout
from sparring.core.files import write_file
from sparring.evaluation.results import MeasureResult, write_evaluation
from sparring.finetune.providers import Job
from sparring.finetune.run_files import (
    TRAINING,
    JobState,
    PlannedRollouts,
    RunFiles,
    Stage,
    read_json_if_there,
    write_json,
)
from sparring.finetune.trees import ends_of
from sparring.programs.proofs.protocol import Protocol
from sparring.programs.proofs.state import ProofState, RoundAnswer, is_right, measures_of, total_rewards


class View:
    """Shows nothing, and keeps the statistics in ``logged``, a pair of iteration and statistics each."""

    def __init__(self) -> None:
        self.logged: list[tuple[int, dict[str, float]]] = []

    def say(self, line: str) -> None:
        """Show a line."""

    def stage(self, stage: Stage, iteration: int) -> None:
        """Show which stage begins."""

    @contextmanager
    def progress(self, title: str, total: int) -> Iterator[Callable[[], None]]:
        """Show a bar while the body runs, unless the title is empty; the function advances it by one."""
        yield lambda: None

    def job(self, group: str, job: Job, progress: str) -> None:
        """Show a group's job, and the last line that the provider says of it."""

    def log(self, iteration: int, stats: Mapping[str, float]) -> None:
        """Show the statistics of an iteration."""
        self.logged.append((iteration, dict(stats)))


class RunRecords:
    """Writes what the report, ``sparring watch`` and ``sparring runs`` show of a run. What is recorded again
    after a kill replaces what was recorded before."""

    def __init__(self, files: RunFiles) -> None:
        self.files = files

    def sampling(self, total: int) -> None:
        """Write how many rollouts there will be."""
        write_json(self.files.sampling, PlannedRollouts(total))

    def job(self, seen: JobState) -> None:
        """Write what is seen of a job, if that has changed."""
        path = self.files.job_states
        before = read_json_if_there(path, list[JobState]) or []
        if seen not in before:
            key = (seen.iteration, seen.group, seen.job)
            others = [one for one in before if (one.iteration, one.group, one.job) != key]
            write_json(path, [*others, seen])

    def log(self, iteration: int, stats: Mapping[str, float]) -> None:
        """Add values to the line of an iteration in ``metrics.jsonl``."""
        path = self.files.metrics
        lines = {line["step"]: line for line in read_metrics(path)}
        lines[iteration] = {**lines.get(iteration, {}), "step": iteration, "iteration": iteration, **stats}
        write_file(path, b"".join(msgspec.json.encode(lines[one]) + b"\n" for one in sorted(lines)))

    def sampled(self, split: str, iteration: int, rollouts: Sequence[Rollout]) -> None:
        """Write the measures of finished proofs with their intervals, and count decisions by truth."""
        proofs = [end for one in rollouts if one.error is None for end in ends_of(one)]
        for name, values in measures_of(proofs).items():
            if not values:
                continue
            name = name if split == "test" else f"{TRAINING}{name}"
            write_evaluation(self.files.evaluation, iteration, name, MeasureResult(name, values))
        counts = Counter((proof["y"], proof["decision"]["verdict"]) for proof in proofs)
        truths, verdicts = ((1, "right"), (0, "wrong")), ("accept", "reject", "neither", "none")
        counted = {
            f"decisions/{split}/{truth}/{verdict}": float(counts[y, verdict])
            for y, truth in truths
            for verdict in verdicts
        }
        self.log(iteration, counted)


def log_stats(protocol: Protocol, states: Sequence[ProofState], prefix: str) -> dict[str, float]:
    """Return the statistics of finished episodes, under nip's names.

    ``{agent}.{prefix}...`` are an agent's: reward, retries of its answers (a mean), and the share of its
    answers that the token limit cut. The others: length (rounds with a message in the first channel),
    accuracy (a missing decision is wrong), also by truth and of the worst datapoint, decisions (1 accept, 0
    reject), shares of missing and middle ones, the entropy of their values in nats, precision and recall of
    "accept". A mean over nothing is left out; in the original it can be NaN.
    """
    if not states:
        return {}
    stats: dict[str, float] = {}
    for agent in protocol.agents:
        answers = [one for state in states for one in answers_of(state, agent.name)]
        rewards = [total_rewards(state).get(agent.name, 0.0) for state in states]
        stats |= _mean_and_std(f"{agent.name}.{prefix}", "episode_reward", rewards)
        if answers:
            stats[f"{agent.name}.{prefix}retry_proportion"] = fmean(one["retries"] for one in answers)
            stats[f"{agent.name}.{prefix}token_limit_proportion"] = fmean(one["cut"] for one in answers)
    right = [float(is_right(state)) for state in states]
    verdicts = [state["decision"]["verdict"] for state in states]
    made = [float(verdict == "accept") for verdict in verdicts if verdict in ("accept", "reject")]
    stats |= _mean_and_std(prefix, "episode_length", [_length(protocol, state) for state in states])
    stats |= _mean_and_std(prefix, "accuracy", right)
    for y in (0, 1):
        of_truth = [one for one, state in zip(right, states, strict=True) if state["y"] == y]
        stats |= _mean_and_std(prefix, f"{y}_accuracy", of_truth)
    stats |= _mean_and_std(prefix, "decision", made)
    stats[f"{prefix}worst_datapoint_accuracy"] = min(accuracy_by_datapoint(states).values())
    stats[f"{prefix}no_decision_proportion"] = fmean(verdict == "none" for verdict in verdicts)
    stats[f"{prefix}neither_agree_nor_disagree_proportion"] = fmean(one == "neither" for one in verdicts)
    values = Counter(one["decision"]["value"] for one in states if one["decision"]["verdict"] != "none")
    stats[f"{prefix}verifier_decision_entropy"] = _entropy(values.values())
    stats |= _precision_and_recall(states, prefix)
    return stats


def accuracy_by_datapoint(states: Iterable[ProofState]) -> dict[str, float]:
    """Return the share of right verdicts for each claim."""
    right: dict[str, list[bool]] = defaultdict(list)
    for state in states:
        right[state["id"]].append(is_right(state))
    return {name: fmean(of_claim) for name, of_claim in right.items()}


def answers_of(state: ProofState, agent: str) -> list[RoundAnswer]:
    """Return an agent's answers in all rounds."""
    return [one["answers"][agent] for one in state["rounds"] if agent in one["answers"]]


def _length(protocol: Protocol, state: ProofState) -> float:
    first = protocol.channels[0].name
    rounds = state["rounds"]
    return float(
        sum(any(first in one["messages"] for one in played["answers"].values()) for played in rounds)
    )


def _precision_and_recall(states: Sequence[ProofState], prefix: str) -> dict[str, float]:
    accepted = [float(state["y"]) for state in states if state["decision"]["verdict"] == "accept"]
    of_true = [float(is_right(state)) for state in states if state["y"] == 1]
    found = {"precision": accepted, "recall": of_true}
    return {f"{prefix}{name}": fmean(values) for name, values in found.items() if values}


def _mean_and_std(prefix: str, name: str, values: Sequence[float]) -> dict[str, float]:
    if not values:
        return {}
    return {f"{prefix}mean_{name}": fmean(values), f"{prefix}std_{name}": pstdev(values)}


def _entropy(counts: Iterable[int]) -> float:
    shares = [count for count in counts if count]
    total = sum(shares)
    return -math.fsum(n / total * math.log(n / total) for n in shares) if total else 0.0
