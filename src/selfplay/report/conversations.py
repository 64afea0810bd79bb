"""Renders conversations with the sub-episodes they spawned. All text written by a model is escaped."""

import json
from collections import defaultdict
from collections.abc import Mapping
from html import escape
from statistics import fmean
from typing import Any

from selfplay.read.episodes import LoggedEpisode
from selfplay.read.numbers import counted
from selfplay.read.rollouts import LoggedRollout, LoggedStep
from selfplay.read.turns import DialogueTurn, dialogue
from selfplay.report.filter import CUT, FAILED, reward_tags
from selfplay.report.pieces import (
    MAX_TURNS,
    Shared,
    clip,
    in_a_line,
    prompt_html,
    role_html,
    signed,
    tokens_text,
)

MAX_CHILDREN = 64
"""At most this many sub-episodes of an episode are shown."""
SHORT_VALUE = 240
"""Longer values of artifacts and extras are folded."""
TITLES = ("topic", "claim", "question", "prompt", "problem", "task", "title", "name")
"""The keys under which an artifact may name an episode's subject."""


def conversation_html(episode: LoggedEpisode, shared: Shared, *, unfolded: bool) -> str:
    """Return one foldable conversation, with the tags that the controls filter by."""
    rollouts = episode.all_rollouts()
    is_true = (
        (CUT, any(step.is_cut for rollout in rollouts for step in rollout.steps)),
        (FAILED, any(rollout.error for rollout in rollouts)),
    )
    tags = reward_tags(episode.rollout.rewards, shared.players)
    tags += [tag for (tag, _), holds in is_true if holds]
    return (
        f'<details class="game" data-tags="{" ".join(tags)}"{" open" if unfolded else ""}>'
        f"<summary>{_summary_html(episode, shared)}</summary>{_body_html(episode, shared)}</details>"
    )


def title_of(artifact: Any) -> str:
    """Return an episode's subject in one line; empty if its artifact does not name one.

    In a dictionary it is the value of one of the usual keys, or else the first text. A number is its own
    title.
    """
    if isinstance(artifact, dict):
        keys = [*TITLES, *artifact]
        artifact = next((artifact[key] for key in keys if isinstance(artifact.get(key), str)), "")
    return in_a_line(str(artifact)) if isinstance(artifact, str | int | float) else ""


def _opening(rollout: LoggedRollout) -> str:
    """Return the environment's first line; empty if a role spoke first."""
    first = rollout.transcript[:1]
    return in_a_line(first[0].text) if first and not first[0].author else ""


def _summary_html(episode: LoggedEpisode, shared: Shared, *, with_title: bool = True) -> str:
    """Return an episode in one line: title, the only or last answer, rewards, counts and failures."""
    rollout = episode.rollout
    title = (title_of(rollout.artifact) or _opening(rollout)) if with_title else ""
    parts = [f'<span class="game-name">{escape(title)}</span>'] if title else []
    if rollout.steps and (len(rollout.steps) == 1 or not title):
        step = rollout.steps[-1]
        answer = in_a_line(step.answer) or "(nothing)"
        parts.append(f'{role_html(step.role_id, shared)} <span class="line">{escape(answer)}</span>')
    if len(rollout.steps) == 1 and list(rollout.rewards) == [rollout.steps[0].role_id]:
        parts.append(f'<span class="chip">{_reward_text(rollout.rewards[rollout.steps[0].role_id])}</span>')
    else:
        parts.append(_rewards_html(rollout.rewards, shared))
    counts = [rollout.episode_type]
    if len(rollout.steps) > 1:
        counts.append(counted(len(rollout.steps), "answer"))
    if episode.children:
        counts.append(counted(len(episode.children), "sub-episode"))
    parts.append(f'<span class="muted">{escape(", ".join(counts))}</span>')
    if rollout.error:
        parts.append('<span class="badge bad">failed</span>')
    if rollout.meta.get("retried"):
        parts.append(f'<span class="badge warn">retried {escape(str(rollout.meta["retried"]))}×</span>')
    return " ".join(parts)


def _body_html(episode: LoggedEpisode, shared: Shared) -> str:
    """Return an episode's whole card: subject, turns, outcome and sub-episodes."""
    rollout = episode.rollout
    turns = dialogue(rollout)
    parts = [f'<div class="turns">{_facts_html(_artifact_facts(rollout.artifact))}']
    parts += [_turn_html(turn, rollout.episode_type, shared) for turn in turns[:MAX_TURNS]]
    if len(turns) > MAX_TURNS:
        parts.append(f'<p class="muted">{len(turns) - MAX_TURNS} more turns are not shown.</p>')
    if rollout.error:
        parts.append(f'<p class="bad">{escape(clip(rollout.error))}</p>')
    parts.append(_facts_html(_outcome_facts(rollout)))
    parts.append(_children_html(episode, shared))
    parts.append(f'<p class="muted">{escape(_origin(episode))}</p></div>')
    return "".join(parts)


def _artifact_facts(artifact: Any) -> dict[str, Any]:
    if artifact is None:
        return {}
    return artifact if isinstance(artifact, dict) else {"about": artifact}


def _outcome_facts(rollout: LoggedRollout) -> dict[str, Any]:
    """Return the extras without the transcript, and the metrics of the reward functions."""
    return {name: value for name, value in rollout.extras.items() if name != "transcript"} | rollout.metrics


def _facts_html(facts: dict[str, Any]) -> str:
    """Return names and values of any JSON; long values are folded."""
    rows = "".join(
        f'<div class="label">{escape(str(name).replace("_", " "))}</div><div>{_value_html(value)}</div>'
        for name, value in facts.items()
    )
    return f'<div class="facts">{rows}</div>' if rows else ""


def _value_html(value: Any) -> str:
    """Return text unchanged and anything else as JSON; a long list has one item per line."""
    if isinstance(value, str):
        text, head = value, in_a_line(value)
    elif isinstance(value, list):
        text = "\n".join(json.dumps(item, ensure_ascii=False) for item in value)
        head = counted(len(value), "item")
    else:
        text = json.dumps(value, ensure_ascii=False, indent=1)
        head = in_a_line(text)
    if len(text) > SHORT_VALUE:
        whole = f"<pre>{escape(clip(text))}</pre>"
        return f'<details class="fold"><summary>{escape(head)}</summary>{whole}</details>'
    short = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return f'<span class="said">{escape(short)}</span>'


def _turn_html(turn: DialogueTurn, episode_type: str, shared: Shared) -> str:
    """Return one turn: speaker, addressee, text, reward and the folded prompt."""
    only = f' <span class="chip">to {role_html(turn.to, shared)} only</span>' if turn.to else ""
    text = f'<div class="said">{escape(clip(turn.text))}</div>' if turn.text.strip() else _NOTHING_SAID
    if not turn.author:
        return f'<div class="turn told"><span class="label">environment</span>{only}{text}</div>'
    parts = [
        f'<div class="turn edge-{shared.colours.get(turn.author, 0)}"><div class="turn-head">'
        f'<span class="muted">{turn.number}</span> {role_html(turn.author, shared)}{only}'
    ]
    if turn.step is not None:
        parts.append(_call_html(turn.step))
    parts.append("</div>")
    if turn.asked:
        parts.append(f'<pre class="observation">{escape(clip(turn.asked))}</pre>')
    parts.append(text)
    if turn.step is not None:
        answer = turn.step.answer
        if answer != turn.text:
            parts.append(f'<div class="label">answer</div><pre class="answer">{escape(clip(answer))}</pre>')
        figures = {"reward": turn.step.reward}
        if not shared.is_evaluation:  # Evaluations have no advantages.
            figures["advantage"] = turn.step.advantage
        shown = [f'<span class="label">{n}</span> <b>{_reward_text(x)}</b>' for n, x in figures.items()]
        parts.append(f'<div class="stages">{" ".join(shown)}</div>')
        parts.append(
            _prompt_html(turn, turn.step, len(shared.beginnings.get((episode_type, turn.author), [])))
        )
    parts.append("</div>")
    return "".join(parts)


_NOTHING_SAID = '<div class="muted">(nothing)</div>'


def _call_html(step: LoggedStep) -> str:
    """Return a model call's policy version, mean log-probability, token count and any truncation."""
    marks = ['<span class="badge warn">cut at the token limit</span>'] * step.is_cut
    marks += ['<span class="badge warn">text only</span>'] * (not step.completion_logprobs)
    facts = ", ".join(filter(None, (f"version {step.policy_version}", tokens_text(step))))
    return f'{"".join(marks)}<span class="muted right">{facts}</span>'


def _prompt_html(turn: DialogueTurn, step: LoggedStep, beginning: int) -> str:
    """Return the folded prompt, without the messages shown elsewhere on the page."""
    if turn.known > beginning:
        return prompt_html(step, turn.known, f"Continues the prompt of turn {turn.earlier}:")
    note = f"After the beginning shown at the top ({counted(beginning, 'message')}):"
    return prompt_html(step, beginning, note)


def _children_html(episode: LoggedEpisode, shared: Shared) -> str:
    """Return the sub-episodes, each folded under its summary."""
    children = episode.children
    if not children:
        return ""
    rewards: defaultdict[str, list[float]] = defaultdict(list)
    for child in children:
        for role, reward in child.rollout.rewards.items():
            rewards[role].append(reward)
    means = {role: fmean(values) for role, values in rewards.items()}
    with_title = len({title_of(child.rollout.artifact) for child in children}) > 1
    shown = "".join(
        f'<details class="child"><summary>{_summary_html(child, shared, with_title=with_title)}</summary>'
        f"{_body_html(child, shared)}</details>"
        for child in children[:MAX_CHILDREN]
    )
    hidden = len(children) - MAX_CHILDREN
    rest = f'<p class="muted">{counted(hidden, "more sub-episode")} not shown.</p>' if hidden > 0 else ""
    mean = f" with mean reward {_rewards_html(means, shared)}" if means else ""
    head = f'<p class="muted">{counted(len(children), "sub-episode")}{mean}</p>'
    return f'<div class="children">{head}{shown}{rest}</div>'


def _origin(episode: LoggedEpisode) -> str:
    """Return a rollout's id and the origin that its ``meta`` records."""
    rollout = episode.rollout
    parts = [rollout.id or "no id"]
    if "group" in rollout.meta:
        parts.append(f"group {rollout.meta['group']}")
    if rollout.meta.get("policy_version") is not None:
        parts.append(f"policy version {rollout.meta['policy_version']}")
    if episode.depth == 0 and rollout.meta.get("parent_id"):
        parts.append(f"sub-episode of {rollout.meta['parent_id']}, which is not in the log")
    if episode.left_out:
        parts.append(f"{counted(episode.left_out, 'deeper sub-episode')} not shown")
    return ", ".join(parts)


def _rewards_html(rewards: Mapping[str, float], shared: Shared) -> str:
    """Return each role's reward."""
    return " ".join(
        f'<span class="chip">{role_html(role, shared)} {_reward_text(reward)}</span>'
        for role, reward in rewards.items()
    )


def _reward_text(value: float) -> str:
    """Return a signed number, zero without a sign."""
    return signed(value) if value else "0"
