"""Games, proofs and conversations to read. All text written by a model is escaped."""

import json
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

from sparring.core import Step
from sparring.core.messages import Messages
from sparring.core.text import counted
from sparring.view.cards import KINDS, Card, CardTurn, in_a_line, tokens_text
from sparring.view.report.html import badge_html
from sparring.view.report.plotly import Json
from sparring.view.report.tokens import AnswersByToken

MAX_TURNS = 80
"""At most this many turns of a game or conversation are shown."""
MAX_TEXT = 6000
"""Longer texts are cut to this many characters."""
MAX_PARTS = 64
"""At most this many sub-episodes of an episode are shown."""
SHORT_VALUE = 240
"""Longer values of artifacts and extras are folded."""
GLANCE_LINES = 8
"""The number of lines of an observation that are shown unfolded: the last ones, which hold the position."""
GLANCE_CHARS = 600
"""The largest number of characters in these lines."""
_OUTCOMES = {"win": "won", "draw": "drew", "loss": "lost"}

Speaker = tuple[str, str]
"""An environment or a type of episodes, and one of its seats or roles."""


@dataclass(frozen=True)
class Shared:
    """What the cards of a section share.

    Attributes:
        names: the roles or seats, each of which has the colour of its place.
        beginnings: the messages with which every prompt of a speaker begins, shown once.
        of_evaluation: whether these are of an evaluation, which has no advantages.
        by_token: collects the answers that are shown by token.
        beside: whether the cards of a group stand beside each other, and open together.
    """

    names: Sequence[str] = ()
    beginnings: Mapping[Speaker, Messages] = field(default_factory=dict)
    of_evaluation: bool = False
    by_token: AnswersByToken = field(default_factory=AnswersByToken)
    beside: bool = False

    def colour(self, name: str) -> int:
        """Return the colour of a role or seat."""
        return self.names.index(name) % 6 if name in self.names else 0


def cards_html(groups: Mapping[str, Sequence[Card]], shared: Shared, *, unfolded: bool = False) -> str:
    """Return cards in groups with the controls that filter them; ``unfolded`` opens the first card.

    Args:
        groups: the cards by the heading of their group, which is HTML.
        shared: what the cards share.
        unfolded: whether the first card is open.
    """
    cards = [card for group in groups.values() for card in group]
    if not cards:
        return ""
    unit, parts = _unit(cards), list[str]()
    for title, group in groups.items():
        shown = "".join(
            f'<details class="game" data-facts="{escape(json.dumps(_facts_of(card, shared, unit)))}"'
            f"{' open' if unfolded and card is cards[0] else ''}>"
            f"<summary>{_summary_html(card, shared)}</summary>{_body_html(card, shared)}</details>"
            for card in group
        )
        shown = f'<div class="beside">{shown}</div>' if shared.beside else shown
        parts.append(f'<div class="group"><h3>{title}</h3>{shown}</div>' if group else "")
    return "".join([_beginnings_html(shared), _controls_html(cards, shared, unit), *parts])


def shared_of(
    cards: Sequence[Card], names: Sequence[str], by_token: AnswersByToken, *, of_evaluation: bool
) -> Shared:
    """Return what cards share. ``names`` come first; others that act in them follow."""
    everything = [one for card in cards for one in with_parts(card)]
    prompts: defaultdict[Speaker, list[Messages]] = defaultdict(list)
    for card in everything:
        for turn in card.turns:
            if turn.step is not None:
                prompts[card.where, turn.speaker].append(turn.step.prompt)
    beginnings = {speaker: shared_beginning(several) for speaker, several in prompts.items()}
    known = {name for card in everything for name in (*card.players, *card.rewards)}
    known |= {turn.speaker for card in everything for turn in card.turns} - {""}
    ordered = [*names, *sorted(known - {*names}, key=lambda name: (len(name), name))]
    shown = {speaker: one for speaker, one in beginnings.items() if one}
    return Shared(ordered, shown, of_evaluation, by_token)


def shared_beginning(prompts: Sequence[Messages]) -> Messages:
    """Return the messages with which every prompt begins.

    A prompt's last message never counts, and a single prompt shares nothing.
    """
    if len(prompts) < 2:
        return []
    length = min(len(prompt) for prompt in prompts) - 1
    first = prompts[0]
    while length > 0 and any(prompt[:length] != first[:length] for prompt in prompts):
        length -= 1
    return first[: max(0, length)]


def with_parts(card: Card) -> list[Card]:
    """Return a card and those of its parts, at any depth."""
    return [card, *(one for part in card.parts for one in with_parts(part))]


def _beginnings_html(shared: Shared) -> str:
    found: list[tuple[str, Messages, list[str]]] = []
    for (where, who), beginning in sorted(shared.beginnings.items(), key=lambda item: item[0]):
        same = [who for place, known, who in found if place == where and known == beginning]
        if same:
            same[0].append(who)
        else:
            found.append((where, beginning, [who]))
    return "".join(
        f'<details class="fold shared"><summary>Shared beginning of every prompt of '
        f"{escape(' and '.join(several))} in {escape(where)} ({counted(len(beginning), 'message')})</summary>"
        f"{_messages_html(beginning)}</details>"
        for where, beginning, several in found
    )


def _controls_html(cards: Sequence[Card], shared: Shared, unit: str) -> str:
    """Return what filters the cards, and what colours their tokens if some are shown by token."""
    acting = {name for card in cards for name in _names_in(card)}
    seats = {place: name for place, name in enumerate(shared.names) if name in acting}
    outcomes = {outcome for card in cards for outcome in card.outcomes.values()}
    kinds = [kind for kind in KINDS if any(kind in card.kinds for card in cards)]
    parts = ['<input type="search" placeholder="contains the words">']
    parts += [_choice_html("seat", {"": "any seat or role", **seats})]
    if outcomes:
        told = {one: words for one, words in _OUTCOMES.items() if one in outcomes}
        parts.append(_choice_html("outcome", {"": "any outcome", **told}))
    parts += [_range_html("reward", "reward"), _range_html("length", f"length in {unit}")]
    parts += [
        f'<label><input type="checkbox" value="{escape(kind)}"> {escape(kind)}</label>' for kind in kinds
    ]
    if shared.by_token.collected:
        colours = {"": "nothing", "logprob": "log-probability"}
        if any(_advantage_of(step, shared) is not None for card in cards for step in _steps_of(card)):
            colours["advantage"] = "advantage"
        parts.append(f"<label>colour tokens by {_choice_html('colours', colours)}</label>")
        parts.append('<span class="scale"></span>')
    return f'<div class="filter">{"".join(parts)}<span class="muted shown"></span></div>'


def _choice_html(name: str, options: Mapping[Any, str]) -> str:
    shown = "".join(
        f'<option value="{escape(str(value))}">{escape(words)}</option>' for value, words in options.items()
    )
    return f'<select name="{name}">{shown}</select>'


def _range_html(name: str, unit: str) -> str:
    ends = "".join(
        f'<input type="number" step="any" name="{name}-{end}" placeholder="{end}" aria-label="{unit} {end}">'
        for end in ("from", "to")
    )
    return f"<label>{unit} {ends}</label>"


def _unit(cards: Sequence[Card]) -> str:
    """Return in what the length of all that models wrote in a card is counted."""
    steps = (step for card in cards for step in _steps_of(card))
    return "tokens" if all(step.completion_token_ids for step in steps) else "words"


def _steps_of(card: Card) -> list[Step]:
    return [turn.step for one in with_parts(card) for turn in one.turns if turn.step is not None]


def _facts_of(card: Card, shared: Shared, unit: str) -> Json:
    """Return what the page's script filters a card by; a seat is its place among the names."""
    acting, rewards = _names_in(card), card.mean_rewards | card.rewards
    return {
        "kinds": card.kinds,
        "length": sum(
            len(step.written.split() if unit == "words" else step.completion_token_ids or [])
            for step in _steps_of(card)
        ),
        "seats": {
            place: {"reward": rewards.get(name), "outcome": card.outcomes.get(name)}
            for place, name in enumerate(shared.names)
            if name in acting
        },
    }


def _names_in(card: Card) -> set[str]:
    """Return the seats or roles that earn something or speak in a card or its sub-episodes."""
    return {
        name for one in with_parts(card) for name in (*one.rewards, *(turn.speaker for turn in one.turns))
    }


def _summary_html(card: Card, shared: Shared, *, with_title: bool = True) -> str:
    """Return a card in one line: title, players, the only or last answer, rewards, counts and remarks."""
    parts = [f'<span class="game-name">{escape(card.title)}</span>'] if card.title and with_title else []
    if card.players:
        players = (_name_html(seat, shared, f"{seat}, {who}") for seat, who in card.players.items())
        parts.append(f"{escape(card.where)} {' against '.join(players)}")
    calls = [turn for turn in card.turns if turn.step is not None]
    if calls and not card.players and (len(calls) == 1 or not (card.title and with_title)):
        answer = in_a_line(calls[-1].text) or "(nothing)"
        parts.append(f'{_name_html(calls[-1].speaker, shared)} <span class="line">{escape(answer)}</span>')
    alone = len(calls) == 1 and [*card.rewards] == [calls[0].speaker]
    parts.append(_rewards_html(card.rewards, shared, named=not alone))
    parts.append(f'<span class="muted">{escape(card.counts)}</span>')
    parts += [badge_html(*mark) for mark in card.marks]
    return " ".join(filter(None, parts))


def _rewards_html(rewards: Mapping[str, float], shared: Shared, *, named: bool = True) -> str:
    return " ".join(
        f'<span class="chip">{f"{_name_html(name, shared)} " * named}{_signed(reward)}</span>'
        for name, reward in rewards.items()
    )


def _name_html(name: str, shared: Shared, text: str = "") -> str:
    return f'<span class="seat seat-{shared.colour(name)}">{escape(text or name)}</span>'


def _body_html(card: Card, shared: Shared) -> str:
    parts = [f'<div class="turns">{_facts_html(card.facts)}']
    parts += [_turn_html(turn, card, shared) for turn in card.turns[:MAX_TURNS]]
    if len(card.turns) > MAX_TURNS:
        parts.append(f'<p class="muted">{len(card.turns) - MAX_TURNS} more turns are not shown.</p>')
    if card.error:
        parts.append(f'<p class="bad">{escape(_clip(card.error))}</p>')
    parts += [_facts_html(card.outcome), _parts_html(card, shared)]
    return "".join([*parts, f'<p class="muted">{escape(card.origin)}</p>' * bool(card.origin), "</div>"])


def _facts_html(facts: Mapping[str, Any]) -> str:
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
        return f"{_fold(escape(head))}<pre>{escape(_clip(text))}</pre></details>"
    short = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return f'<span class="said">{escape(short)}</span>'


def _turn_html(turn: CardTurn, card: Card, shared: Shared) -> str:
    only = f'<span class="chip">to {_name_html(turn.to, shared)} only</span>' if turn.to else ""
    if not turn.speaker:
        return f'<div class="turn told"><span class="label">environment</span> {only}{_said(turn.text)}</div>'
    who = f"{turn.speaker}, {turn.player}" if turn.player else turn.speaker
    head = [f'<span class="muted">{turn.number}</span>', _name_html(turn.speaker, shared, who), only]
    if turn.action is not None:
        head.append(f'<code class="action">{escape(_clip(turn.action))}</code>')
    head += [badge_html(*mark) for mark in turn.marks]
    if turn.step is not None:
        facts = ", ".join(filter(None, (f"version {turn.step.policy_version}", tokens_text(turn.step))))
        head.append(f'<span class="muted right">{facts}</span>')
    parts = [
        f'<div class="turn edge-{shared.colour(turn.speaker)}">'
        f'<div class="turn-head">{" ".join(filter(None, head))}</div>',
        _heard_html(turn.heard),
        _answer_html(turn, shared),
    ]
    if turn.step is not None:
        parts += [_stages_html(turn.step, shared), _prompt_html(turn, turn.step, card, shared)]
    return "".join([*parts, "</div>"])


def _answer_html(turn: CardTurn, shared: Shared) -> str:
    """Return an answer as text, and a place for it by token."""
    parts = [
        _reasoning_html(turn),
        "".join(f'<div class="label">{escape(name)}</div>{_said(text)}' for name, text in turn.parts.items()),
        "" if turn.parts or turn.text == turn.action else _said(turn.text),
    ]
    if turn.step is None:
        return "".join(parts)
    answer = turn.step.completion_text
    if not turn.parts and answer.strip() != turn.text.strip():
        parts.append(f'<div class="label">answer</div><pre class="answer">{escape(_clip(answer))}</pre>')
    place = shared.by_token.add(turn.step, _advantage_of(turn.step, shared))
    if place is None:
        return "".join(parts)
    return f'<div class="as-text">{"".join(parts)}</div><div class="by-token" data-answer="{place}"></div>'


def _said(text: str) -> str:
    nothing = '<div class="muted">(nothing)</div>'
    return f'<div class="said">{escape(_clip(text))}</div>' if text.strip() else nothing


def _reasoning_html(turn: CardTurn) -> str:
    if not turn.reasoning.strip():
        return ""
    size = counted(len(turn.reasoning.split()), "word")
    return f"{_fold(f'Thought ({size})')}<pre>{escape(_clip(turn.reasoning))}</pre></details>"


def _heard_html(heard: str) -> str:
    """Return the end of an observation and, if that is not all of it, the whole observation folded."""
    if not heard:
        return ""
    glance = "\n".join(heard.splitlines()[-GLANCE_LINES:])[-GLANCE_CHARS:]
    if len(glance) >= len(heard):
        return f'<pre class="observation">{escape(glance)}</pre>'
    whole = f"{_fold('Whole observation')}<pre>{escape(_clip(heard))}</pre></details>"
    return f'<pre class="observation">…\n{escape(glance)}</pre>{whole}'


def _stages_html(step: Step, shared: Shared) -> str:
    recorded = step.info.get("reward_stages")
    stages: dict[str, Any] = recorded if isinstance(recorded, dict) else {"": step.reward}
    if _advantage_of(step, shared) is not None:
        stages = {**stages, "advantage": step.advantage}
    shown = [
        f"{escape(str(name).replace('_', ' '))} <b>{_signed(value)}</b>" for name, value in stages.items()
    ]
    return f'<div class="stages"><span class="label">reward</span> {" → ".join(shown)}</div>'


def _advantage_of(step: Step, shared: Shared) -> float | None:
    """Return an advantage if one is known; evaluations have none."""
    return step.advantage if math.isfinite(step.advantage) and not shared.of_evaluation else None


def _prompt_html(turn: CardTurn, step: Step, card: Card, shared: Shared) -> str:
    """Return the folded prompt, without the messages shown elsewhere on the page."""
    if not step.prompt:
        return ""
    known = len(shared.beginnings.get((card.where, turn.speaker), []))
    note = f"After the beginning shown at the top ({counted(known, 'message')}):"
    if turn.known > known:
        known, note = turn.known, f"Continues the prompt of turn {turn.earlier}:"
    tokens = f", {counted(len(step.prompt_token_ids), 'token')}" if step.prompt_token_ids else ""
    head = f"Prompt ({counted(len(step.prompt), 'message')}{tokens})"
    said = f'<p class="muted">{note}</p>' if known else ""
    return f"{_fold(head)}{said}{_messages_html(step.prompt[known:])}</details>"


def _messages_html(messages: Messages) -> str:
    return "".join(
        f'<div class="message"><div class="label">{escape(message["role"])}</div>'
        f"<pre>{escape(_clip(message['content']))}</pre></div>"
        for message in messages
    )


def _parts_html(card: Card, shared: Shared) -> str:
    if not card.parts:
        return ""
    with_title = len({part.title for part in card.parts}) > 1
    shown = "".join(
        f'<details class="child"><summary>{_summary_html(part, shared, with_title=with_title)}</summary>'
        f"{_body_html(part, shared)}</details>"
        for part in card.parts[:MAX_PARTS]
    )
    hidden = len(card.parts) - MAX_PARTS
    rest = f'<p class="muted">{counted(hidden, "more sub-episode")} not shown.</p>' if hidden > 0 else ""
    means = card.mean_rewards
    mean = f" with mean reward {_rewards_html(means, shared)}" if means else ""
    head = f'<p class="muted">{counted(len(card.parts), "sub-episode")}{mean}</p>'
    return f'<div class="children">{head}{shown}{rest}</div>'


def _fold(head: str) -> str:
    return f'<details class="fold"><summary>{head}</summary>'


def _signed(value: Any) -> str:
    """Return a signed number with three significant digits, zero without a sign; else escaped text."""
    if not isinstance(value, int | float):
        return escape(str(value))
    return f"{value:+.3g}" if value else "0"


def _clip(text: str) -> str:
    if len(text) <= MAX_TEXT:
        return text
    return f"{text[:MAX_TEXT]}\n[{len(text) - MAX_TEXT:,} more characters]"
