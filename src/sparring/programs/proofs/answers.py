"""How an agent's text is read: as a decision, or as messages to channels."""

import re

from sparring.programs.proofs.decisions import NO_DECISION, SCALES, Decision, read_decision, stated
from sparring.programs.proofs.protocol import Protocol, Turn
from sparring.programs.proofs.state import RoundAnswer


def read_answer(
    protocol: Protocol, turn: Turn, round_number: int, y: int, text: str, *, cut: bool = False
) -> RoundAnswer:
    """Return what ``text`` says.

    Only a verifier's text is read for a decision, and only in a round in which one counts. A text that says
    ``Decision:`` and continues with anything but an entry of the scale is invalid, and so are a decision that
    the token limit cut (10 may have become 100), an empty message, and messages to several channels that are
    not one for each.

    Args:
        protocol: the protocol.
        turn: the agent and the channels that it may write to.
        round_number: the round, from 0.
        y: the claim's truth, which a forced guess may need.
        text: the agent's text.
        cut: whether the token limit ended it.
    """
    decision: Decision | None = NO_DECISION
    if round_number in protocol.deciding_rounds and protocol.is_verifier(turn.agent):
        last = is_last_turn(protocol, turn.agent, round_number)
        decision = read_decision(text, SCALES[protocol.scale], bare=last)
        if decision is not None and decision.is_made and cut:
            decision = None
        if protocol.settings.force_guess is not None:
            decision = _forced(protocol.settings.force_guess, y)
        if decision is None:
            return _answer(text, {}, NO_DECISION, valid=False, cut=cut)
        if decision.is_made or last:
            return _answer(text, {}, decision, valid=True, cut=cut)
    messages = split_channels(text, turn.channels)
    return _answer(text, messages or {}, NO_DECISION, valid=messages is not None, cut=cut)


def is_last_turn(protocol: Protocol, agent: str, round_number: int) -> bool:
    """Return whether a verifier has no later turn."""
    return not any(later > round_number for later in protocol.rounds_of(agent))


def legal_answers(protocol: Protocol, agent: str, round_number: int) -> list[str]:
    """Return the answers from which a verifier must choose in its last turn; none where any text will do."""
    if not protocol.is_verifier(agent) or not is_last_turn(protocol, agent, round_number):
        return []
    return [stated(entry) for entry in SCALES[protocol.scale]]


def split_channels(text: str, channels: tuple[str, ...]) -> dict[str, str] | None:
    """Return the message to each channel, or ``None`` if the text is not of the right form.

    The text to a single channel is the message. Messages to several channels each begin on a new line with
    the channel's name and a colon; there is exactly one for each channel, and nothing before the first.
    """
    if len(channels) == 1:
        return {channels[0]: text.strip()} if text.strip() else None
    names = "|".join(map(re.escape, channels))
    flags = re.IGNORECASE | re.MULTILINE | re.ASCII  # otherwise the long s is an s, but not in lower case
    headers = list(re.finditer(rf"^[ \t*_#>-]*({names})[*_ \t]*:[*_]*", text, flags))
    if not headers or text[: headers[0].start()].strip():
        return None
    ends = [header.start() for header in headers[1:]] + [len(text)]
    by_lower = {name.lower(): name for name in channels}
    parts = [
        (by_lower[header[1].lower()], text[header.end() : end].strip())
        for header, end in zip(headers, ends, strict=True)
    ]
    messages = dict(parts)
    complete = len(parts) == len(messages) == len(channels) and all(messages.values())
    return {name: messages[name] for name in channels} if complete else None


def _forced(guess: str, y: int) -> Decision:
    accepts = y == 1 if guess == "y" else guess == "one"
    return Decision("accept", 1.0) if accepts else Decision("reject", -1.0)


def _answer(
    text: str, messages: dict[str, str], decision: Decision, *, valid: bool, cut: bool
) -> RoundAnswer:
    return {
        "messages": messages,
        "raw": text,
        "decision": decision.to_dict(),
        "valid": valid,
        "retries": 0,
        "cut": cut,
    }
