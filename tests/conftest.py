"""Settings of all tests."""

from hypothesis import settings

# A limit on the time of an example would be a timed assertion, which a busy machine fails.
settings.register_profile("no-deadline", deadline=None)
settings.load_profile("no-deadline")
