"""Engines on a cluster: their settings, the host of a model, the service and its client."""
