"""A run in the terminal, live."""
