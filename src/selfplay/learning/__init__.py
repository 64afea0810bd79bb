"""The policy model and everything that improves it."""
