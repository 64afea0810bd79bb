"""Figures of an update, for runs in which play and learning take turns."""

from collections.abc import Mapping

from selfplay.runtime.overlap import idle_share

Learned = Mapping[str, Mapping[str, float]]
"""The metrics of each policy's update."""


def learned_figures(learned: Learned, *, alone: bool) -> dict[str, float]:
    """Return the learners' figures without times, under ``learner/POLICY/``, or ``learner/`` if ``alone``."""
    figures: dict[str, float] = {}
    for policy, metrics in learned.items():
        prefix = "learner" if alone else f"learner/{policy}"
        kept = {name: one for name, one in metrics.items() if not name.endswith(("_seconds", "_second"))}
        figures |= {f"{prefix}/{name}": one for name, one in kept.items()}
    return figures


def turn_figures(learned: Learned, play: float, learn: float, played: int) -> dict[str, float]:
    """Return the seconds of the two turns and the rates in them; ``played`` counts games or episodes."""
    tokens = sum(metrics["separate_tokens"] for metrics in learned.values())
    return {
        "overlap/learner_idle_share": idle_share(play, learn),
        "overlap/engine_idle_share": idle_share(learn, play),
        "time/play_seconds": play,
        "time/learn_seconds": learn,
        "time/games_per_second": played / max(play, 1e-9),
        "time/trained_tokens_per_second": tokens / max(learn, 1e-9),
    }
