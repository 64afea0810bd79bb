"""Make the exploitability card of any agent, into the directory of the best response to it.

In a game that lists its moves the response is in a table, elsewhere it is a model.
"""

import json
from collections.abc import Sequence
from pathlib import Path

from sparring.commands.answered import AgentQuery
from sparring.commands.best_response import Train, train_to_the_end
from sparring.commands.card_page import card_html
from sparring.commands.exploit import Budget, exploit
from sparring.commands.measuring import WON_GAMES
from sparring.commands.table_card import Curve, answer_in_table
from sparring.core.env_id import absolute_id
from sparring.core.files import write_file, writing
from sparring.evaluation.best_response import Exploited
from sparring.evaluation.calibration import kind_of, of_kind, shipped, summary_of
from sparring.evaluation.exploitability_card import Calibrated, ExploitabilityCard, MeasureChange
from sparring.evaluation.figures import figures_of
from sparring.evaluation.match import Progress
from sparring.evaluation.results import EvaluationResult, MatchResult, evaluated_steps, read_evaluation
from sparring.run.evaluation_opponents import tells_moves
from sparring.run.run_directory import RunDirectory

PAGE, RESULT = "card.html", "card.json"


def make_card(
    query: AgentQuery,
    directory: Path,
    budget: Budget | None = None,
    *,
    train: Train = train_to_the_end,
    progress: Progress | None = None,
) -> ExploitabilityCard | None:
    """Let a best response learn, measure it, and write ``card.html`` and ``card.json`` into its directory.

    Arguments and errors are those of :func:`exploit`. Returns ``None`` if the training was interrupted.
    """
    budget, progress = budget or Budget(), progress or Progress()
    curve, measures = Curve(), list[MeasureChange]()
    if query.env_id is not None and tells_moves(absolute_id(query.env_id, Path())):
        found: Exploited | None
        found, curve = answer_in_table(query, directory, budget, progress)
    else:
        found = exploit(query, directory, budget, train=train, progress=progress)
        if found is None:
            return None
        curve, measures = _training(RunDirectory(directory))
    card = ExploitabilityCard(found, curve, measures, calibrated_as(found, of_game=query.env_id is not None))
    content = f"{json.dumps(card.to_dict(), indent=1, allow_nan=False)}\n"
    with writing(directory / PAGE):
        write_file(directory / RESULT, content.encode())
        write_file(directory / PAGE, card_html(card, directory / WON_GAMES).encode())
    return card


def _training(run: RunDirectory) -> tuple[Curve, list[MeasureChange]]:
    """Return a model's mean reward by update, and the measures of its program before and after."""
    results = {step: _evaluations(run.evaluation, step) for step in evaluated_steps(run.evaluation)}
    curve = [
        (step, one.mean_reward)
        for step, several in results.items()
        for one in several
        if isinstance(one, MatchResult) and one.games
    ]
    return curve, _measures([*results.values()])


def _evaluations(directory: Path, step: int) -> list[EvaluationResult]:
    return [read_evaluation(path)[1] for path in sorted(directory.glob(f"step-{step:06d}-*.json"))]


def _measures(results: Sequence[Sequence[EvaluationResult]]) -> list[MeasureChange]:
    """Return a program's measures in its first evaluation and its last."""
    if len(results) < 2 or any(isinstance(one, MatchResult) for one in results[0]):
        return []
    before, after = (
        {figure.name.measure: figure for one in several for figure in figures_of(one)}
        for several in (results[0], results[-1])
    )
    return [
        MeasureChange(name, one.kind, one.interval, after[name].interval)
        for name, one in before.items()
        if name in after
    ]


def calibrated_as(found: Exploited, *, of_game: bool) -> Calibrated:
    """Return what the table says of such responses in games like this one."""
    table, kind = shipped(), kind_of(found.env_id) if of_game else None
    cells = [] if kind is None else of_kind(table.cells, kind)
    problem = ""
    if not table.cells:
        problem = "the table of this package is empty"
    elif kind is None:
        problem = "the table has games of OpenSpiel alone, where the exact gain is known"
    elif not cells:
        problem = f"no game of the table has {kind}"
    elif found.positions is None:
        problem = "the responses of the table learned in tables, and this one is a model"
    if problem:
        return Calibrated(kind, None, f"Not calibrated: {problem}.")
    if found.training_games < (least := min(one.training_games for one in cells)):
        problem = f"The responses of the table had {least:,} games or more, so this one may find less."
    return Calibrated(kind, summary_of(cells), problem)
