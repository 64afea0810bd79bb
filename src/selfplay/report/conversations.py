"""Renders conversations with the sub-episodes they spawned. All text written by a model is escaped."""

import json
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from html import escape
from statistics import fmean
from typing import Any

from selfplay.read.conversations import Conversation, ProgramRollout
from selfplay.read.dialogue import DialogueTurn, answer_of, dialogue
from selfplay.read.rollouts import LoggedStep, Prompt
from selfplay.read.run_data import RunData
from selfplay.report.filter import CUT, FAILED, filter_html, reward_tags
from selfplay.report.pieces import (
    MAX_TURNS,
    clip,
    counted,
    messages_html,
    shared_beginnings,
    signed,
    versions_html,
)
from selfplay.report.program_summary import measured_texts

MAX_CHILDREN = 64
"""At most this many sub-episodes of an episode are shown."""
SHORT_VALUE = 240
"""Longer values of artifacts and extras are folded."""
SHORT_LINE = 100
"""A text in a summary is cut to this many characters."""
TITLES = ("topic", "claim", "question", "prompt", "problem", "task", "title", "name")
"""The keys under which an artifact may name an episode's subject."""

PromptKey = tuple[str, str]


@dataclass(frozen=True)
class _Page:
    """What all cards share: colours of roles, prompt beginnings by episode type and role, rewarded roles."""

    colours: dict[str, int]
    beginnings: dict[PromptKey, Prompt]
    players: list[str]
    is_evaluation: bool = False


def conversations_html(run: RunData) -> str:
    """Return the section of readable conversations; empty without any."""
    if not run.conversations:
        return ""
    page = _page(run, run.conversations)
    parts = [
        "<section><h2>Conversations</h2>",
        f'<p class="muted">{_choice_text(len(run.conversations), run.conversations_in_log)}</p>',
        _beginnings_html(page),
        _filter_html(page),
    ]
    for step in dict.fromkeys(conversation.step for conversation in run.conversations):
        of_step = [conversation for conversation in run.conversations if conversation.step == step]
        rollouts = [rollout for conversation in of_step for rollout in conversation.all_rollouts()]
        versions = versions_html(one.policy_version for rollout in rollouts for one in rollout.steps)
        shown = "".join(
            _conversation_html(one, page, unfolded=one is run.conversations[0]) for one in of_step
        )
        parts.append(f'<div class="group"><h3>Step {step}{versions}</h3>{shown}</div>')
    parts.append("</section>")
    return "".join(parts)


def evaluated_conversations_html(run: RunData) -> str:
    """Return the section of the conversations logged in evaluations; empty without any."""
    conversations = [one for transcript in run.transcripts for one in transcript.conversations]
    if not conversations:
        return ""
    page = replace(_page(run, conversations), is_evaluation=True)
    groups = []
    for transcript in run.transcripts:
        measured = ", ".join(measured_texts(run, transcript.step))
        shown = "".join(_conversation_html(one, page, unfolded=False) for one in transcript.conversations)
        groups.append(
            f'<div class="group"><h3>After step {transcript.step} <span class="muted">{escape(measured)}'
            f"</span></h3>{shown}</div>"
        )
    return (
        "<section><h2>Conversations of the first and the last evaluation</h2>"
        '<p class="muted">The first conversations of each. The figures beside them count all.</p>'
        f"{_beginnings_html(page)}{_filter_html(page)}{''.join(groups)}</section>"
    )


def _page(run: RunData, conversations: list[Conversation]) -> _Page:
    colours = {role: index % 6 for index, role in enumerate(run.roles())}
    rewarded = {role for one in conversations for role in one.rollout.rewards}
    return _Page(colours, shared_prompts(conversations), sorted(rewarded))


def _beginnings_html(page: _Page) -> str:
    """Return the shared beginning of each role's prompts, folded."""
    return "".join(
        f'<details class="fold shared"><summary>Shared beginning of every prompt of {escape(role)} in '
        f"{escape(episode_type)} ({counted(len(beginning), 'message')})</summary>"
        f"{messages_html(beginning)}</details>"
        for (episode_type, role), beginning in page.beginnings.items()
    )


def _filter_html(page: _Page) -> str:
    return filter_html((CUT, FAILED), page.players)


def _conversation_html(conversation: Conversation, page: _Page, *, unfolded: bool) -> str:
    """Return one foldable conversation, with the tags that the controls filter by."""
    rollouts = conversation.all_rollouts()
    steps = [step for rollout in rollouts for step in rollout.steps]
    is_true = (
        (CUT, any(step.info.get("finish_reason") == "length" for step in steps)),
        (FAILED, any(rollout.error for rollout in rollouts)),
    )
    tags = reward_tags(conversation.rollout.rewards, page.players)
    tags += [tag for (tag, _), holds in is_true if holds]
    return (
        f'<details class="game" data-tags="{" ".join(tags)}"{" open" if unfolded else ""}>'
        f"<summary>{_summary_html(conversation, page)}</summary>{_body_html(conversation, page)}</details>"
    )


def _choice_text(shown: int, logged: int) -> str:
    """Return a sentence on the choice of the logged top-level episodes."""
    if shown == logged:
        return f"All of {counted(logged, 'episode')} in the log, each with its sub-episodes."
    return (
        f"{shown} of {counted(logged, 'episode')} in the log, each with its sub-episodes, from the first, "
        "the middle and the last step."
    )


def shared_prompts(conversations: list[Conversation]) -> dict[PromptKey, Prompt]:
    """Return, by episode type and role, the messages with which every prompt begins."""
    prompts: defaultdict[PromptKey, list[Prompt]] = defaultdict(list)
    for conversation in conversations:
        for rollout in conversation.all_rollouts():
            for step in rollout.steps:
                prompts[(rollout.episode_type, step.role_id)].append(step.prompt)
    return shared_beginnings(prompts)


def title_of(artifact: Any) -> str:
    """Return an episode's subject in one line; empty if its artifact does not name one.

    In a dictionary it is the value of one of the usual keys, or else the first text. A number is its own
    title.
    """
    if isinstance(artifact, dict):
        keys = [*TITLES, *artifact]
        artifact = next((artifact[key] for key in keys if isinstance(artifact.get(key), str)), "")
    return _in_a_line(str(artifact)) if isinstance(artifact, str | int | float) else ""


def _opening(rollout: ProgramRollout) -> str:
    """Return the environment's first line; empty if a role spoke first."""
    first = rollout.transcript[:1]
    return _in_a_line(first[0].text) if first and not first[0].author else ""


def _summary_html(conversation: Conversation, page: _Page, *, with_title: bool = True) -> str:
    """Return an episode in one line: title, the only or last answer, rewards, counts and failures."""
    rollout = conversation.rollout
    title = (title_of(rollout.artifact) or _opening(rollout)) if with_title else ""
    parts = [f'<span class="game-name">{escape(title)}</span>'] if title else []
    if rollout.steps and (len(rollout.steps) == 1 or not title):
        step = rollout.steps[-1]
        answer = _in_a_line(answer_of(step)) or "(nothing)"
        parts.append(f'{_role_html(step.role_id, page)} <span class="line">{escape(answer)}</span>')
    if len(rollout.steps) == 1 and list(rollout.rewards) == [rollout.steps[0].role_id]:
        parts.append(f'<span class="chip">{_reward_text(rollout.rewards[rollout.steps[0].role_id])}</span>')
    else:
        parts.append(_rewards_html(rollout.rewards, page))
    counts = [rollout.episode_type]
    if len(rollout.steps) > 1:
        counts.append(counted(len(rollout.steps), "answer"))
    if conversation.children:
        counts.append(counted(len(conversation.children), "sub-episode"))
    parts.append(f'<span class="muted">{escape(", ".join(counts))}</span>')
    if rollout.error:
        parts.append('<span class="badge bad">failed</span>')
    if rollout.meta.get("retried"):
        parts.append(f'<span class="badge warn">retried {escape(str(rollout.meta["retried"]))}×</span>')
    return " ".join(parts)


def _body_html(conversation: Conversation, page: _Page) -> str:
    """Return an episode's whole card: subject, turns, outcome and sub-episodes."""
    rollout = conversation.rollout
    turns = dialogue(rollout)
    parts = [f'<div class="turns">{_facts_html(_artifact_facts(rollout.artifact))}']
    parts += [_turn_html(turn, rollout.episode_type, page) for turn in turns[:MAX_TURNS]]
    if len(turns) > MAX_TURNS:
        parts.append(f'<p class="muted">{len(turns) - MAX_TURNS} more turns are not shown.</p>')
    if rollout.error:
        parts.append(f'<p class="bad">{escape(clip(rollout.error))}</p>')
    parts.append(_facts_html(_outcome_facts(rollout)))
    parts.append(_children_html(conversation, page))
    parts.append(f'<p class="muted">{escape(_origin(conversation))}</p></div>')
    return "".join(parts)


def _artifact_facts(artifact: Any) -> dict[str, Any]:
    if artifact is None:
        return {}
    return artifact if isinstance(artifact, dict) else {"about": artifact}


def _outcome_facts(rollout: ProgramRollout) -> dict[str, Any]:
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
        text, head = value, _in_a_line(value)
    elif isinstance(value, list):
        text = "\n".join(json.dumps(item, ensure_ascii=False) for item in value)
        head = counted(len(value), "item")
    else:
        text = json.dumps(value, ensure_ascii=False, indent=1)
        head = _in_a_line(text)
    if len(text) > SHORT_VALUE:
        whole = f"<pre>{escape(clip(text))}</pre>"
        return f'<details class="fold"><summary>{escape(head)}</summary>{whole}</details>'
    short = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return f'<span class="said">{escape(short)}</span>'


def _turn_html(turn: DialogueTurn, episode_type: str, page: _Page) -> str:
    """Return one turn: speaker, addressee, text, reward and the folded prompt."""
    only = f' <span class="chip">to {_role_html(turn.to, page)} only</span>' if turn.to else ""
    text = f'<div class="said">{escape(clip(turn.text))}</div>' if turn.text.strip() else _NOTHING_SAID
    if not turn.author:
        return f'<div class="turn told"><span class="label">environment</span>{only}{text}</div>'
    parts = [
        f'<div class="turn edge-{page.colours.get(turn.author, 0)}"><div class="turn-head">'
        f'<span class="muted">{turn.number}</span> {_role_html(turn.author, page)}{only}'
    ]
    if turn.step is not None:
        parts.append(_call_html(turn.step))
    parts.append("</div>")
    if turn.asked:
        parts.append(f'<pre class="observation">{escape(clip(turn.asked))}</pre>')
    parts.append(text)
    if turn.step is not None:
        answer = answer_of(turn.step)
        if answer != turn.text:
            parts.append(f'<div class="label">answer</div><pre class="answer">{escape(clip(answer))}</pre>')
        figures = {"reward": turn.step.reward}
        if not page.is_evaluation:  # Evaluations have no advantages.
            figures["advantage"] = turn.step.advantage
        shown = [f'<span class="label">{n}</span> <b>{_reward_text(x)}</b>' for n, x in figures.items()]
        parts.append(f'<div class="stages">{" ".join(shown)}</div>')
        parts.append(_prompt_html(turn, turn.step, page.beginnings.get((episode_type, turn.author), [])))
    parts.append("</div>")
    return "".join(parts)


_NOTHING_SAID = '<div class="muted">(nothing)</div>'


def _call_html(step: LoggedStep) -> str:
    """Return a model call's policy version, mean log-probability, token count and any truncation."""
    marks = []
    if step.info.get("finish_reason") == "length":
        marks.append('<span class="badge warn">cut at the token limit</span>')
    facts = [f"version {step.policy_version}"]
    if step.completion_logprobs:
        facts.append(f"mean log-prob {fmean(step.completion_logprobs):.3f}")
        facts.append(counted(len(step.completion_logprobs), "token"))
    else:
        marks.append('<span class="badge warn">text only</span>')
    return f'{"".join(marks)}<span class="muted right">{", ".join(facts)}</span>'


def _prompt_html(turn: DialogueTurn, step: LoggedStep, beginning: Prompt) -> str:
    """Return the folded prompt, without the messages shown elsewhere on the page."""
    if not step.prompt:
        return ""
    note, known = "", len(beginning)
    if turn.known > known:
        known = turn.known
        note = f"Continues the prompt of turn {turn.earlier}:"
    elif known:
        note = f"After the beginning shown at the top ({counted(known, 'message')}):"
    tokens = f", {counted(len(step.prompt_token_ids), 'token')}" if step.prompt_token_ids else ""
    return (
        f'<details class="fold"><summary>Prompt ({counted(len(step.prompt), "message")}{tokens})</summary>'
        f"{f'<p class=muted>{note}</p>' if note else ''}{messages_html(step.prompt[known:])}</details>"
    )


def _children_html(conversation: Conversation, page: _Page) -> str:
    """Return the sub-episodes, each folded under its summary."""
    children = conversation.children
    if not children:
        return ""
    rewards: defaultdict[str, list[float]] = defaultdict(list)
    for child in children:
        for role, reward in child.rollout.rewards.items():
            rewards[role].append(reward)
    means = {role: fmean(values) for role, values in rewards.items()}
    with_title = len({title_of(child.rollout.artifact) for child in children}) > 1
    shown = "".join(
        f'<details class="child"><summary>{_summary_html(child, page, with_title=with_title)}</summary>'
        f"{_body_html(child, page)}</details>"
        for child in children[:MAX_CHILDREN]
    )
    hidden = len(children) - MAX_CHILDREN
    rest = f'<p class="muted">{counted(hidden, "more sub-episode")} not shown.</p>' if hidden > 0 else ""
    mean = f" with mean reward {_rewards_html(means, page)}" if means else ""
    head = f'<p class="muted">{counted(len(children), "sub-episode")}{mean}</p>'
    return f'<div class="children">{head}{shown}{rest}</div>'


def _origin(conversation: Conversation) -> str:
    """Return a rollout's id and the origin that its ``meta`` records."""
    rollout = conversation.rollout
    parts = [rollout.id or "no id"]
    if "group" in rollout.meta:
        parts.append(f"group {rollout.meta['group']}")
    if rollout.meta.get("policy_version") is not None:
        parts.append(f"policy version {rollout.meta['policy_version']}")
    if conversation.depth == 0 and rollout.meta.get("parent_id"):
        parts.append(f"sub-episode of {rollout.meta['parent_id']}, which is not in the log")
    if conversation.too_deep:
        parts.append(f"{counted(conversation.too_deep, 'deeper sub-episode')} not shown")
    return ", ".join(parts)


def _rewards_html(rewards: Mapping[str, float], page: _Page) -> str:
    """Return each role's reward."""
    return " ".join(
        f'<span class="chip">{_role_html(role, page)} {_reward_text(reward)}</span>'
        for role, reward in rewards.items()
    )


def _reward_text(value: float) -> str:
    """Return a signed number, zero without a sign."""
    return signed(value) if value else "0"


def _role_html(role: str, page: _Page) -> str:
    """Name a role in its colour."""
    return f'<span class="seat seat-{page.colours.get(role, 0)}">{escape(role)}</span>'


def _in_a_line(text: str) -> str:
    """Return the beginning of a text, without line breaks."""
    line = " ".join(text.split())
    return line if len(line) <= SHORT_LINE else f"{line[:SHORT_LINE]}…"
