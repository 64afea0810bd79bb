"""The limits on what an arena and its engine do at once, where nobody sets others."""

MAX_CALLS = 4096
"""Model calls in flight."""
EPISODE_TIMEOUT = 3600.0
"""Seconds for one attempt at an episode."""
RETRIES = 2
"""Further attempts at an episode that failed for a transient reason."""
MAX_QUEUE = 16_384
"""Requests that wait or are answered in an engine."""
MAX_CACHED_TOKENS = 32_768
"""Tokens that the embedded engine keeps computed."""
