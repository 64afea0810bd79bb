"""The head of the report: tiles, the before-and-after table with intervals, and the policy table."""

import math
from dataclasses import dataclass
from html import escape
from typing import Any

from selfplay.read.run_data import Evaluation, RunData
from selfplay.report.pieces import step_text

POLICY_ROWS = 60
"""A game with more information sets than this gets no policy table."""


@dataclass(frozen=True)
class Rate:
    """A share with its 95% interval, each between 0 and 1."""

    low: float
    mid: float
    high: float


def wilson(successes: int, trials: int) -> Rate:
    """Return the 95% Wilson score interval (Wilson 1927), which is 0 to 1 without trials.

    With p = successes / trials and z = 1.96:
    (p + z^2/2n +- z sqrt(p(1-p)/n + z^2/4n^2)) / (1 + z^2/n).
    """
    if trials <= 0:
        return Rate(0.0, 0.0, 1.0)
    z = 1.959964
    share = successes / trials
    centre = share + z * z / (2 * trials)
    spread = z * math.sqrt(share * (1 - share) / trials + z * z / (4 * trials * trials))
    scale = 1 + z * z / trials
    return Rate(max(0.0, (centre - spread) / scale), share, min(1.0, (centre + spread) / scale))


def match_rates(match: Evaluation) -> dict[str, Rate]:
    """Return the shares of a match's wins, draws, losses, and games ended by the model's invalid move.

    The last are counted among the losses, and games ended by the opponent's invalid move among the wins.
    """
    return {
        "Wins": wilson(match.wins, match.games),
        "Draws": wilson(match.draws, match.games),
        "Losses": wilson(match.losses, match.games),
        "Lost by an invalid move": wilson(match.invalid.get("model", 0), match.games),
    }


def match_headlines(run: RunData) -> dict[tuple[int, str, str], str]:
    """Return the win rate of every match in words, by step, environment and opponent."""
    return {
        (
            match.step,
            match.env_id,
            match.opponent,
        ): f"won {match.wins / match.games:.1%} of {match.games:,} games"
        for matches in matches_by_series(run).values()
        for match in matches
    }


def matches_by_series(run: RunData) -> dict[tuple[str, str], list[Evaluation]]:
    """Group the matches that have games by environment and opponent, each group in order of steps."""
    series: dict[tuple[str, str], list[Evaluation]] = {}
    for evaluation in run.evaluations:
        if evaluation.kind == "match" and evaluation.games > 0:
            series.setdefault((evaluation.env_id, evaluation.opponent), []).append(evaluation)
    return series


def nash_by_env(run: RunData) -> dict[str, list[Evaluation]]:
    """Group the exact evaluations by environment, each group in order of steps."""
    series: dict[str, list[Evaluation]] = {}
    for evaluation in run.evaluations:
        if evaluation.nash_conv is not None:
            series.setdefault(evaluation.env_id, []).append(evaluation)
    return series


def model_name(config: dict[str, Any]) -> str:
    """Return the model's name from a configuration, which may be a string or a table."""
    model = config.get("model", config.get("model_name"))
    if isinstance(model, dict):
        model = next((model[key] for key in ("name", "id", "path", "base") if key in model), None)
    return str(model) if model is not None else "unknown"


def duration_text(seconds: float) -> str:
    """Return a time span in its two largest units."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def tiles_html(run: RunData) -> str:
    """Return the row of headline figures."""
    tiles = []
    if run.metrics:
        tiles.append(("Steps", step_text(run.metrics[-1].get("step")) or str(len(run.metrics)), ""))
        if seconds := run.seconds():
            evaluating = sum(run.series("time/evaluation_seconds")[1])
            note = f"including {duration_text(evaluating)} of evaluation" if evaluating else ""
            tiles.append(("Time", duration_text(seconds), note))
    finished = run.series("accounts/finished")[1]
    if finished:
        wrong = [(name, run.series(f"accounts/{name}")[1]) for name in ("failed", "retried")]
        note = ", ".join(f"{values[-1]:,.0f} {name}" for name, values in wrong if values)
        tiles.append(("Episodes" if run.is_program else "Games", f"{finished[-1]:,.0f}", note))
    for env_id, found in nash_by_env(run).items():
        note = env_id if found[-1].is_playable else f"{env_id}; cannot be played, see below"
        tiles.append(change_tile("NashConv", f"{found[0].nash_conv:.3f}", f"{found[-1].nash_conv:.3f}", note))
    for (env_id, opponent), matches in matches_by_series(run).items():
        before, after = (f"{100 * match.wins / match.games:.1f}" for match in (matches[0], matches[-1]))
        tiles.append(change_tile(f"Win % against {opponent}", before, after, env_id))
    return "".join(tile_html(*tile) for tile in tiles)


def tile_html(name: str, value: str, note: str) -> str:
    """Return one headline figure."""
    return (
        f'<div class="tile"><div class="tile-name">{escape(name)}</div>'
        f'<div class="tile-value">{escape(value)}</div><div class="tile-note">{escape(note)}</div></div>'
    )


def change_tile(name: str, before: str, after: str, note: str) -> tuple[str, str, str]:
    """Return a tile with the change of a figure, or with one figure if it did not change."""
    return name, after if before == after else f"{before} → {after}", note


def headline_html(run: RunData) -> str:
    """Return the table that compares the first and the last evaluation; empty without evaluations."""
    rows = []
    for (env_id, opponent), matches in matches_by_series(run).items():
        first, last = matches[0], matches[-1]
        games = f"{first.games:,}" if first.games == last.games else f"{first.games:,} / {last.games:,}"
        rows.append(group_row(f"{env_id} against {opponent}", f"{games} games, {steps_text(first, last)}"))
        before = {} if first is last else match_rates(first)
        rows += [rate_row(name, before.get(name), rate) for name, rate in match_rates(last).items()]
    for env_id, found in nash_by_env(run).items():
        last = found[-1]
        rows.append(group_row(f"{env_id}, exact", steps_text(found[0], last)))
        before_last = found[0] if len(found) > 1 else Evaluation()
        marks = [_UNPLAYABLE_HTML * (not one.is_playable) for one in (before_last, last)]
        rows.append(_exact_row("NashConv (0 is unbeatable)", before_last.nash_conv, last.nash_conv, marks))
        if last.legal_mass is not None:
            masses = before_last.legal_mass, last.legal_mass
            rows.append(_exact_row("Probability on legal answers", *masses, marks=["", ""]))
    unplayable = any(
        not one.is_playable for found in nash_by_env(run).values() for one in (found[0], found[-1])
    )
    if not rows:
        return ""
    return (
        '<div class="card scroll"><table class="headline"><thead><tr><th></th><th>Before</th><th>After</th>'
        '<th class="range-head"><span>0%</span><span>50%</span><span>100%</span></th></tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table>"
        '<p class="muted">Small figures and bands are 95% Wilson intervals; '
        '<span class="key before"></span> before, <span class="key after"></span> after.</p>'
        f"{_UNPLAYABLE_NOTE_HTML * unplayable}</div>"
    )


_UNPLAYABLE_HTML = ' <span class="badge warn">cannot be played</span>'
_UNPLAYABLE_NOTE_HTML = (
    '<p class="muted">NashConv treats the policy as if it gave only legal answers. With so little '
    "probability on legal answers the policy cannot be played: it loses by invalid moves.</p>"
)


def steps_text(first: Evaluation, last: Evaluation) -> str:
    """Return the steps of the first and the last evaluation, which may be the same one."""
    return f"step {last.step}" if first is last else f"steps {first.step} → {last.step}"


def group_row(title: str, note: str) -> str:
    """Return the heading row of a group."""
    return (
        f'<tr class="group"><th colspan="4">{escape(title)} '
        f'<span class="muted">{escape(note)}</span></th></tr>'
    )


def rate_row(title_html: str, before: Rate | None, after: Rate) -> str:
    """Return a row of shares; if there is no rate before, that cell stays empty."""
    text, bar = ("", "") if before is None else (_rate_text(before), range_bar(before, "before"))
    return (
        f"<tr><td>{title_html}</td><td>{text}</td><td>{_rate_text(after)}</td>"
        f'<td class="range">{bar}{range_bar(after, "after")}</td></tr>'
    )


def _rate_text(rate: Rate) -> str:
    return (
        f"<b>{100 * rate.mid:.1f}%</b> "
        f'<span class="interval">{100 * rate.low:.1f} to {100 * rate.high:.1f}</span>'
    )


def range_bar(rate: Rate, when: str) -> str:
    """Return an interval on a track from 0 to 1; ``when`` is "before" or "after"."""
    return (
        f'<div class="track"><i class="band {when}" style="left:{100 * rate.low:.2f}%;'
        f'width:{100 * (rate.high - rate.low):.2f}%"></i>'
        f'<i class="dot {when}" style="left:{100 * rate.mid:.2f}%"></i></div>'
    )


def _exact_row(name: str, before: float | None, after: float | None, marks: list[str]) -> str:
    values = zip((before, after), marks, strict=True)
    texts = ["" if value is None else f"<b>{value:.4f}</b>{mark}" for value, mark in values]
    return f"<tr><td>{escape(name)}</td><td>{texts[0]}</td><td>{texts[1]}</td><td></td></tr>"


def policy_html(run: RunData) -> str:
    """Return the first and the last policy of each exactly evaluated game; empty without any."""
    sections = []
    for env_id, found in nash_by_env(run).items():
        last = found[-1]
        if not last.policy or len(last.policy) > POLICY_ROWS:
            continue
        shown = [last] if len(found) == 1 else [found[0], last]
        heads = "".join(f"<th>Step {evaluation.step}</th>" for evaluation in shown)
        actions = sorted({action for chances in last.policy.values() for action in chances})
        colours = {action: index % 6 for index, action in enumerate(actions)}
        rows = "".join(
            f'<tr><td title="{escape(state)}">{escape(last.observations.get(state, state))}</td>'
            + "".join(f"<td>{_policy_bar(each.policy.get(state, {}), colours)}</td>" for each in shown)
            + "</tr>"
            for state in sorted(last.policy)
        )
        legend = "".join(
            f'<span class="legend"><i class="fill-{colour}"></i>{escape(action)}</span>'
            for action, colour in colours.items()
        )
        sections.append(
            f'<div class="card scroll"><h3>{escape(env_id)}</h3><p class="muted">{legend}</p>'
            f'<table class="policy"><thead><tr><th>Information state</th>{heads}</tr></thead>'
            f"<tbody>{rows}</tbody></table></div>"
        )
    return "".join(sections)


def _policy_bar(chances: dict[str, float], colours: dict[str, int]) -> str:
    """Return a stacked bar of action probabilities; those of at least 15% are labelled."""
    segments = []
    for action, chance in sorted(chances.items()):
        label = f"{100 * chance:.0f}%" if chance >= 0.15 else ""
        segments.append(
            f'<i class="fill-{colours.get(action, 0)}" style="width:{100 * chance:.2f}%" '
            f'title="{escape(action)}: {chance:.4f}">{label}</i>'
        )
    return f'<div class="stack">{"".join(segments)}</div>'
