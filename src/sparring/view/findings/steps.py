"""Diagnoses of learning: what its steps do to the policy, and whether it learns from what was drawn."""

from collections.abc import Iterator

from sparring.view.findings.evidence import RunEvidence, Window
from sparring.view.findings.finding import Finding
from sparring.view.findings.measures import has_improved, is_measured

MISMATCH = 0.05
"""Nats a token between engine and learner from which ratios are off by 5% before anything is learned: a
quarter of ``learning.max_mismatch``, above which a run stops. In float32 it is below 1e-5."""
STALE = 0.1
"""Nats a token between a policy and its older version, from which an answer of ten tokens may be e times as
likely as it was."""
MASKED = 0.2
"""The share of tokens that a correction leaves out, from which a fifth of the play was in vain."""
CLIPPED = 0.3
"""The share of clipped tokens from which most of what a step would change is thrown away; PPO's usual is
below 0.2."""
EXPLODED = 1.0
"""Nats a token by which entropy has risen, from which an answer chooses among e times as many tokens."""
FIRST = 3
"""The first updates that say what entropy was: it may collapse within ten."""
COLLAPSED, LEAST_ENTROPY = 0.1, 0.05
"""Entropy has collapsed below this share of what it was, and below this many nats a token: two answers in
about a hundred then differ from the usual one."""


def mismatch(seen: RunEvidence) -> Iterator[Finding]:
    """Yield a finding where engine and learner disagree about the probabilities of what was drawn."""
    for policy, nats in seen.recent.of_policies("mismatch").items():
        if nats >= MISMATCH:
            yield Finding(
                _of("mismatch", policy),
                "warning",
                f"engine and learner differ by {nats:.2g} nats a token{_about(policy)}",
                "compute both in the same type, without quantisation, and at the same temperature; or "
                "correct with tis or icepop",
                ("model.dtype", "learning.algorithm"),
                "howto-algorithms.md#where-engine-and-learner-differ",
                nats,
                seen.recent.updates,
            )


def stale_answers(seen: RunEvidence) -> Iterator[Finding]:
    """Yield a finding where answers of older versions are so unlikely by now that they teach little."""
    for policy, nats in seen.recent.of_policies("stale_mismatch").items():
        if nats >= STALE:
            yield Finding(
                _of("stale answers", policy),
                "warning",
                f"answers of older versions differ by {nats:.2g} nats a token{_about(policy)} from what the "
                "policy would say now",
                "lower the learning rate, or let less play overlap with learning",
                ("learning.learning_rate", "collection.max_staleness"),
                "howto-algorithms.md#what-to-watch",
                nats,
                seen.recent.updates,
            )
    for policy, share in seen.recent.of_policies("correction_masked").items():
        if share >= MASKED:
            yield Finding(
                _of("left out", policy),
                "warning",
                f"the correction leaves out {share:.0%} of the tokens{_about(policy)}",
                "lower the learning rate or collection.max_staleness, or use tis, which bounds weights",
                ("learning.learning_rate", "collection.max_staleness", "learning.algorithm"),
                "howto-algorithms.md#where-engine-and-learner-differ",
                share,
                seen.recent.updates,
            )


def steps_too_large(seen: RunEvidence) -> Iterator[Finding]:
    """Yield a finding where the loss clips much of what a step would change."""
    for policy, share in seen.recent.of_policies("clip_fraction").items():
        if share >= CLIPPED:
            yield Finding(
                _of("large steps", policy),
                "warning",
                f"the loss clips {share:.0%} of the tokens{_about(policy)}: its steps are too large",
                "lower the learning rate, or make fewer steps of a batch",
                ("learning.learning_rate", "learning.epochs", "learning.minibatches"),
                "howto-algorithms.md#what-to-watch",
                share,
                seen.recent.updates,
            )


def entropy_collapse(seen: RunEvidence) -> Iterator[Finding]:
    """Yield a finding for each seat or role whose answers hardly vary any more, in a run that has not become
    better by any measure: a policy that has learned its task may be sure of itself. Without a measure it is a
    warning, because nobody knows."""
    measured = is_measured(seen)
    means = "no measure is better than at first" if measured else "no evaluation says whether it learned"
    for role, before, nats in _entropies(seen):
        if nats < min(LEAST_ENTROPY, COLLAPSED * before):
            yield Finding(
                f"entropy/{role}",
                "critical" if measured else "warning",
                f"the entropy of {role} has collapsed from {before:.2g} to {nats:.2g} nats a token, "
                f"and {means}",
                ("" if measured else "measure it; ")
                + "lower the learning rate, or hold the policy back by a regulariser or a reference",
                ("learning.learning_rate", "learning.algorithm"),
                "howto-algorithms.md#what-holds-the-policy-back",
                nats,
                seen.recent.updates,
            )


def entropy_explosion(seen: RunEvidence) -> Iterator[Finding]:
    """Yield a finding for each seat or role whose answers have become far more random, in a run that has not
    become better by any measure: what the model knew is lost."""
    for role, before, nats in _entropies(seen):
        if nats > before + EXPLODED:
            yield Finding(
                f"large steps/{role}",
                "critical",
                f"the entropy of {role} has risen from {before:.2g} to {nats:.2g} nats a token: its "
                "steps are too large, and what it knew is lost",
                "lower the learning rate, or hold the policy back by a reference",
                ("learning.learning_rate", "learning.algorithm"),
                "howto-algorithms.md#what-holds-the-policy-back",
                nats,
                seen.recent.updates,
            )


def _entropies(seen: RunEvidence) -> Iterator[tuple[str, float, float]]:
    """Yield each seat or role with its entropy at first and now, in a run that has not become better."""
    prefix = "answers/entropy_estimate/"
    first = Window(seen.beginning.lines[:FIRST]).medians(prefix)
    for role, nats in () if has_improved(seen) else seen.recent.medians(prefix).items():
        if role in first:
            yield role, first[role], nats


def _of(kind: str, policy: str) -> str:
    return f"{kind}/{policy}" if policy else kind


def _about(policy: str) -> str:
    return f" of {policy}" if policy else ""
