"""selfplay: train language models by letting them play each other."""

__version__ = "0.1.0"
