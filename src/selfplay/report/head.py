"""The top of the report: what was trained, when and where, warnings, and headline figures."""

from html import escape

from selfplay.finetune.run_files import TRAINING
from selfplay.read.evaluations import (
    Evaluation,
    are_shares,
    exact_of,
    matches_of,
    measures_of,
    unplayable_warnings,
)
from selfplay.read.numbers import counted, duration_text
from selfplay.read.warnings import FoundWarning
from selfplay.read.whole_run import WholeRun
from selfplay.report.pieces import tiles_of
from selfplay.report.tables import value_text


def subtitle_html(run: WholeRun) -> str:
    """Return the model, and the environments or the program with its roles and policies, where known."""
    named = f"Model <b>{escape(run.model)}</b>"
    names = ", ".join(run.plays())
    if run.tuning is not None:
        agents = escape(", ".join(run.roles()))
        return (
            f"{named} is trained through fine-tuning jobs on <b>{escape(names)}</b>, agents <b>{agents}</b>"
        )
    if not run.is_program:
        played = f"{named} plays <b>{escape(names)}</b>" if names else named
        watched = ", ".join(run.watches())
        return f"{played}, evaluated in <b>{escape(watched)}</b>" if watched else played
    parts = [f"{named} is trained on the program <b>{escape(names)}</b>"]
    for noun, plural, several in (("role", "roles", run.roles()), ("policy", "policies", run.policies())):
        if several:
            parts.append(f"{noun if len(several) == 1 else plural} <b>{escape(', '.join(several))}</b>")
    return ", ".join(parts)


def origin_html(run: WholeRun) -> str:
    """Return a line with the start, the seed, versions and the kind of machine, where they are known."""
    parts = []
    if run.sessions:
        last = run.sessions[-1]
        started = f"started {run.sessions[0].started.replace('T', ' ').removesuffix('+00:00')} UTC"
        resumed = len(run.sessions) - 1
        parts.append(started + (f", resumed {counted(resumed, 'time')}" if resumed else ""))
        versions = (("selfplay", last.selfplay), ("Python", last.python), ("torch", last.torch))
        parts.append(", ".join(f"{name} {version}" for name, version in versions if version))
        machine = [last.system, counted(last.cpus, "CPU") if last.cpus else "", *last.gpus]
        parts.append(", ".join(filter(None, machine)))
    if isinstance(run.config.get("seed"), int):
        parts.append(f"seed {run.config['seed']}")
    if run.damaged_lines:
        parts.append(f"{counted(run.damaged_lines, 'damaged line')} of metrics skipped")
    text = " · ".join(filter(None, parts))
    return f'<p class="muted">{escape(text)}</p>' if text else ""


def warnings_html(run: WholeRun) -> str:
    """Return a card with the run's warnings, each cause once; empty without any."""
    found = {one.warning.cause: one for one in run.found_warnings}
    rows = [
        (
            one.warning,
            f"in {one.lines} of {counted(run.lines, run.turn)}, most recently in {run.turn} {one.step:.10g}"
            f"{_parts_text(one, found)}; ",
        )
        for one in found.values()
        if one.warning.whole not in found
    ]
    rows += [(warning, "") for warning in unplayable_warnings(run.evaluations)]
    if not rows:
        return ""
    shown = "".join(
        f'<li><b>{escape(warning.text)}</b> <span class="muted">{escape(where + warning.advice)}</span></li>'
        for warning, where in rows
    )
    return f'<div class="card warning"><h3>Look at this first</h3><ul>{shown}</ul></div>'


def _parts_text(whole: FoundWarning, found: dict[str, FoundWarning]) -> str:
    """Return in how many other updates only a part of the problem was there, such as one role."""
    cause = whole.warning.cause
    return "".join(
        f", and for {one.warning.cause.removeprefix(f'{cause}/')} alone in {one.lines} more"
        for one in found.values()
        if one.warning.whole == cause
    )


def tiles_html(run: WholeRun) -> str:
    """Return the row of headline figures."""
    tiles = []
    if run.tuning is not None:
        total = run.tuning.total
        tiles.append(("Iterations", f"{run.step:,}", f"of {total:,}; {run.tuning.text}" if total else ""))
    elif run.lines:
        total = run.total_steps
        tiles.append(("Updates", f"{run.step:,}", f"of {total:,}" if total else ""))
        if seconds := run.seconds():
            evaluating = run.metric("time/evaluation_seconds").total
            note = f"including {duration_text(evaluating)} of evaluation" if evaluating else ""
            tiles.append(("Time", duration_text(seconds), note))
    if "accounts/finished" in run.latest:
        wrong = [(name, run.latest.get(f"accounts/{name}")) for name in ("failed", "retried")]
        note = ", ".join(f"{value:,.0f} {name}" for name, value in wrong if value is not None)
        tiles.append((run.unit.capitalize(), f"{run.latest['accounts/finished']:,.0f}", note))
    for env_id, found in exact_of(run.evaluations).items():
        note = env_id if found[-1].is_playable else f"{env_id}; cannot be played, see below"
        tiles.append(("NashConv", _change(*(f"{one.nash_conv:.3f}" for one in (found[0], found[-1]))), note))
    for (env_id, opponent), matches in matches_of(run.evaluations).items():
        rates = (f"{100 * one.wins / one.games:.1f}" for one in (matches[0], matches[-1]))
        tiles.append((f"Win % against {opponent}" if opponent else "Solved %", _change(*rates), env_id))
    for name, measures in _headline(run, measures_of(run.evaluations)).items():
        values = (value_text(one, is_share=are_shares(measures)) for one in (measures[0], measures[-1]))
        tiles.append((name, _change(*values), counted(measures[-1].count, "item")))
    return tiles_of(tiles)


def _headline(run: WholeRun, measures: dict[str, list[Evaluation]]) -> dict[str, list[Evaluation]]:
    """Return the measures that have tiles: all, but of a fine-tuning run only the most important ones."""
    if run.tuning is None:
        return measures
    prefix = "" if "accuracy" in measures else TRAINING
    names = [f"{prefix}{name}" for name in ("accuracy", "always wrong", "precision", "recall")]
    return {name: measures[name] for name in names if name in measures}


def _change(before: str, after: str) -> str:
    """Return the change of a figure, or one figure if it did not change."""
    return after if before == after else f"{before} → {after}"
