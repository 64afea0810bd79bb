"""The games of a run: who plays next, what became of each, and the buffer that they fill."""
