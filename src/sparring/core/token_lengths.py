"""How long texts may be, by their characters: counting those is fast, tokenising takes seconds."""

from typing import Any


def most_characters_of_a_token(tokenizer: Any) -> int:
    """Return the maximum number of characters in a single token.

    In vocabularies of bytes, each letter stands for a byte, and a character has one or more bytes. If a row
    of unknown characters is one token, there is no maximum, and a very large number is returned.
    """
    unknown = "\U0010fffd" * 8
    if len(tokenizer(unknown, add_special_tokens=False).input_ids) < len(unknown):
        return 2**40
    return max(map(len, tokenizer.get_vocab()))
