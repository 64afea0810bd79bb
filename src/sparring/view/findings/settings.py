"""Which fields of the configuration a finding names: those that a run of its kind has."""

from collections.abc import Iterable

from sparring.view.run_view import RunView

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
