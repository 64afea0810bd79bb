"""A package that cannot be imported."""

raise RuntimeError("no account here\nsecond line")
