"""A run on a Ray cluster: services, engines, learners."""

import sparring.run  # noqa: F401 - its environment variables must be set before torch is imported
