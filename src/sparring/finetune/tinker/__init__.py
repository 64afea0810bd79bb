"""A training API: the wire of Tinker's SDK, 0.38, over this process's learners and engine."""
