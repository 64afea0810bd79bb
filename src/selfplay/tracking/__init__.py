"""Metrics, sinks and the report."""
