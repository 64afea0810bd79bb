"""build_report: one self-contained HTML page about a run, with curves, and games or conversations to read."""

import os
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template

from plotly.offline import get_plotlyjs

from selfplay.core import InputError
from selfplay.tracking.report_data import RunData, load_run
from selfplay.tracking.report_games import games_html
from selfplay.tracking.report_plots import charts_html
from selfplay.tracking.report_program_summary import measures_html, program_text_html, program_tiles_html
from selfplay.tracking.report_programs import conversations_html
from selfplay.tracking.report_summary import headline_html, model_name, policy_html, tiles_html


def build_report(run_dir: Path) -> Path:
    """Write ``report.html`` into a run directory and return its path.

    The page needs no network. It shows what the directory has (configuration, metrics, evaluations, rollouts)
    and leaves out what it has not, so it can be built while the run is going on.

    Raises:
        InputError: ``run_dir`` is not a directory or cannot be written, or its metrics are damaged.
    """
    html = report_html(load_run(run_dir))
    path = run_dir / "report.html"
    temporary = path.with_suffix(".html.tmp")
    try:
        temporary.write_text(html, encoding="utf-8")
        os.replace(temporary, path)
    except OSError as error:
        raise InputError(
            str(path), f"cannot be written ({error.strerror})", "Make the run directory writable."
        ) from error
    return path


def report_html(run: RunData) -> str:
    """Return the whole page."""
    charts, figures = charts_html(run)
    template = Template(files("selfplay.tracking").joinpath("report.html").read_text(encoding="utf-8"))
    return template.substitute(
        title=escape(run.name),
        subtitle=_subtitle_html(run),
        tiles=tiles_html(run) + program_tiles_html(run),
        headline=_section("Before and after", headline_html(run) + measures_html(run)),
        charts=charts,
        policy=_section("What it plays", policy_html(run)),
        games=conversations_html(run) if run.is_program else games_html(run.games, run.games_in_log),
        config=_config_html(run),
        empty="" if run.metrics or run.evaluations or run.games or run.conversations else _EMPTY,
        figures=figures,
        plotly=get_plotlyjs() if figures != "[]" else "",
    )


_EMPTY = '<p class="card">Nothing is recorded yet: no metrics, no evaluation and no game.</p>'


def _subtitle_html(run: RunData) -> str:
    """Return the model and the program or the environments, where known."""
    parts = [f"Model <b>{escape(model_name(run.config))}</b>"]
    if run.is_program:
        parts.append(program_text_html(run))
    elif run.env_ids():
        parts.append(f"plays <b>{escape(', '.join(run.env_ids()))}</b>")
    return " ".join(parts)


def _section(title: str, body: str) -> str:
    """Return a section with its heading; nothing when it would be empty."""
    return f"<section><h2>{escape(title)}</h2>{body}</section>" if body else ""


def _config_html(run: RunData) -> str:
    """Return the folded configuration; nothing without one."""
    if not run.config_text:
        return ""
    return (
        '<section><h2>Configuration</h2><details class="fold shared"><summary>config.toml</summary>'
        f"<pre>{escape(run.config_text)}</pre></details></section>"
    )
