"""What the commands do: evaluate, play, serve, list, compare, export."""

import selfplay.training  # noqa: F401 - its environment variables must be set before torch is imported
