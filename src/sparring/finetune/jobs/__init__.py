"""Fine-tuning jobs of the server: data files, jobs, their queue, training."""
