"""The top of the report: the run's start, versions and machine, and its warnings."""

from dataclasses import dataclass
from html import escape

from selfplay.read.run_data import RunData
from selfplay.read.warnings import RunWarning, warnings_of
from selfplay.report.pieces import counted, step_text


@dataclass
class _Found:
    """The latest warning with one cause, its step as text, and the number of steps with that cause."""

    warning: RunWarning
    last: str
    steps: int = 1


def origin_html(run: RunData) -> str:
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
    text = " · ".join(filter(None, parts))
    return f'<p class="muted">{escape(text)}</p>' if text else ""


def warnings_html(run: RunData) -> str:
    """Return a card with the run's warnings, each cause once; empty without any."""
    found: dict[str, _Found] = {}
    for line in run.metrics:
        for warning in warnings_of(line):
            before = found.get(warning.cause)
            steps = before.steps + 1 if before else 1
            found[warning.cause] = _Found(warning, step_text(line.get("step")), steps)
    if not found:
        return ""
    total = len(run.metrics)
    rows = "".join(
        f"<li><b>{escape(one.warning.text)}</b> "
        f'<span class="muted">in {one.steps} of {counted(total, "step")}{escape(_latest_text(one))}'
        f"{escape(_parts_text(one, found))}; {escape(one.warning.advice)}</span></li>"
        for one in found.values()
        if one.warning.whole not in found
    )
    return f'<div class="card warning"><h3>Look at this first</h3><ul>{rows}</ul></div>'


def _latest_text(found: _Found) -> str:
    return f", most recently in step {found.last}" if found.last else ""


def _parts_text(whole: _Found, found: dict[str, _Found]) -> str:
    """Return in how many other steps only a part of the problem was there, for example only for one role."""
    cause = whole.warning.cause
    return "".join(
        f", and for {one.warning.cause.removeprefix(f'{cause}/')} alone in {one.steps} more"
        for one in found.values()
        if one.warning.whole == cause
    )
