"""Finding: one thing that stands out in a run, with its figure, where it was seen and what to change."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from sparring.core.text import counted
from sparring.view.run_view import RunView

Severity = Literal["critical", "warning"]
"""``critical``: nothing is learned, or the figures are wrong. ``warning``: less is learned than could be, or
the figures say less than they seem to."""


@dataclass(frozen=True)
class Finding:
    """Something that stands out.

    Attributes:
        cause: names the diagnosis; after a slash, whom it is about, such as a role. It stays the same from
            version to version.
        severity: how bad it is.
        text: what was found, with its figure.
        advice: what to check or change.
        settings: the fields of the configuration to change. A diagnosis may write what there is a
            word for below, of which ``findings_of`` makes the fields.
        page: the page of ``docs/`` that explains it, with its section.
        figure: the figure in ``text``, if it is one number.
        updates: the first and the last update that it was looked for in.
        seen: in how many of these updates it was seen, where it was looked for in each.
        whole: causes of which this one is a part or a consequence; beside one of them it is left out.
    """

    cause: str
    severity: Severity
    text: str
    advice: str
    settings: tuple[str, ...] = ()
    page: str = ""
    figure: float | None = None
    updates: tuple[int, int] | None = None
    seen: int | None = None
    whole: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.text}; {self.advice}"

    @property
    def kind(self) -> str:
        """The name of the diagnosis."""
        return self.cause.partition("/")[0]

    def where(self, turn: str = "update") -> str:
        """Return where it was seen in words, such as ``in 9 of 10 updates, 31 to 40``; empty if unknown.

        What was measured of all of them together was seen ``over updates 31 to 40``.
        ``turn`` is the noun for what ``updates`` counts.
        """
        if self.updates is None:
            return ""
        first, last = self.updates
        looked = last - first + 1
        seen = "" if self.seen is None or looked == 1 else f"{self.seen} of {counted(looked, turn)}, "
        if looked == 1:
            return f"in {turn} {last}"
        return f"in {seen}{first} to {last}" if seen else f"over {turn}s {first} to {last}"

    def to_dict(self) -> dict[str, Any]:
        """Return everything but ``whole`` as JSON-able values."""
        return {
            "cause": self.cause,
            "severity": self.severity,
            "text": self.text,
            "figure": self.figure,
            "updates": None if self.updates is None else list(self.updates),
            "settings": list(self.settings),
            "advice": self.advice,
            "page": self.page,
        }


TASKS, COMPARED, MEASURED, SCORED = "what is asked", "a group's size", "a measure's size", "what is rewarded"
"""What a finding may want to change whose field depends on what is played."""
_OF_GAMES = {
    TASKS: ("envs",),
    COMPARED: ("collection.games_per_step",),
    MEASURED: ("evaluation.games", "evaluation.games_during"),
    SCORED: ("rewards.final", "rewards.step"),
}
_OF_PROGRAMS = {
    "corpus": ("documents", "proposals_per_document", "evaluation_proposals", "solver_rollouts"),
    "debate": ("topics", "debates_per_topic", "evaluation_debates", "judge_model"),
    "proofs": ("claims", "proofs_per_claim", "evaluation_claims", "verifier_reward"),
    "proposer_solver": ("questions", "proposals_per_prompt", "evaluation_proposals", "target_pass_rate"),
    "prover_verifier": ("questions", "solutions_per_question", "evaluation_questions", "reward"),
    "python": ("options", "options", "options", "path"),
    "questions": ("questions", "answers_per_question", "evaluation_questions", "score"),
    "self_judged": ("task", "batch_size", "evaluation_proposals", "quality_weight"),
    "workflow": ("questions", "episodes_per_question", "evaluation_questions", "score"),
    "verifiers": ("taskset", "episodes_per_task", "evaluation_tasks", "options"),
}
"""The fields of each kind of program, in the order of ``_OF_GAMES``."""
_ONLY_OF_GAMES = ("envs", "evaluation.games", "evaluation.games_during")


def fields_of(run: RunView, settings: tuple[str, ...]) -> tuple[str, ...]:
    """Return the fields of a run's configuration that ``settings`` mean, each once."""
    if not run.is_program:
        found = [field for one in settings for field in _OF_GAMES.get(one, (one,))]
        return tuple(dict.fromkeys(one for one in found if one != "roles"))
    names = _OF_PROGRAMS.get(run.setting("program", "type", str) or "python", _OF_PROGRAMS["python"])
    own = {what: f"program.{name}" for what, name in zip(_OF_GAMES, names, strict=True)}
    return tuple(dict.fromkeys(own.get(one, one) for one in settings if one not in _ONLY_OF_GAMES))


def has_examples(games: Iterable[str]) -> bool:
    """Whether templates can show examples of moves: not in games like ``pettingzoo:chess_v6``, which say by
    themselves all that a model reads."""
    return not any(":" in name for name in games)
