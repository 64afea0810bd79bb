"""Credit assignment: turns rewards into the advantage of every step."""
