"""The canary: a fixed text whose log-probability shows which weights answer.

The trainer of an adapter and the engine that serves it each compute the log-probability of the text's tokens;
see ``learning.delivery`` and ``inference.delivery``.
"""

CANARY_TEXT = "The canary sang in the mine: 7 times at dawn, 12 times at noon, and once more before the dark."
MAX_CANARY_TOKENS = 96
"""At most this many tokens of the text are used, without special tokens and without a chat template."""
