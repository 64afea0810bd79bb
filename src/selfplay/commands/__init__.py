"""What the commands do: evaluate, play, serve, list and compare runs, and export."""

import selfplay.training  # noqa: F401 - its environment variables must be set before torch is imported
