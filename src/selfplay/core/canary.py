"""The canary: a fixed text whose log-probability tells whose weights answer.

Who made an adapter and who serves it each compute the log-probability of its tokens; see
``learning.delivery`` and ``inference.delivery``.
"""

CANARY_TEXT = "The canary sang in the mine: 7 times at dawn, 12 times at noon, and once more before the dark."
MAX_CANARY_TOKENS = 96
"""The text's tokens without special ones, and no chat template; at most this many of them."""
