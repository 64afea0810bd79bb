"""Sizes in forward passes that learner and engine share, and the formulas of the memory they need."""

ROWS_AT_ONCE = 256
"""Tokens whose logits are computed together: a row has a float32 for each word of the vocabulary."""
STORED_LOGITS_BYTES = 2**27
"""Logits that the embedded engine keeps for contexts that may return; it computes others again."""

FLASH_DEVICES = frozenset({"cuda"})
"""Types of devices whose fused attention needs no mask for sequences that continue others, and takes a mask
only if each query head has a key head of its own."""
