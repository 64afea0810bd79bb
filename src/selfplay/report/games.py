"""Renders whole games turn by turn. All text written by a model is escaped."""

from collections import defaultdict
from collections.abc import Mapping
from html import escape
from typing import Any

from selfplay.read.rollouts import Game, LoggedRollout, LoggedStep, Prompt, Turn
from selfplay.read.run_data import Transcript
from selfplay.report.filter import CUT, FAILED, INVALID, TURN_LIMIT, filter_html, reward_tags
from selfplay.report.pieces import (
    MAX_TURNS,
    clip,
    counted,
    logprob_html,
    messages_html,
    shared_beginnings,
    signed,
    versions_html,
)

GLANCE_LINES = 8
"""The number of lines of an observation that are shown unfolded: the last ones, which hold the position."""
GLANCE_CHARS = 600
"""The largest number of characters in these lines."""

TRAINED_MODELS = ("default", "average")
"""The names of the trained policy and of its average in evaluations."""
MAX_SEATS = 64
"""Games can be filtered by the reward of at most this many seats."""

SeatKey = tuple[str, int]
MatchKey = tuple[int, str, str]
"""Step, environment and opponent of a match."""


def games_html(games: list[Game], games_in_log: int) -> str:
    """Return the section of readable games; empty without games."""
    if not games:
        return ""
    prefixes = shared_prefixes(games)
    parts = [
        "<section><h2>Games</h2>",
        f'<p class="muted">{len(games)} of {games_in_log:,} games in the log, from the first, '
        "the middle and the last step.</p>",
        _prefixes_html(prefixes),
        games_filter_html(games),
    ]
    for step in dict.fromkeys(game.step for game in games):
        of_step = [game for game in games if game.step == step]
        versions = [one.policy_version for game in of_step for one in game.rollout.steps]
        shown = "".join(game_html(game, prefixes, unfolded=game is games[0]) for game in of_step)
        parts.append(f'<div class="group"><h3>Step {step}{versions_html(versions)}</h3>{shown}</div>')
    parts.append("</section>")
    return "".join(parts)


def evaluated_games_html(transcripts: list[Transcript], headlines: Mapping[MatchKey, str]) -> str:
    """Return the section of the games logged in evaluations; empty without any.

    Args:
        transcripts: the logged games, by step.
        headlines: the result of each match in words, by step, environment and opponent.
    """
    games = [game for transcript in transcripts for game in transcript.games]
    if not games:
        return ""
    groups = []
    for one in transcripts:
        against = f"against {one.opponent}" if one.opponent else "alone"
        headline = headlines.get((one.step, one.env_id, one.opponent), "")
        shown = "".join(game_html(game, {}, unfolded=False) for game in one.games)
        groups.append(
            f'<div class="group"><h3>After step {one.step}: {escape(f"{one.env_id} {against}")} '
            f'<span class="muted">{escape(headline)}</span></h3>{shown}</div>'
        )
    return (
        "<section><h2>Games of the first and the last evaluation</h2>"
        '<p class="muted">The first games of each match. Its figures count all games.</p>'
        f"{games_filter_html(games)}{''.join(groups)}</section>"
    )


def games_filter_html(games: list[Game]) -> str:
    """Return the controls that filter games."""
    return filter_html((INVALID, CUT, TURN_LIMIT, FAILED), _seats(games))


def _seats(games: list[Game]) -> list[str]:
    """Return the names of all seats, in order."""
    seats = {int(seat) for game in games for seat in _rewards(game.rollout) if seat.isdecimal()}
    return [f"seat {number}" for number in range(max(seats, default=-1) + 1)]


def _rewards(rollout: LoggedRollout) -> dict[str, float]:
    """Return the rewards by seat number, as text."""
    rewards = rollout.extras.final_rewards or rollout.rewards
    return {name.removeprefix("player_"): reward for name, reward in rewards.items()}


def _tags(rollout: LoggedRollout) -> str:
    """Return the tags that the controls filter a game by."""
    rewards = {f"seat {seat}": reward for seat, reward in _rewards(rollout).items()}
    tags = reward_tags(rewards, [f"seat {number}" for number in range(MAX_SEATS)])
    is_true = (
        (INVALID, rollout.has_invalid_move),
        (CUT, any(step.info.get("finish_reason") == "length" for step in rollout.steps)),
        (TURN_LIMIT, rollout.extras.truncated),
        (FAILED, bool(rollout.meta.get("error"))),
    )
    return " ".join([*tags, *(tag for (tag, _), holds in is_true if holds)])


def shared_prefixes(games: list[Game]) -> dict[SeatKey, Prompt]:
    """Return, by environment and seat, the messages with which every prompt of the games begins.

    A prompt's last message never counts, and a seat with a single prompt shares nothing.
    """
    prompts: defaultdict[SeatKey, list[Prompt]] = defaultdict(list)
    for game in games:
        for step in game.rollout.steps:
            prompts[(game.rollout.env_id, step.pid)].append(step.prompt)
    return shared_beginnings(prompts)


def _prefixes_html(prefixes: dict[SeatKey, Prompt]) -> str:
    """Return each shared beginning once, folded, with its seats."""
    seats: list[tuple[Prompt, str, list[int]]] = []
    for (env_id, pid), prefix in sorted(prefixes.items(), key=lambda item: item[0]):
        known = next((pids for other, env, pids in seats if env == env_id and other == prefix), None)
        if known is None:
            seats.append((prefix, env_id, [pid]))
        else:
            known.append(pid)
    html = []
    for prefix, env_id, pids in seats:
        names = " and ".join(str(pid) for pid in pids)
        html.append(
            f'<details class="fold shared"><summary>Shared beginning of every prompt of {escape(env_id)}, '
            f"seat {names} ({counted(len(prefix), 'message')})</summary>{messages_html(prefix)}</details>"
        )
    return "".join(html)


def game_html(game: Game, prefixes: dict[SeatKey, Prompt], *, unfolded: bool) -> str:
    """Return one foldable game."""
    rollout = game.rollout
    turns = turns_with_steps(rollout)
    shown = [
        _turn_html(number, turn, step, rollout.env_id, prefixes)
        for number, (turn, step) in enumerate(turns[:MAX_TURNS], start=1)
    ]
    if len(turns) > MAX_TURNS:
        shown.append(f'<p class="muted">{len(turns) - MAX_TURNS} more turns are not shown.</p>')
    if rollout.meta.get("error"):
        shown.append(f'<p class="bad">{escape(str(rollout.meta["error"]))}</p>')
    turn_count = rollout.extras.num_turns if rollout.extras.num_turns is not None else len(turns)
    return (
        f'<details class="game" data-tags="{_tags(rollout)}"{" open" if unfolded else ""}><summary>'
        f'<span class="game-name">Game {game.index}</span> '
        f"{escape(rollout.env_id)} {_players_html(rollout)} {_rewards_html(rollout)} "
        f'<span class="muted">{counted(turn_count, "turn")}</span> {_badges_html(rollout)}</summary>'
        f'<div class="turns">{"".join(shown)}</div></details>'
    )


def turns_with_steps(rollout: LoggedRollout) -> list[tuple[Turn, LoggedStep | None]]:
    """Return the turns in order, each with the model call behind it; scripted seats have none.

    A rollout without recorded turns gives one turn for each step.
    """
    if not rollout.extras.turns:
        return [(_turn_of(step), step) for step in rollout.steps]
    waiting: defaultdict[int, list[LoggedStep]] = defaultdict(list)
    for step in reversed(rollout.steps):
        waiting[step.pid].append(step)
    return [(turn, waiting[turn.pid].pop() if waiting[turn.pid] else None) for turn in rollout.extras.turns]


def _turn_of(step: LoggedStep) -> Turn:
    """Return a step as a turn."""
    feedback = step.info.get("format_feedback")
    feedback = feedback if isinstance(feedback, dict) else {}
    action = step.info.get("extracted_action")
    return Turn(
        pid=step.pid,
        kind="policy",
        model=step.role_id,
        text="".join(message.get("content", "") for message in step.completion),
        action=None if action is None else str(action),
        well_formed=feedback.get("correct_answer_format"),
        invalid=bool(feedback.get("invalid_move")),
    )


def _players_html(rollout: LoggedRollout) -> str:
    """Return the players in order of seats, from the play specification or else from the recorded moves."""
    agents = rollout.artifact.get("agents") if isinstance(rollout.artifact, dict) else None
    if isinstance(agents, list) and all(isinstance(agent, dict) for agent in agents):
        turns = [
            Turn(pid=pid, kind=str(agent.get("kind", "")), model=str(agent.get("model", "")))
            for pid, agent in enumerate(agents)
        ]
    else:
        turns = [turn for turn, _ in turns_with_steps(rollout)]
    players = {turn.pid: _player_html(turn) for turn in turns}
    return " against ".join(players[pid] for pid in sorted(players))


def _player_html(turn: Turn) -> str:
    """Name the player of a turn, in the colour of the seat."""
    is_trained = turn.kind == "policy" or (turn.kind == "model" and turn.model in TRAINED_MODELS)
    who = "trained" if is_trained else turn.model or turn.kind or "opponent"
    return f'<span class="seat seat-{turn.pid % 6}">seat {turn.pid}, {escape(who)}</span>'


def _rewards_html(rollout: LoggedRollout) -> str:
    """Return the final rewards in order of seats."""
    rewards = rollout.extras.final_rewards or rollout.rewards
    values = " / ".join(f"{reward:+g}" for _, reward in sorted(rewards.items()))
    return f'<span class="chip">{escape(values)}</span>' if values else ""


def _badges_html(rollout: LoggedRollout) -> str:
    """Return badges for a game's problems."""
    badges = []
    if rollout.has_invalid_move:
        badges.append('<span class="badge bad">invalid move</span>')
    if rollout.extras.truncated:
        badges.append('<span class="badge warn">turn limit</span>')
    if rollout.meta.get("error"):
        badges.append('<span class="badge bad">failed</span>')
    return " ".join(badges)


def _turn_html(
    number: int, turn: Turn, step: LoggedStep | None, env_id: str, prefixes: dict[SeatKey, Prompt]
) -> str:
    """Return one turn: player, move, position, raw answer, rewards and the folded prompt."""
    parts = [
        f'<div class="turn edge-{turn.pid % 6}"><div class="turn-head"><span class="muted">{number}</span> '
        f"{_player_html(turn)} ",
        f'<code class="action">{escape(clip(turn.action))}</code> ' if turn.action is not None else "",
        _marks_html(turn),
        logprob_html(step),
        "</div>",
    ]
    if turn.observation:
        parts.append(_observation_html(turn.observation))
    if turn.text is not None and turn.text != turn.action:
        parts.append(f'<div class="label">answer</div><pre class="answer">{escape(clip(turn.text))}</pre>')
    if step is not None:
        parts.append(_stages_html(step))
        parts.append(_prompt_html(step, prefixes.get((env_id, step.pid), [])))
    parts.append("</div>")
    return "".join(parts)


def _marks_html(turn: Turn) -> str:
    """Return whether the answer was well formed and the move valid."""
    marks = []
    if turn.well_formed is not None and turn.kind == "policy":
        style, text = ("good", "well formed") if turn.well_formed else ("warn", "malformed")
        marks.append(f'<span class="badge {style}">{text}</span>')
    if turn.invalid:
        marks.append('<span class="badge bad">invalid</span>')
    return " ".join(marks)


def _observation_html(observation: str) -> str:
    """Return the end of an observation and, if that is not all of it, the whole observation folded."""
    glance = "\n".join(observation.strip("\n").splitlines()[-GLANCE_LINES:])[-GLANCE_CHARS:]
    if len(glance) >= len(observation.strip("\n")):
        return f'<pre class="observation">{escape(glance)}</pre>'
    return (
        f'<pre class="observation">…\n{escape(glance)}</pre><details class="fold"><summary>Whole observation'
        f"</summary><pre>{escape(clip(observation))}</pre></details>"
    )


def _stages_html(step: LoggedStep) -> str:
    """Return the reward at each recorded stage in order, or else the step's single reward."""
    recorded = step.info.get("reward_stages")
    stages: dict[str, Any] = recorded if isinstance(recorded, dict) else {"": step.reward}
    if step.advantage:
        stages = {**stages, "advantage": step.advantage}
    shown = [
        f"{escape(str(name).replace('_', ' '))} <b>{signed(value)}</b>" for name, value in stages.items()
    ]
    return f'<div class="stages"><span class="label">reward</span> {" → ".join(shown)}</div>'


def _prompt_html(step: LoggedStep, prefix: Prompt) -> str:
    """Return the folded prompt, without the shared messages that are shown only once."""
    if not step.prompt:
        return ""
    rest = step.prompt[len(prefix) :]
    tokens = f", {counted(len(step.prompt_token_ids), 'token')}" if step.prompt_token_ids else ""
    note = f'<p class="muted">After the {counted(len(prefix), "message")} shown above:</p>' if prefix else ""
    return (
        f'<details class="fold"><summary>Prompt ({counted(len(step.prompt), "message")}{tokens}; '
        f"policy version {step.policy_version})</summary>{note}{messages_html(rest)}</details>"
    )
