"""What the commands do: evaluate, play, serve, list, compare, export."""

import sparring.run  # noqa: F401 - its environment variables must be set before torch is imported
