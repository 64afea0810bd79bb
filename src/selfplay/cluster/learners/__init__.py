"""Learners on a cluster."""
