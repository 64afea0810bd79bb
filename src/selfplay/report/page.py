"""build_report: one self-contained HTML page about a run, with curves and readable games or conversations."""

from base64 import b64encode
from hashlib import sha256
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template

from plotly.offline import get_plotlyjs

from selfplay.core import InputError
from selfplay.core.files import write_file
from selfplay.read.whole_run import WholeRun, beside_solo, load_run
from selfplay.report.episodes import evaluation_html, training_html
from selfplay.report.figures import figure_sections
from selfplay.report.head import origin_html, subtitle_html, tiles_html, warnings_html
from selfplay.report.plotly import charts_html
from selfplay.report.policy_table import policy_html
from selfplay.report.tables import before_and_after_html
from selfplay.report.tuning import decisions_html, jobs_html


def build_report(run_dir: Path, solo: Path | None = None) -> Path:
    """Write ``report.html`` into a run directory and return its path.

    The page needs no network. It shows what the directory contains (configuration, metrics, evaluations,
    rollouts) and leaves out the rest, so it can be built while the run is in progress.

    Args:
        run_dir: the run.
        solo: a run of a solo verifier, whose accuracy is shown beside that of a fine-tuning run.

    Raises:
        InputError: ``run_dir`` is not a directory or cannot be read or written, or there is nothing to
            compare.
    """
    run = load_run(run_dir)
    html = report_html(run if solo is None else beside_solo(run, solo))
    path = run_dir / "report.html"
    try:
        write_file(path, html.encode())
    except OSError as error:
        raise InputError(
            str(path), f"cannot be written ({error.strerror})", "Make the run directory writable."
        ) from error
    return path


def report_html(run: WholeRun) -> str:
    """Return the whole page."""
    last = max([run.step, *(evaluation.step for evaluation in run.evaluations)])
    charts, figures = charts_html(figure_sections(run), last)
    return page_html(
        figures,
        title=escape(run.name),
        subtitle=subtitle_html(run),
        origin=origin_html(run),
        warnings=warnings_html(run),
        tiles=tiles_html(run),
        headline=_section("Before and after", before_and_after_html(run))
        + _section("Decisions by truth", decisions_html(run)),
        evaluated=evaluation_html(run),
        charts=charts,
        policy=_section("What it plays", policy_html(run)) + _section("Jobs", jobs_html(run)),
        games=training_html(run),
        config=_config_html(run),
        empty="" if run.lines or run.evaluations or run.episodes else _EMPTY,
    )


def page_html(figures: str, **parts: str) -> str:
    """Return a page with a report's looks and scripts; parts of the template that are not given are empty.

    Args:
        figures: the figures of :func:`charts_html` as JSON.
        parts: HTML by the name of its place in ``report.html``.
    """
    plotly = _one_kind_of_line_end(get_plotlyjs()) if figures != "[]" else ""
    script = _one_kind_of_line_end(_packaged("report.js"))
    template = Template(_packaged("report.html"))
    scripts = {"figures": figures, "plotly": plotly, "script": script}
    policy = {"content_policy": escape(content_policy(plotly, script))}
    return template.substitute(dict.fromkeys(template.get_identifiers(), "") | parts | scripts | policy)


def content_policy(*scripts: str) -> str:
    """Return the page's content security policy: only these scripts run, and nothing is loaded or sent.

    It is a second line of defence behind the escaping: markup that got through would be shown, but could
    do nothing.
    """
    hashes = (b64encode(sha256(script.encode()).digest()).decode() for script in scripts)
    allowed = " ".join(f"'sha256-{one}'" for one in hashes)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _packaged(name: str) -> str:
    return files("selfplay.report").joinpath(name).read_text(encoding="utf-8")


def _one_kind_of_line_end(script: str) -> str:
    """Return the script with ``\\n`` as its only line end, because a browser hashes it in that form."""
    return script.replace("\r\n", "\n").replace("\r", "\n")


_EMPTY = '<p class="card">Nothing has been recorded yet: no metrics, no evaluations and no games.</p>'


def _section(title: str, body: str) -> str:
    """Return a section with its heading; nothing when it would be empty."""
    return f"<section><h2>{escape(title)}</h2>{body}</section>" if body else ""


def _config_html(run: WholeRun) -> str:
    """Return the folded configuration; nothing without one."""
    if not run.config_text:
        return ""
    return (
        '<section><h2>Configuration</h2><details class="fold shared"><summary>config.toml</summary>'
        f"<pre>{escape(run.config_text)}</pre></details></section>"
    )
