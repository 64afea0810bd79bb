"""What learner and engine share of forward passes: sizes that bound their memory, and devices."""

ROWS_AT_ONCE = 256
"""Tokens whose logits are computed together: a row has a float32 for each word of the vocabulary."""
STORED_LOGITS_BYTES = 2**27
"""Logits that the embedded engine keeps for contexts that may return; it computes others again."""

READ_KEYS = 2**16
"""Keys that one batch of the engine's attention reads: a layer's keys and values are copied for each."""

FLASH_DEVICES = frozenset({"cuda"})
"""Types of devices whose fused attention needs no mask for sequences that continue others, and takes a mask
only if each query head has a key head of its own."""
