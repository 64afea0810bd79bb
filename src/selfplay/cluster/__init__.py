"""A run on a Ray cluster: plain services, and the Ray actors that run them."""

import selfplay.training  # noqa: F401 - its environment variables must be set before torch is imported
