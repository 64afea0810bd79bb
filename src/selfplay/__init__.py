"""selfplay: train language models by letting them play each other. Begin with ``training/trainer.py``."""

__version__ = "0.1.0"
