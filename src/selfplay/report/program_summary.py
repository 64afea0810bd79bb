"""The head of a program's report: tiles, and the table of measures before and after."""

from html import escape

from selfplay.read.run_data import Evaluation, RunData
from selfplay.report.pieces import counted
from selfplay.report.summary import (
    Rate,
    change_tile,
    group_row,
    range_bar,
    rate_row,
    steps_text,
    tile_html,
)


def measures_by_name(run: RunData) -> dict[str, list[Evaluation]]:
    """Group the complete measures by name, each group in order of steps."""
    series: dict[str, list[Evaluation]] = {}
    for evaluation in run.evaluations:
        complete = None not in (evaluation.low, evaluation.mean, evaluation.high)
        if evaluation.kind == "measure" and evaluation.count > 0 and complete:
            series.setdefault(evaluation.name, []).append(evaluation)
    return series


def measure_rate(measure: Evaluation) -> Rate:
    """Return a measure's mean with its interval, which lies between 0 and 1 only if it is a share."""
    return Rate(measure.low or 0.0, measure.mean or 0.0, measure.high or 0.0)


def are_shares(measures: list[Evaluation]) -> bool:
    """Return whether all measures of a series are shares: a mean's values may be 0 and 1 by chance."""
    return all(measure.is_share for measure in measures)


def program_text_html(run: RunData) -> str:
    """Return the name of the program, and the roles and policies where they are known."""
    program = run.config.get("program")
    settings = program if isinstance(program, dict) else {}
    name = settings.get("path") or settings.get("type") or "unknown"
    parts = [f"is trained on the program <b>{escape(str(name))}</b>"]
    for noun, plural, names in (("role", "roles", run.roles()), ("policy", "policies", run.policies())):
        if names:
            parts.append(f"{noun if len(names) == 1 else plural} <b>{escape(', '.join(names))}</b>")
    return ", ".join(parts)


def program_tiles_html(run: RunData) -> str:
    """Return a program's headline figures: the change of every measure."""
    tiles = []
    for name, measures in measures_by_name(run).items():
        first, last = (_value_text(one, are_shares(measures)) for one in (measures[0], measures[-1]))
        tiles.append(change_tile(name, first, last, counted(measures[-1].count, "item")))
    return "".join(tile_html(*tile) for tile in tiles)


def measured_texts(run: RunData, step: int) -> list[str]:
    """Return the values measured after a step, each with its name."""
    return [
        f"{name} {_value_text(measure, are_shares(measures))}"
        for name, measures in measures_by_name(run).items()
        for measure in measures
        if measure.step == step
    ]


def measures_html(run: RunData) -> str:
    """Return the table of the first and the last value of every measure; empty without any."""
    groups: dict[str, list[str]] = {}
    series = measures_by_name(run)
    for name, measures in series.items():
        steps = steps_text(measures[0], measures[-1])
        groups.setdefault(steps, []).append(_measure_row(name, measures))
    if not groups:
        return ""
    rows = [group_row("The program's measures", steps) + "".join(found) for steps, found in groups.items()]
    shares = any(map(are_shares, series.values()))
    means = not all(map(are_shares, series.values()))
    scale = '<th class="range-head"><span>0%</span><span>50%</span><span>100%</span></th>'
    kinds = ["Wilson intervals of shares"] * shares + ["normal intervals of means"] * means
    return (
        '<div class="card scroll"><table class="headline"><thead><tr><th></th><th>Before</th><th>After</th>'
        f"{scale if shares else '<th></th>'}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
        f'<p class="muted">Small figures and bands are 95% {" and ".join(kinds)}; '
        '<span class="key before"></span> before, <span class="key after"></span> after.</p></div>'
    )


def _measure_row(name: str, measures: list[Evaluation]) -> str:
    """Return a measure's first and last value with a bar for each; a single one has no value before."""
    first, last = measures[0], measures[-1]
    title = f'{escape(name)} <span class="muted">{counted(last.count, "item")}</span>'
    before = None if first is last else measure_rate(first)
    after = measure_rate(last)
    if are_shares(measures):
        return rate_row(title, before, after)
    low, high = _ends([first, last])
    text, bar = ("", "") if before is None else (_mean_text(before), _scaled_bar(before, low, high, "before"))
    ends = f'<div class="range-ends"><span>{number_text(low)}</span><span>{number_text(high)}</span></div>'
    return (
        f"<tr><td>{title}</td><td>{text}</td><td>{_mean_text(after)}</td>"
        f'<td class="range">{bar}{_scaled_bar(after, low, high, "after")}{ends}</td></tr>'
    )


def _ends(measures: list[Evaluation]) -> tuple[float, float]:
    """Return the range of a bar, which covers all values and intervals."""
    found = [value for one in measures for value in one.values]
    for rate in map(measure_rate, measures):
        found += [rate.low, rate.high]
    low, high = min(found), max(found)
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def _scaled_bar(rate: Rate, low: float, high: float, when: str) -> str:
    """Return an interval on a track from ``low`` to ``high``."""
    places = [(value - low) / (high - low) for value in (rate.low, rate.mid, rate.high)]
    return range_bar(Rate(*places), when)


def _mean_text(rate: Rate) -> str:
    return (
        f"<b>{number_text(rate.mid)}</b> "
        f'<span class="interval">{number_text(rate.low)} to {number_text(rate.high)}</span>'
    )


def _value_text(measure: Evaluation, is_share: bool) -> str:
    """Return the bare value of a measure."""
    mean = measure_rate(measure).mid
    return f"{100 * mean:.1f}%" if is_share else number_text(mean)


def number_text(value: float) -> str:
    """Return a number with three decimals; a large number has fewer and a tiny one more."""
    size = abs(value)
    if size >= 1000:
        return f"{value:,.0f}"
    if size >= 10:
        return f"{value:.1f}"
    return f"{value:.3f}" if size >= 0.01 or size == 0 else f"{value:.2g}"
