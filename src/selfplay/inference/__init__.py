"""Where tokens come from."""
