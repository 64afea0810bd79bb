"""Reads back what a run recorded, and says what of it is worth a warning or a chart."""
