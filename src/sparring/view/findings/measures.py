"""Diagnoses of what a run measures: whether the figures can say anything, and of what."""

from collections.abc import Iterator
from statistics import fmean, stdev

from sparring.core.confidence_intervals import NORMAL_95
from sparring.core.text import counted
from sparring.evaluation.figures import (
    ACCURACY,
    MASS,
    NASH_CONV,
    Figure,
    FigureName,
    figure_text,
)
from sparring.view.evaluations import Figures, decisive, of_measure, of_program, of_tasks
from sparring.view.findings.evidence import RunEvidence, Window
from sparring.view.findings.finding import MEASURED, TASKS, Finding
from sparring.view.findings.warnings import RAISED, game_raises
from sparring.view.run_view import REWARD as REWARD_OF

NOISE = 0.1
"""Half the width of a share's 95% interval from which a measurement shows only changes of 14 points and more:
that of fewer than about a hundred games."""
EXACT = 0.25
"""The change of an exact figure, as a share of its first value, that is more than play going up and down."""
FAILED = 0.1
"""The share of failed games from which the failures, not the policy, decide what is learned from."""


def has_improved(seen: RunEvidence) -> bool:
    """Whether any evaluation became better beyond its intervals, or the rewards of a program did beyond their
    spread between updates and no role's became worse."""
    figures = {**_directed(seen), **of_program(seen.run.figures)}
    return any(map(_is_better, figures.values())) or _earns_more(seen)


def is_measured(seen: RunEvidence) -> bool:
    """Whether anything could show that the run became better: two evaluations, or a program's rewards."""
    figures = {**_directed(seen), **of_program(seen.run.figures)}
    return any(len(series) > 1 for series in figures.values()) or bool(seen.run.roles())


def _directed(seen: RunEvidence) -> Figures:
    """Return the figures of which it is known which way is better."""
    figures = {**decisive(seen.run.figures), **of_tasks(seen.run.figures, ACCURACY)}
    figures |= of_measure(seen.run.figures, NASH_CONV)
    return {name: series for name, series in figures.items() if series}


def _is_better(series: dict[int, Figure]) -> bool:
    first, last = series[min(series)], series[max(series)]
    if not (first.is_known and last.is_known):
        return False
    if first.smaller_is_better:
        return last.interval.high < first.interval.low
    return last.interval.low > first.interval.high


def _earns_more(seen: RunEvidence) -> bool:
    gains = [_gain(seen.beginning, seen.recent, f"{REWARD_OF}{role}") for role in seen.run.roles()]
    return any(gain > 2 for gain in gains) and not any(gain < -2 for gain in gains)


def _gain(before: Window, after: Window, name: str) -> float:
    """Return by how many standard errors a metric's mean has risen; 0 where two updates cannot say."""
    old, new = ([line[name] for line in one.lines if name in line] for one in (before, after))
    if min(len(old), len(new)) < 2:
        return 0.0
    error = (stdev(old) ** 2 / len(old) + stdev(new) ** 2 / len(new)) ** 0.5
    difference = fmean(new) - fmean(old)
    return difference / error if error > 0 else 1e6 * difference


def became_worse(seen: RunEvidence) -> Iterator[Finding]:
    """Yield a finding for a figure whose last value is worse than its best beyond both intervals.

    Of many evaluations the best is partly luck, so the last must also be worse than their mean. An exact
    figure must have lost ``EXACT`` of what it was at first.
    """
    for name, series in _directed(seen).items():
        sign = -1 if next(iter(series.values())).smaller_is_better else 1
        values = {step: sign * one.value for step, one in series.items()}
        best_at = max(values, key=values.__getitem__)
        best, last = series[best_at], series[max(series)]
        apart = _are_apart(best, last)
        if last.kind == "exact":
            apart = abs(best.value - last.value) > EXACT * abs(series[min(series)].value)
        if apart and sign * last.value < fmean(values.values()):
            yield Finding(
                f"became worse/{name}",
                "critical",
                f"{name} fell from {figure_text(best)} after update {best_at} to {figure_text(last)}",
                "keep the best adapter, lower the learning rate, or hold the policy back",
                ("run.keep_best", "learning.learning_rate", "learning.algorithm"),
                "howto-runs.md#keep-the-best-adapter",
                last.value,
                (best_at, max(series)),
            )


def went_back(seen: RunEvidence) -> Iterator[Finding]:
    """Yield a finding for a program's measure that moved beyond its intervals, and then more than half of the
    way back, or past where it was: which way is better, only the program knows."""
    for name, series in of_program(seen.run.figures).items():
        first, last = series[min(series)], series[max(series)]
        far_at = max(series, key=lambda step: abs(series[step].value - first.value))
        far = series[far_at]
        left = (last.value - first.value) / (far.value - first.value) if far.value != first.value else 1.0
        if left < 0.5 and _are_apart(first, far) and _are_apart(far, last):
            yield Finding(
                f"went back/{name}",
                "warning",
                f"{name} went from {figure_text(first)} to {figure_text(far)} after update {far_at}, and "
                f"back to {figure_text(last)}",
                "keep the best adapter, lower the learning rate, or hold the policy back",
                ("run.keep_best", "learning.learning_rate", "learning.algorithm"),
                "howto-runs.md#keep-the-best-adapter",
                last.value,
                (far_at, max(series)),
            )


def _are_apart(one: Figure, other: Figure) -> bool:
    apart = one.interval.low > other.interval.high or one.interval.high < other.interval.low
    return apart and one.is_known and other.is_known


def noisy_evaluation(seen: RunEvidence) -> Iterator[Finding]:
    """Yield a finding about the widest share that two evaluations could not tell apart, if it is wide."""
    shares = {**_directed(seen), **of_program(seen.run.figures)}
    wide: dict[FigureName, float] = {}
    for name, series in shares.items():
        first, last = series[min(series)], series[max(series)]
        half = (last.interval.high - last.interval.low) / 2
        if last.kind == "share" and half >= NOISE and len(series) > 1 and not _are_apart(first, last):
            wide[name] = half
    if wide:
        name = max(wide, key=wide.__getitem__)
        series = shares[name]
        before, now = series[min(series)], series[max(series)]
        yield Finding(
            "noisy evaluation",
            "warning",
            f"{name}, {figure_text(before)} at first and {figure_text(now)} now, is of "
            f"{counted(now.count, now.counted.removesuffix('s'))}: too few to tell whether it changed",
            f"measure on {_needed(now.value)} or more",
            _sizes(name),
            "howto-evaluate.md#during-training",
            wide[name],
            (min(series), max(series)),
        )


def _needed(share: float) -> int:
    """Return how many games make half a share's interval ``NOISE`` / 2 wide."""
    spread = max(share * (1 - share), 0.09)
    return 10 * round(NORMAL_95**2 * spread / (NOISE / 2) ** 2 / 10)


def _sizes(name: FigureName) -> tuple[str, ...]:
    if name.is_of_task:
        return ("evaluation.tasks",)
    return ("evaluation.games", "evaluation.games_during") if name.env_id else (MEASURED,)


def unplayable(seen: RunEvidence) -> Iterator[Finding]:
    """Yield a finding for each environment whose last NashConv is of a policy that cannot be played."""
    figures = seen.run.figures
    for name, series in of_measure(figures, NASH_CONV).items():
        step, last = [*series.items()][-1]
        if not last.is_playable:
            mass = figures[FigureName(MASS, name.env_id)][step].value
            yield Finding(
                f"cannot be played/{name.env_id}",
                "critical",
                f"the NashConv of {name.env_id} is of a policy that cannot be played: "
                f"{mass:.2%} of its probability is on legal answers",
                "check inference.max_tokens and the template; see the share of games ended by invalid moves",
                ("inference.max_tokens", "envs"),
                "howto-evaluate.md#nashconv",
                mass,
                (step, step),
            )


def leaked_questions(seen: RunEvidence) -> Iterator[Finding]:
    """Yield a finding for each evaluation or task of which a logged question was trained on.

    A run logs some questions, so there may be more.
    """
    for name, questions in seen.played.asked.items():
        leaked = questions & seen.played.trained_on
        if leaked:
            yield Finding(
                f"leak/{name}",
                "critical",
                f"{len(leaked)} of {counted(len(questions), 'logged question')} of {name} "
                f"{'was' if len(leaked) == 1 else 'were'} trained on, such as {min(leaked)[:60]!r}",
                "ask others, or do not train on these: what is measured is partly memory",
                (TASKS, "evaluation.tasks"),
                "howto-evaluate.md#tasks",
                len(leaked) / len(questions),
            )


def stopped(seen: RunEvidence) -> Iterator[Finding]:
    """Yield a finding if the run had to stop by itself."""
    if seen.played.failure and not seen.run.is_finished:
        yield Finding(
            "stopped",
            "critical",
            f"the run had to stop: {seen.played.failure}",
            "mend this, and go on with sparring train --resume",
            (),
            "run-directory.md#resume",
        )


def store_lacks(seen: RunEvidence) -> Iterator[Finding]:
    """Yield a finding if the run's store is not like the run."""
    if seen.played.store:
        yield Finding(
            "store",
            "warning",
            f"the run's store is not complete: {seen.played.store}",
            "check the network, and the keys in the environment; sparring train --resume uploads the rest",
            ("run.store",),
            "howto-runs.md#on-another-machine",
        )


def failures(seen: RunEvidence) -> Iterator[Finding]:
    """Yield a finding if at least a tenth of the games of the newest updates failed."""
    failed, started = (_counted(seen, f"accounts/{name}") for name in ("failed", "started"))
    reasons = seen.recent.medians("accounts/failed ")
    if failed >= FAILED * started > 0:
        reason = f", mostly by {max(reasons, key=reasons.__getitem__)}" if reasons else ""
        yield Finding(
            "failures",
            "warning",
            f"{failed / started:.0%} of the {seen.run.unit} failed{reason}",
            "read their reasons in rollouts/: failed ones are always logged",
            ("collection.retries", "inference.max_context"),
            "concepts.md#what-always-holds",
            failed / started,
            seen.recent.updates,
        )


def games_that_raised(seen: RunEvidence) -> Iterator[Finding]:
    """Yield a finding if at least a tenth of the games of the newest updates ended by the game's error."""
    counts = {name: _counted(seen, RAISED + name) for name in seen.recent.medians(RAISED)}
    started = _counted(seen, "accounts/started")
    if sum(counts.values()) >= FAILED * started > 0:
        yield game_raises(counts, started, seen.recent.updates)


def _counted(seen: RunEvidence, name: str) -> float:
    """Return by how much a count has risen in the newest updates."""
    counts, looked = seen.run.metric(name).values, len(seen.recent.lines)
    if not counts:
        return 0.0
    return counts[-1] - (counts[-looked - 1] if len(counts) > looked else 0.0)


def damaged_files(seen: RunEvidence) -> Iterator[Finding]:
    """Yield a finding that names what could not be read."""
    run = seen.run
    found = [*run.damaged_evaluations, *seen.played.damaged]
    if run.tuning is not None:
        found += run.tuning.damaged
    if run.damaged_lines:
        found.insert(0, f"metrics.jsonl ({counted(run.damaged_lines, 'line')})")
    if run.config_problem:
        found.insert(0, f"config.toml ({run.config_problem})")
    checkpoints = "; sparring train --resume says which checkpoint is whole" if run.tuning is None else ""
    if found:
        more = f" and {counted(len(found) - 5, 'other')}" if len(found) > 5 else ""
        yield Finding(
            "damaged files",
            "warning",
            f"damaged or missing, so left out here: {', '.join(found[:5])}{more}",
            f"restore them from a copy{checkpoints}",
            (),
            "run-directory.md#what-is-checked",
            float(len(found)),
        )
