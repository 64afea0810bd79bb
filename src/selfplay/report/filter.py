"""Controls above games and conversations with which a reader hides entries that are not of interest.

The page's script shows an entry if it has every selected tag and contains the words. All tags are defined in
this module; a run's data never becomes a tag.
"""

from collections.abc import Iterable, Mapping
from html import escape

FAILED = ("failed", "failed")
CUT = ("cut", "cut at the token limit")
INVALID = ("invalid", "with an invalid move")
TURN_LIMIT = ("turns", "at the turn limit")
CLAIM_RIGHT = ("claim-right", "the claim is right")
CLAIM_WRONG = ("claim-wrong", "the claim is wrong")
VERDICT_RIGHT = ("verdict-right", "right verdict")
VERDICT_WRONG = ("verdict-wrong", "wrong verdict")
NO_VERDICT = ("no-verdict", "no verdict")
OF_PROOFS = (CLAIM_RIGHT, CLAIM_WRONG, VERDICT_RIGHT, VERDICT_WRONG, NO_VERDICT)
_SIGNS = (("p", "above 0"), ("z", "0"), ("n", "below 0"))


def reward_tags(rewards: Mapping[str, float], players: list[str]) -> list[str]:
    """Return a tag for each player with a reward: its index in ``players`` and the reward's sign."""
    return [
        f"r{place}{'p' if rewards[player] > 0 else 'n' if rewards[player] < 0 else 'z'}"
        for place, player in enumerate(players)
        if player in rewards
    ]


def filter_html(kinds: Iterable[tuple[str, str]], players: list[str]) -> str:
    """Return the controls: a search box, kinds (tag and label), and the sign of each player's reward."""
    boxes = "".join(
        f'<label><input type="checkbox" value="{escape(tag)}"> {escape(label)}</label> '
        for tag, label in kinds
    )
    options = "".join(
        f'<option value="r{place}{sign}">{escape(player)}: reward {words}</option>'
        for place, player in enumerate(players)
        for sign, words in _SIGNS
    )
    rewards = f'<select><option value="">any reward</option>{options}</select> ' if players else ""
    return (
        f'<div class="filter"><input type="search" placeholder="contains the words"> {rewards}{boxes}'
        '<span class="muted shown"></span></div>'
    )
