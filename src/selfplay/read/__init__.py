"""Reads back what a run recorded."""
