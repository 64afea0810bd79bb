"""The table of who beats whom in a league."""

from html import escape

from selfplay.core.confidence_intervals import wilson_interval
from selfplay.read.run_view import Meeting
from selfplay.read.whole_run import WholeRun

MAX_COLUMNS = 24
"""The number of members in the table: those that the players met most."""


def meetings_html(run: WholeRun) -> str:
    """Return the score of each player of a league against the members that it met; empty without a league."""
    league = run.config.get("league")
    settings = league.get("players") if isinstance(league, dict) else None
    players = [uid for uid in run.meetings if isinstance(settings, dict) and uid in settings]
    games = {
        other: sum(run.meetings[player].get(other, Meeting()).games for player in players if player != other)
        for other in run.meetings
    }
    columns = sorted((uid for uid in games if games[uid]), key=lambda uid: (-games[uid], uid))[:MAX_COLUMNS]
    if not columns:
        return ""
    heads = "".join(f"<th>{escape(uid)}</th>" for uid in columns)
    rows = "".join(
        f"<tr><td>{escape(player)}</td>"
        + "".join(_cell_html(run.meetings[player].get(uid, Meeting()), own=uid == player) for uid in columns)
        + "</tr>"
        for player in players
    )
    return (
        f'<div class="card scroll"><table class="headline"><thead><tr><th></th>{heads}</tr></thead>'
        f"<tbody>{rows}</tbody></table>"
        '<p class="muted">Wins and half of the draws of the row\'s player, as a share of its games against '
        "the column's member in all games of the run, with its 95% Wilson interval and the number of games. "
        "Players learn meanwhile, and copies do not.</p></div>"
    )


def _cell_html(met: Meeting, *, own: bool) -> str:
    if own or not met.games:
        return "<td></td>"
    low, _, high = wilson_interval(met.score * met.games, met.games)
    interval = f"{100 * low:.0f} to {100 * high:.0f}, {met.games:,}"
    return f'<td><b>{met.score:.0%}</b> <span class="interval">({interval})</span></td>'
