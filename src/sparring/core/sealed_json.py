"""JSON files that hold a hash of themselves, so that no changed byte in them goes unnoticed."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

HASH = "sha256"
"""The field with the hash of all others."""


def sealed(content: Mapping[str, object]) -> bytes:
    """Return the only text that a sealed file with this content can have."""
    text = json.dumps(content).encode()
    whole = {**content, HASH: hashlib.sha256(text).hexdigest()}
    return json.dumps(whole, indent=1).encode() + b"\n"


def unsealed(text: bytes) -> dict[str, Any]:
    """Return the content of a sealed file.

    Raises:
        ValueError: the text is not one that :func:`sealed` returns.
    """
    try:
        content = json.loads(text)
        if not isinstance(content, dict) or HASH not in content:
            raise ValueError(f"there is no {HASH}")
        del content[HASH]
        if sealed(content) != text:
            raise ValueError(f"its {HASH} is that of another content")
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    return content
