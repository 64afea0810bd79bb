"""Renders interactive proofs: the claim, what was said, and the verdict beside the truth."""

from html import escape

from selfplay.read.episodes import LoggedEpisode
from selfplay.read.numbers import counted
from selfplay.read.proofs import Proof, ProofTurn
from selfplay.report.filter import (
    CLAIM_RIGHT,
    CLAIM_WRONG,
    CUT,
    NO_VERDICT,
    VERDICT_RIGHT,
    VERDICT_WRONG,
    reward_tags,
)
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


def proof_html(episode: LoggedEpisode, proof: Proof, shared: Shared, *, unfolded: bool) -> str:
    """Return one foldable proof, with the tags that the controls filter by. All its text is escaped."""
    tags = reward_tags(proof.rewards, shared.players)
    tags.append((CLAIM_RIGHT if proof.is_true else CLAIM_WRONG)[0])
    tags.append(_verdict_tag(proof)[0])
    if any(turn.is_cut for turn in proof.turns):
        tags.append(CUT[0])
    return (
        f'<details class="game" data-tags="{" ".join(tags)}"{" open" if unfolded else ""}>'
        f"<summary>{_summary_html(proof, shared)}</summary>{_body_html(episode, proof, shared)}</details>"
    )


def _verdict_tag(proof: Proof) -> tuple[str, str]:
    if proof.verdict not in ("accept", "reject"):
        return NO_VERDICT
    return VERDICT_RIGHT if proof.is_right else VERDICT_WRONG


def _summary_html(proof: Proof, shared: Shared) -> str:
    """Return a proof in one line: the claim, the verdict beside the truth, and the rewards."""
    style = "good" if proof.is_right else "bad" if proof.verdict in ("accept", "reject") else "warn"
    rewards = " ".join(
        f'<span class="chip">{role_html(agent, shared)} {signed(reward) if reward else "0"}</span>'
        for agent, reward in proof.rewards.items()
    )
    return (
        f'<span class="game-name">{escape(in_a_line(proof.claim))}</span> '
        f'<span class="badge {style}">{escape(proof.outcome)}; the claim is {proof.truth}</span> {rewards} '
        f'<span class="muted">{counted(len(proof.turns), "answer")}</span>'
    )


def _body_html(episode: LoggedEpisode, proof: Proof, shared: Shared) -> str:
    facts = {"question": proof.question, "claim": proof.claim, "truth": f"the claim is {proof.truth}"}
    facts |= {f"{agent} argues for": stance for agent, stance in proof.stances.items()}
    rows = "".join(
        f'<div class="label">{escape(name)}</div><div><span class="said">{escape(clip(text))}</span></div>'
        for name, text in facts.items()
    )
    turns = "".join(
        _turn_html(turn, episode.rollout.episode_type, shared) for turn in proof.turns[:MAX_TURNS]
    )
    branches = f"; the first of {proof.ends} branches" if proof.ends > 1 else ""
    origin = f"{episode.rollout.id or 'no id'}{branches}"
    return (
        f'<div class="turns"><div class="facts">{rows}</div>{turns}'
        f'<p class="muted">{escape(origin)}</p></div>'
    )


def _turn_html(turn: ProofTurn, episode_type: str, shared: Shared) -> str:
    """Return one answer: the agent, its messages or its decision, and the folded prompt."""
    marks = []
    if turn.decided:
        marks.append(f'<span class="badge">decides: {escape(in_a_line(turn.decided))}</span>')
    if not turn.is_valid:
        marks.append('<span class="badge bad">invalid</span>')
    if turn.retries:
        marks.append(f'<span class="badge warn">{counted(turn.retries, "invalid answer")} before</span>')
    if turn.is_cut:
        marks.append('<span class="badge warn">cut at the token limit</span>')
    tokens = f'<span class="muted right">{tokens_text(turn.step)}</span>' if turn.step is not None else ""
    said = _messages_html(turn)
    prompt = ""
    if turn.step is not None:
        if turn.step.advantage:
            advantage = signed(turn.step.advantage)
            said += f'<div class="stages"><span class="label">advantage</span> <b>{advantage}</b></div>'
        known = len(shared.beginnings.get((episode_type, turn.agent), []))
        prompt = prompt_html(turn.step, known, f"After the {counted(known, 'message')} shown at the top:")
    return (
        f'<div class="turn edge-{shared.colours.get(turn.agent, 0)}"><div class="turn-head">'
        f'<span class="muted">{turn.round}</span> {role_html(turn.agent, shared)} {" ".join(marks)}{tokens}'
        f"</div>{said}{prompt}</div>"
    )


def _messages_html(turn: ProofTurn) -> str:
    """Return the message to each channel, or the whole answer if it is none."""
    if not turn.messages:
        text = turn.raw.strip()
        return (
            f'<div class="said">{escape(clip(text))}</div>' if text else '<div class="muted">(nothing)</div>'
        )
    named = len(turn.messages) > 1
    return "".join(
        (f'<div class="label">{escape(channel)}</div>' if named else "")
        + f'<div class="said">{escape(clip(text))}</div>'
        for channel, text in turn.messages.items()
    )
