"""Renders whole games turn by turn. All text written by a model is escaped."""

from html import escape
from typing import Any

from selfplay.read.episodes import LoggedEpisode
from selfplay.read.numbers import counted
from selfplay.read.rollouts import LoggedRollout, LoggedStep, Turn
from selfplay.read.turns import game_turns, player_name
from selfplay.report.filter import CUT, FAILED, INVALID, TURN_LIMIT, reward_tags
from selfplay.report.pieces import MAX_TURNS, Shared, clip, prompt_html, signed, tokens_text

GLANCE_LINES = 8
"""The number of lines of an observation that are shown unfolded: the last ones, which hold the position."""
GLANCE_CHARS = 600
"""The largest number of characters in these lines."""


def game_html(episode: LoggedEpisode, shared: Shared, *, unfolded: bool) -> str:
    """Return one foldable game, with the tags that the controls filter by."""
    rollout, game = episode.rollout, episode.rollout.game
    turns = game_turns(rollout)
    shown = [
        _turn_html(number, turn, step, rollout.env_id, shared)
        for number, (turn, step) in enumerate(turns[:MAX_TURNS], start=1)
    ]
    if len(turns) > MAX_TURNS:
        shown.append(f'<p class="muted">{len(turns) - MAX_TURNS} more turns are not shown.</p>')
    if rollout.error:
        shown.append(f'<p class="bad">{escape(rollout.error)}</p>')
    is_true = (
        (INVALID, game.has_invalid_move, '<span class="badge bad">invalid move</span>'),
        (CUT, any(step.is_cut for step in rollout.steps), ""),
        (TURN_LIMIT, game.truncated, '<span class="badge warn">turn limit</span>'),
        (FAILED, bool(rollout.error), '<span class="badge bad">failed</span>'),
    )
    tags = reward_tags(rewards_of(rollout), shared.players) + [tag for (tag, _), holds, _ in is_true if holds]
    badges = " ".join(badge for _, holds, badge in is_true if holds)
    turn_count = game.num_turns if game.num_turns is not None else len(turns)
    return (
        f'<details class="game" data-tags="{" ".join(tags)}"{" open" if unfolded else ""}><summary>'
        f'<span class="game-name">Game {episode.index}</span> '
        f"{escape(rollout.env_id)} {_players_html(rollout)} {_rewards_html(rollout)} "
        f'<span class="muted">{counted(turn_count, "turn")}</span> {badges}</summary>'
        f'<div class="turns">{"".join(shown)}</div></details>'
    )


def rewards_of(rollout: LoggedRollout) -> dict[str, float]:
    """Return the rewards by seat; if the game recorded none, those of the trained seats."""
    trained = {
        f"seat {number}": reward
        for role, reward in sorted(rollout.rewards.items())
        if (number := role.removeprefix("player_")).isdecimal()
    }
    return rollout.seat_rewards or trained


def _players_html(rollout: LoggedRollout) -> str:
    """Return the players in order of seats, from the play specification or else from the recorded moves."""
    agents = rollout.artifact.get("agents") if isinstance(rollout.artifact, dict) else None
    if isinstance(agents, list) and all(isinstance(agent, dict) for agent in agents):
        turns = [
            Turn(pid=pid, kind=str(agent.get("kind", "")), model=str(agent.get("model", "")))
            for pid, agent in enumerate(agents)
        ]
    else:
        turns = [turn for turn, _ in game_turns(rollout)]
    players = {turn.pid: _player_html(turn) for turn in turns}
    return " against ".join(players[pid] for pid in sorted(players))


def _player_html(turn: Turn) -> str:
    """Name the player of a turn, in the colour of the seat."""
    return f'<span class="seat seat-{turn.pid % 6}">seat {turn.pid}, {escape(player_name(turn))}</span>'


def _rewards_html(rollout: LoggedRollout) -> str:
    """Return the final rewards in order of seats."""
    values = " / ".join(f"{reward:+g}" for reward in rewards_of(rollout).values())
    return f'<span class="chip">{values}</span>' if values else ""


def _turn_html(number: int, turn: Turn, step: LoggedStep | None, env_id: str, shared: Shared) -> str:
    """Return one turn: player, move, position, raw answer, rewards and the folded prompt."""
    parts = [
        f'<div class="turn edge-{turn.pid % 6}"><div class="turn-head"><span class="muted">{number}</span> '
        f"{_player_html(turn)} ",
        f'<code class="action">{escape(clip(turn.action))}</code> ' if turn.action is not None else "",
        _marks_html(turn),
        f'<span class="muted right">{tokens_text(step)}</span></div>' if step is not None else "</div>",
    ]
    if turn.observation:
        parts.append(_observation_html(turn.observation))
    if turn.text is not None and turn.text != turn.action:
        parts.append(f'<div class="label">answer</div><pre class="answer">{escape(clip(turn.text))}</pre>')
    if step is not None:
        known = len(shared.beginnings.get((env_id, f"seat {step.pid}"), []))
        note = f"After the {counted(known, 'message')} shown above:"
        parts.append(_stages_html(step))
        parts.append(prompt_html(step, known, note, f"; policy version {step.policy_version}"))
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
