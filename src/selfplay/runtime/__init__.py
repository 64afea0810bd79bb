"""Assembly: a run in one process, its directory, its resume."""
