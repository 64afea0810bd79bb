"""Training through fine-tuning jobs: stages, providers, expert iteration, MALT."""
