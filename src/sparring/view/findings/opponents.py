"""Diagnoses of who plays whom."""

from collections.abc import Iterator

from sparring.core.confidence_intervals import Interval
from sparring.population.rankings import LEAST_GAMES
from sparring.view.findings.evidence import RunEvidence
from sparring.view.findings.finding import Finding
from sparring.view.findings.rewards import INVALID

STRONG = 0.9
"""A score that is surely above this, or below the rest, leaves a third of the differences between rewards
that even opponents give: p (1 - p) is 0.09 here and 0.25 at a half."""


def uneven_opponents(seen: RunEvidence) -> Iterator[Finding]:
    """Yield a finding for each policy that surely beats, or loses to, everybody whom it met lately."""
    population = seen.run.population()
    if population is None:
        return
    for policy in population.policies:
        met = {
            other: one.score
            for other in population.members
            if other != policy
            and (one := population.standing(policy, other)) is not None
            and one.games >= LEAST_GAMES
        }
        if met and min(score.low for score in met.values()) > STRONG:
            advice = "play stronger ones: newer copies, pfsp, or itself (mirror, or a mirror_share)"
            yield _uneven(seen, policy, "weak opponents", "beats", met, advice)
        elif met and max(score.high for score in met.values()) < 1 - STRONG:
            advice = "play weaker ones first: itself (mirror, or a mirror_share), copies, or random"
            yield _uneven(seen, policy, "strong opponents", "loses to", met, advice)


def _uneven(
    seen: RunEvidence, policy: str, kind: str, verb: str, met: dict[str, Interval], advice: str
) -> Finding:
    nearest = min(met, key=lambda other: abs(met[other].mid - 0.5))
    who = f"{nearest}" if len(met) == 1 else f"all {len(met)} that it met; nearest to even is {nearest}"
    step = seen.run.moments[-1].step
    return Finding(
        f"{kind}/{policy}",
        "warning",
        f"{policy} {verb} {who}, with a score of {met[nearest].mid:.0%}",
        advice,
        ("population.sample_mode", "population.fixed_opponents", "population.mirror_share"),
        "howto-opponents.md#which-to-choose",
        met[nearest].mid,
        (step, step),
        whole=tuple(f"{INVALID}/{env_id}" for env_id in seen.run.plays()),
    )


def circles(seen: RunEvidence) -> Iterator[Finding]:
    """Yield a finding if members beat each other in a circle lately, and no average outlasts a round.

    In a circle a newer version is not a better one; an average over a round plays a mixture.
    """
    first, _ = seen.recent.updates or (0, 0)
    moments = [one for one in seen.run.moments if one.cycles and one.step >= first]
    averages = seen.run.setting("learning", "average_decay", float)
    if not moments or (averages and seen.run.setting("learning", "average_power", int) in (0, 1)):
        return
    population = moments[-1]
    shortest = min(population.cycles, key=len)
    yield Finding(
        "circles",
        "warning",
        f"the population plays in a circle of {len(shortest)}: {population.cycle_text(shortest)}",
        "average the weights, play against the whole past, or search best responses to a mixture",
        ("learning.average_decay", "learning.average_power", "population.sample_mode", "league"),
        "howto-leagues.md#circles",
        float(len(shortest)),
        (population.step, population.step),
    )
