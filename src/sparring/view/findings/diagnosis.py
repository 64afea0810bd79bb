"""findings_of: everything that stands out in a run, the one list for the doctor, the report and the screen.

A new diagnosis is a function of the evidence in the file of its subject, and a line in ``DIAGNOSES``.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

from sparring.view.findings.evidence import RunEvidence
from sparring.view.findings.finding import Finding
from sparring.view.findings.measures import (
    became_worse,
    damaged_files,
    failures,
    games_that_raised,
    leaked_questions,
    noisy_evaluation,
    stopped,
    store_lacks,
    unplayable,
    went_back,
)
from sparring.view.findings.opponents import circles, uneven_opponents
from sparring.view.findings.played import PlayedGames
from sparring.view.findings.rewards import (
    alike,
    cheap_invalid_moves,
    groups_too_small,
    invalid_moves,
    one_takes_all,
    only_format,
    warned,
)
from sparring.view.findings.settings import fields_of
from sparring.view.findings.steps import (
    entropy_collapse,
    entropy_explosion,
    mismatch,
    stale_answers,
    steps_too_large,
)
from sparring.view.findings.tuning import (
    broken_jobs,
    invalid_answers,
    judges_worse,
    nothing_to_imitate,
    rewards_alike,
    undecided,
)
from sparring.view.run_view import RunView

DIAGNOSES: tuple[Callable[[RunEvidence], Iterator[Finding]], ...] = (
    *(stopped, games_that_raised, entropy_collapse, entropy_explosion, only_format, warned, alike),
    *(cheap_invalid_moves, invalid_moves),
    *(became_worse, leaked_questions, unplayable, went_back, mismatch, stale_answers, steps_too_large),
    *(uneven_opponents, one_takes_all, groups_too_small, circles, failures, store_lacks),
    *(noisy_evaluation, damaged_files),
)
"""Those that matter more come first."""
OF_TUNING: tuple[Callable[[RunEvidence], Iterator[Finding]], ...] = (
    *(nothing_to_imitate, broken_jobs, undecided, judges_worse),
    *(invalid_answers, rewards_alike, damaged_files),
)
"""The diagnoses of a run through fine-tuning jobs."""
NOTHING = PlayedGames()


def findings_of(run: RunView, played: PlayedGames = NOTHING) -> list[Finding]:
    """Return what stands out in a run, worst first; without ``played``, as far as its metrics show it."""
    evidence = RunEvidence(run, played)
    diagnoses = DIAGNOSES if run.tuning is None else OF_TUNING
    found = [one for diagnosis in diagnoses for one in diagnosis(evidence)]
    causes = {one.cause for one in found}
    kept = [one for one in found if causes.isdisjoint(one.whole)]
    named = [replace(one, text=run.shown(one.text), settings=fields_of(run, one.settings)) for one in kept]
    return sorted(named, key=lambda one: one.severity)
