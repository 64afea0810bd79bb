"""Buffers, reward transforms and the rollout log."""
