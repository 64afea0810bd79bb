"""Providers of fine-tuning jobs: OpenAI's API and servers that speak it, and a dry run."""
