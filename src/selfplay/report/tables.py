"""The table of the first and the last evaluation, with intervals."""

from collections.abc import Iterator
from html import escape

from selfplay.core.confidence_intervals import Interval
from selfplay.read.evaluations import Evaluation, are_shares, exact_of, match_title, matches_of, measures_of
from selfplay.read.numbers import counted, number_text
from selfplay.read.whole_run import WholeRun


def before_and_after_html(run: WholeRun) -> str:
    """Return the table that compares the first and the last evaluation; empty without evaluations."""
    measures = measures_of(run.evaluations)
    shares = bool(matches_of(run.evaluations)) or any(map(are_shares, measures.values()))
    means = bool(matches_of(run.evaluations)) or not all(map(are_shares, measures.values()))
    rows = [*_match_rows(run), *_exact_rows(run), *_measure_rows(measures)]
    if not rows:
        return ""
    scale = '<th class="range-head"><span>0%</span><span>50%</span><span>100%</span></th>'
    kinds = ["Wilson intervals of shares"] * shares + ["normal intervals of means"] * means
    legend = (
        f'<p class="muted">Small figures and bands are 95% {" and ".join(kinds)}; '
        '<span class="key before"></span> before, <span class="key after"></span> after.</p>'
    )
    return (
        '<div class="card scroll"><table class="headline change">'
        "<thead><tr><th></th><th>Before</th><th>After</th>"
        f"{scale if shares else '<th></th>'}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
        f"{legend if kinds else ''}{_unplayable_note(run)}</div>"
    )


def value_text(measure: Evaluation, *, is_share: bool) -> str:
    """Return the bare value of a measure."""
    mean = measure.interval().mid
    return f"{100 * mean:.1f}%" if is_share else number_text(mean)


def _match_rows(run: WholeRun) -> Iterator[str]:
    for (env_id, opponent), matches in matches_of(run.evaluations).items():
        first, last = matches[0], matches[-1]
        games = f"{first.games:,}" if first.games == last.games else f"{first.games:,} / {last.games:,}"
        yield _group_row(match_title(env_id, opponent), f"{games} games, {_steps_text(first, last)}")
        before = {} if first is last else first.rates()
        for name, rate in last.rates().items():
            yield _row(name, before.get(name), rate)
        rewards = [one.reward() for one in matches]
        if rewards[-1] is not None:
            earlier = None if first is last else rewards[0]
            yield _row("Mean reward", earlier, rewards[-1], _ends([*(earlier or ()), *rewards[-1]]))


def _exact_rows(run: WholeRun) -> Iterator[str]:
    for env_id, found in exact_of(run.evaluations).items():
        first, last = found[0], found[-1]
        yield _group_row(f"{env_id}, exact", _steps_text(first, last))
        before = Evaluation() if first is last else first
        marks = [_UNPLAYABLE_HTML * (not one.is_playable) for one in (before, last)]
        yield _exact_row("NashConv (0 is unbeatable)", (before.nash_conv, last.nash_conv), marks)
        if last.legal_mass is not None:
            yield _exact_row("Probability on legal answers", (before.legal_mass, last.legal_mass), ["", ""])


def _measure_rows(series: dict[str, list[Evaluation]]) -> Iterator[str]:
    """Yield the measures, together those of the same steps."""
    groups: dict[str, list[str]] = {}
    for name, measures in series.items():
        steps = _steps_text(measures[0], measures[-1])
        groups.setdefault(steps, []).append(_measure_row(name, measures))
    for steps, rows in groups.items():
        yield _group_row("The program's measures", steps) + "".join(rows)


def _measure_row(name: str, measures: list[Evaluation]) -> str:
    """Return a measure's first and last value with a bar for each; a single one has no value before."""
    first, last = measures[0], measures[-1]
    title = f'{escape(name)} <span class="muted">{counted(last.count, "item")}</span>'
    before = None if first is last else first.interval()
    values = [value for one in (first, last) for value in (*one.values, *one.interval())]
    return _row(title, before, last.interval(), None if are_shares(measures) else _ends(values))


def _ends(values: list[float]) -> tuple[float, float]:
    """Return the range of a bar, which covers all values and intervals."""
    low, high = min(values), max(values)
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def _row(
    title_html: str, before: Interval | None, after: Interval, ends: tuple[float, float] | None = None
) -> str:
    """Return a row of shares or, with the ``ends`` of its bars, of means; without a value before, a cell is
    empty.
    """
    low, high = ends or (0.0, 1.0)
    texts, bars = ["", ""], ["", ""]
    for place, (rate, when) in enumerate(((before, "before"), (after, "after"))):
        if rate is not None:
            texts[place] = _interval_html(rate, is_share=ends is None)
            bars[place] = _bar_html(Interval(*((value - low) / (high - low) for value in rate)), when)
    scale = (
        f'<div class="range-ends"><span>{number_text(low)}</span><span>{number_text(high)}</span></div>'
        if ends
        else ""
    )
    return (
        f"<tr><td>{title_html}</td><td>{texts[0]}</td><td>{texts[1]}</td>"
        f'<td class="range">{"".join(bars)}{scale}</td></tr>'
    )


def _interval_html(rate: Interval, *, is_share: bool) -> str:
    low, mid, high = (f"{100 * value:.1f}" if is_share else number_text(value) for value in rate)
    return f'<b>{mid}{"%" * is_share}</b> <span class="interval">{low} to {high}</span>'


def _bar_html(rate: Interval, when: str) -> str:
    """Return an interval on a track from 0 to 1; ``when`` is "before" or "after"."""
    return (
        f'<div class="track"><i class="band {when}" style="left:{100 * rate.low:.2f}%;'
        f'width:{100 * (rate.high - rate.low):.2f}%"></i>'
        f'<i class="dot {when}" style="left:{100 * rate.mid:.2f}%"></i></div>'
    )


def _exact_row(name: str, values: tuple[float | None, float | None], marks: list[str]) -> str:
    texts = [
        "" if value is None else f"<b>{value:.4f}</b>{mark}"
        for value, mark in zip(values, marks, strict=True)
    ]
    return f"<tr><td>{escape(name)}</td><td>{texts[0]}</td><td>{texts[1]}</td><td></td></tr>"


def _group_row(title: str, note: str) -> str:
    """Return the heading row of a group."""
    return (
        f'<tr class="group"><th colspan="4">{escape(title)} '
        f'<span class="muted">{escape(note)}</span></th></tr>'
    )


def _steps_text(first: Evaluation, last: Evaluation) -> str:
    """Return the steps of the first and the last evaluation, which may be the same one."""
    return f"update {last.step}" if first is last else f"updates {first.step} → {last.step}"


_UNPLAYABLE_HTML = ' <span class="badge warn">cannot be played</span>'


def _unplayable_note(run: WholeRun) -> str:
    ends = [one for found in exact_of(run.evaluations).values() for one in (found[0], found[-1])]
    if all(one.is_playable for one in ends):
        return ""
    return (
        '<p class="muted">NashConv treats the policy as if it gave only legal answers. With so little '
        "probability on legal answers the policy cannot be played: it loses by invalid moves.</p>"
    )
