"""Whole games for reading, turn by turn. Everything a model wrote is escaped."""

from collections import defaultdict
from html import escape
from typing import Any

from selfplay.tracking.report_pieces import (
    MAX_TURNS,
    Prompt,
    clip,
    counted,
    logprob_html,
    messages_html,
    shared_beginnings,
    signed,
)
from selfplay.tracking.report_rollouts import Game, LoggedRollout, LoggedStep, Turn

GLANCE_LINES = 8
"""How many lines of an observation show without unfolding anything: its last, where the position is."""
GLANCE_CHARS = 600
"""How many characters of them at most."""

SeatKey = tuple[str, int]


def games_html(games: list[Game], games_in_log: int) -> str:
    """Return the section of readable games; empty without games."""
    if not games:
        return ""
    prefixes = shared_prefixes(games)
    parts = [
        "<section><h2>Games</h2>",
        f'<p class="muted">{len(games)} of {games_in_log:,} games in the log: some of the first, '
        "of the middle and of the last step.</p>",
        _prefixes_html(prefixes),
    ]
    step = None
    for position, game in enumerate(games):
        if game.step != step:
            step = game.step
            parts.append(f"<h3>Step {step}</h3>")
        parts.append(_game_html(game, prefixes, unfolded=position == 0))
    parts.append("</section>")
    return "".join(parts)


def shared_prefixes(games: list[Game]) -> dict[SeatKey, Prompt]:
    """Return, by environment and seat, the messages that every prompt of the games begins with.

    A prompt's last message never counts, and a seat with a single prompt has nothing to share.
    """
    prompts: defaultdict[SeatKey, list[Prompt]] = defaultdict(list)
    for game in games:
        for step in game.rollout.steps:
            prompts[(game.rollout.env_id, step.pid)].append(step.prompt)
    return shared_beginnings(prompts)


def _prefixes_html(prefixes: dict[SeatKey, Prompt]) -> str:
    """Return each shared beginning once, folded, with the seats that have it."""
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
            f'<details class="fold shared"><summary>How every prompt of {escape(env_id)}, seat {names}, '
            f"begins ({counted(len(prefix), 'message')})</summary>{messages_html(prefix)}</details>"
        )
    return "".join(html)


def _game_html(game: Game, prefixes: dict[SeatKey, Prompt], *, unfolded: bool) -> str:
    """Return one game that folds."""
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
        f'<details class="game"{" open" if unfolded else ""}><summary>'
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
    """Return who sat where, in order of seats: of the play specification, or else of those who moved."""
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
    who = "trained" if turn.kind == "policy" else turn.model or turn.kind or "opponent"
    return f'<span class="seat seat-{turn.pid % 6}">seat {turn.pid}, {escape(who)}</span>'


def _rewards_html(rollout: LoggedRollout) -> str:
    """Return the final rewards in order of seats."""
    rewards = rollout.extras.final_rewards or rollout.rewards
    values = " / ".join(f"{reward:+g}" for _, reward in sorted(rewards.items()))
    return f'<span class="chip">{escape(values)}</span>' if values else ""


def _badges_html(rollout: LoggedRollout) -> str:
    """Return marks for what was wrong with a game."""
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
    """Return one turn: who moved and what, the position, the raw answer, rewards, and the folded prompt."""
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
    """Return the end of an observation, and the whole of it folded where the end is not all."""
    glance = "\n".join(observation.strip("\n").splitlines()[-GLANCE_LINES:])[-GLANCE_CHARS:]
    if len(glance) >= len(observation.strip("\n")):
        return f'<pre class="observation">{escape(glance)}</pre>'
    return (
        f'<pre class="observation">…\n{escape(glance)}</pre><details class="fold"><summary>Whole observation'
        f"</summary><pre>{escape(clip(observation))}</pre></details>"
    )


def _stages_html(step: LoggedStep) -> str:
    """Return the reward at each stage that was recorded, in order; else the one reward of the step."""
    recorded = step.info.get("reward_stages")
    stages: dict[str, Any] = recorded if isinstance(recorded, dict) else {"": step.reward}
    if step.advantage:
        stages = {**stages, "advantage": step.advantage}
    shown = [
        f"{escape(str(name).replace('_', ' '))} <b>{signed(value)}</b>" for name, value in stages.items()
    ]
    return f'<div class="stages"><span class="label">reward</span> {" → ".join(shown)}</div>'


def _prompt_html(step: LoggedStep, prefix: Prompt) -> str:
    """Return the folded prompt, without the messages that are shown once for all."""
    if not step.prompt:
        return ""
    rest = step.prompt[len(prefix) :]
    tokens = f", {counted(len(step.prompt_token_ids), 'token')}" if step.prompt_token_ids else ""
    note = f'<p class="muted">After the {counted(len(prefix), "message")} shown above:</p>' if prefix else ""
    return (
        f'<details class="fold"><summary>Prompt ({counted(len(step.prompt), "message")}{tokens}; '
        f"policy version {step.policy_version})</summary>{note}{messages_html(rest)}</details>"
    )
