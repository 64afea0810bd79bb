"""The limits on what an arena runs, where nobody sets others."""

MAX_CALLS = 4096
"""Model calls in flight."""
EPISODE_TIMEOUT = 3600.0
"""Seconds for one attempt at an episode."""
RETRIES = 2
"""Further attempts at an episode that failed for a transient reason."""
