"""How long texts may be, by their characters: counting those is fast, tokenising takes seconds."""

from typing import Any


def most_characters_of_a_token(tokenizer: Any) -> int:
    """Return the maximum number of characters in a single token; very large if there is no maximum, because a
    row of unknown characters is one token."""
    unknown = "\U0010fffd" * 8
    if len(tokenizer(unknown, add_special_tokens=False).input_ids) < len(unknown):
        return 2**40
    return max(map(len, tokenizer.get_vocab()))
