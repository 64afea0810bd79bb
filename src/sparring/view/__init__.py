"""What a run recorded, read back: warnings and charts."""
