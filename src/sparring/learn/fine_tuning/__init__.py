"""Fine-tuning jobs: an adapter trained on given answers or preferences, from examples to checkpoints."""
