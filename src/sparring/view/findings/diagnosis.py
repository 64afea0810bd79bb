"""findings_of: everything that stands out in a run, the one list for the doctor, the report and the screen.

A new diagnosis is a function of the evidence in the file of its subject, and a line in ``DIAGNOSES``.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

from sparring.view.findings import measures, opponents, rewards, steps, tuning
from sparring.view.findings.evidence import RunEvidence
from sparring.view.findings.finding import Finding, fields_of
from sparring.view.findings.played import PlayedGames
from sparring.view.run_view import RunView

DIAGNOSES: tuple[Callable[[RunEvidence], Iterator[Finding]], ...] = (
    *(measures.stopped, measures.games_that_raised, steps.entropy_collapse, steps.entropy_explosion),
    *(rewards.only_format, rewards.warned, rewards.alike, rewards.cheap_invalid_moves),
    *(rewards.invalid_moves, measures.became_worse, measures.leaked_questions, measures.unplayable),
    *(measures.went_back, steps.mismatch, steps.stale_answers, steps.steps_too_large),
    *(opponents.uneven_opponents, rewards.one_takes_all, rewards.groups_too_small, opponents.circles),
    *(measures.failures, measures.store_lacks, measures.noisy_evaluation, measures.damaged_files),
)
"""Those that matter more come first."""
OF_TUNING: tuple[Callable[[RunEvidence], Iterator[Finding]], ...] = (
    *(tuning.nothing_to_imitate, tuning.broken_jobs, tuning.undecided, tuning.judges_worse),
    *(tuning.invalid_answers, tuning.rewards_alike, measures.damaged_files),
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
