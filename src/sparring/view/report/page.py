"""build_report: one self-contained HTML page about a run, with curves and readable games or conversations."""

from collections.abc import Iterable
from html import escape
from pathlib import Path

from sparring.core import InputError
from sparring.core.files import write_file
from sparring.core.text import counted
from sparring.evaluation.figures import ACCURACY, FigureName
from sparring.evaluation.results import NashConvResult
from sparring.view.cards import CLAIM_RIGHT, CLAIM_WRONG, Card, card_of
from sparring.view.episodes import LoggedEpisode
from sparring.view.evaluations import match_title
from sparring.view.findings.diagnosis import findings_of
from sparring.view.report.cards import cards_html, shared_of, with_parts
from sparring.view.report.figures import figure_sections
from sparring.view.report.html import Page
from sparring.view.tables import before_and_after, decisions_table, figure_cell, jobs_table, tiles_of
from sparring.view.whole_run import Transcript, WholeRun, beside_solo, load_run

POLICY_ROWS = 60
"""A game with more information sets than this gets no policy table."""


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
    last = max(run.step, run.last_evaluation)
    page = Page(run.name, _subtitle_html(run), turn=run.turn, last_step=last, model=run.model)
    page.add(f'<p class="muted">{escape(_origin(run))}</p>')
    if not (run.lines or run.figures or run.episodes):
        page.add(
            '<p class="card">Nothing has been recorded yet: no metrics, no evaluations and no games.</p>'
        )
    page.tiles(tiles_of(run))
    page.add(_findings_html(run))
    page.table("Before and after", before_and_after(run))
    page.table("Decisions by truth", decisions_table(run))
    for title, figures in figure_sections(run).items():
        page.charts(title, figures)
    page.section(
        "What it plays", "".join(_policy_html(run.shown(env_id), one) for env_id, one in run.exact.items())
    )
    page.table("Jobs", jobs_table(run.tuning.jobs) if run.tuning is not None else None)
    _add_evaluated(page, run)
    _add_asked(page, run)
    _add_training(page, run)
    if run.config_text:
        page.section(
            "Configuration",
            '<details class="fold shared"><summary>config.toml</summary>'
            f"<pre>{escape(run.config_text)}</pre></details>",
        )
    return page.html()


def _subtitle_html(run: WholeRun) -> str:
    names, roles, policies = ", ".join(run.plays()), run.roles(), run.policies()
    parts = [("Model", [run.model])]
    if run.tuning is not None:
        parts += [("is trained through fine-tuning jobs on", [names]), ("agents", roles)]
    elif run.is_program:
        parts += [("is trained on the program", [names]), ("role" + "s" * (len(roles) > 1), roles)]
        parts.append(("policy" if len(policies) == 1 else "policies", policies))
    else:
        parts += [("plays", run.plays()), ("evaluated in", run.watches())]
    parts.append(("asked", run.asks()))
    shown = [f"{words} <b>{escape(run.shown(', '.join(found)))}</b>" for words, found in parts if found]
    return ", ".join([" ".join(shown[:2]), *shown[2:]])


def _origin(run: WholeRun) -> str:
    parts = []
    if run.sessions:
        last, resumed = run.sessions[-1], len(run.sessions) - 1
        started = f"started {run.sessions[0].started.replace('T', ' ').removesuffix('+00:00')} UTC"
        parts.append(started + (f", resumed {counted(resumed, 'time')}" if resumed else ""))
        versions = (("sparring", last.sparring), ("Python", last.python), ("torch", last.torch))
        parts.append(", ".join(f"{name} {version}" for name, version in versions if version))
        machine = [last.system, counted(last.cpus, "CPU") if last.cpus else "", *last.gpus]
        parts.append(", ".join(filter(None, machine)))
    if isinstance(run.config.get("seed"), int):
        parts.append(f"seed {run.config['seed']}")
    if run.damaged_lines:
        parts.append(f"{counted(run.damaged_lines, 'damaged line')} of metrics skipped")
    if run.damaged_evaluations:
        parts.append(f"damaged and skipped: {', '.join(run.damaged_evaluations)}")
    return " · ".join(filter(None, parts))


def _findings_html(run: WholeRun) -> str:
    found = findings_of(run, run.played)
    if not found:
        return ""
    shown = "".join(
        f'<li><b>{escape(one.text)}</b> <span class="muted">'
        f"{escape('; '.join(filter(None, (one.where(run.turn), one.advice))))}</span></li>"
        for one in found
    )
    return f'<div class="card warning"><h3>Look at this first</h3><ul>{shown}</ul></div>'


def _policy_html(env_id: str, found: dict[int, NashConvResult]) -> str:
    """Return what a policy plays in each information state, first and last; empty if there are too many."""
    steps = sorted({min(found), max(found)})
    last = found[steps[-1]]
    if not 0 < len(last.policy) <= POLICY_ROWS:
        return ""
    heads = "".join(f"<th>Update {step}</th>" for step in steps)
    actions = sorted({action for chances in last.policy.values() for action in chances})
    colours = {action: index % 6 for index, action in enumerate(actions)}
    rows = "".join(
        f'<tr><td title="{escape(state)}">{escape(last.observations.get(state, state))}</td>'
        + "".join(f"<td>{_policy_bar(found[step].policy.get(state, {}), colours)}</td>" for step in steps)
        + "</tr>"
        for state in sorted(last.policy)
    )
    legend = "".join(
        f'<span class="legend"><i class="fill-{colour}"></i>{escape(action)}</span>'
        for action, colour in colours.items()
    )
    return (
        f'<div class="card scroll"><h3>{escape(env_id)}</h3><p class="muted">{legend}</p>'
        f'<table class="policy"><thead><tr><th>Information state</th>{heads}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )


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


def _add_evaluated(page: Page, run: WholeRun) -> None:
    groups = {_transcript_title(run, one): _cards_of(run, one.episodes) for one in run.transcripts}
    cards = [card for group in groups.values() for card in group]
    shared = shared_of(cards, run.roles(), page.by_token, of_evaluation=True)
    title = _title_of(run, cards)
    note = f"The first {title.lower()} of each. The figures beside them count all."
    page.section(f"{title} of the first and the last evaluation", cards_html(groups, shared), note)


def _add_asked(page: Page, run: WholeRun) -> None:
    groups = {_asked_title(run, one): _cards_of(run, one.episodes) for one in run.asked}
    cards = [card for group in groups.values() for card in group]
    shared = shared_of(cards, (), page.by_token, of_evaluation=True)
    note = "The first questions of each. The figures beside them count all. Nothing is trained on these."
    page.section("Questions of tasks, first and last", cards_html(groups, shared), note)


def _asked_title(run: WholeRun, one: Transcript) -> str:
    series = run.figures.get(FigureName(ACCURACY, one.env_id), {})
    found = f"{ACCURACY} {figure_cell(series[one.step].interval, 'share').text}" if one.step in series else ""
    title = escape(f"After {run.turn} {one.step}: {one.env_id}")
    return f'{title} <span class="muted">{escape(found)}</span>'


def _transcript_title(run: WholeRun, one: Transcript) -> str:
    played = f": {run.shown(match_title(one.env_id, one.opponent))}" if one.env_id else ""
    found = [
        f"{name.measure} {figure_cell(series[one.step].interval, series[one.step].kind).text}"
        for name, series in run.figures.items()
        if one.step in series
        and (not name.env_id or (name.env_id, name.opponent) == (one.env_id, one.opponent))
    ]
    shown = f'<span class="muted">{escape(", ".join(found))}</span>'
    return f"After {run.turn} {one.step}{escape(played)} {shown}"


def _add_training(page: Page, run: WholeRun) -> None:
    groups: dict[str, list[Card]] = {}
    for step in dict.fromkeys(episode.step for episode in run.episodes):
        of_step = [episode for episode in run.episodes if episode.step == step]
        title = f"Iteration {step}" if run.tuning is not None else f"Update {step}{_versions_html(of_step)}"
        groups[title] = _cards_of(run, of_step)
    cards = [card for group in groups.values() for card in group]
    shared = shared_of(cards, run.roles(), page.by_token, of_evaluation=False)
    page.section(_title_of(run, cards), cards_html(groups, shared, unfolded=True), _choice_text(run))


def _cards_of(run: WholeRun, episodes: Iterable[LoggedEpisode]) -> list[Card]:
    cards = list(map(card_of, episodes))
    for card in cards:
        for one in with_parts(card):
            one.where = run.shown(one.where)
    return cards


def _title_of(run: WholeRun, cards: Iterable[Card]) -> str:
    if not run.is_program:
        return "Games"
    return "Proofs" if any({CLAIM_RIGHT, CLAIM_WRONG} & {*card.kinds} for card in cards) else "Conversations"


def _versions_html(episodes: Iterable[LoggedEpisode]) -> str:
    found = {
        step.policy_version for one in episodes for rollout in one.all_rollouts() for step in rollout.steps
    }
    if not found:
        return ""
    low, high = min(found), max(found)
    text = f"version {low}" if low == high else f"versions {low} to {high}"
    return f' <span class="muted">played by policy {text}</span>'


def _choice_text(run: WholeRun) -> str:
    shown, logged = len(run.episodes), counted(run.episodes_in_log, "episode" if run.is_program else "game")
    if shown == run.episodes_in_log:
        return f"All of {logged} in the log."
    return f"{shown} of {logged} in the log, from the first, the middle and the last {run.turn}."
