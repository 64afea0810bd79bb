"""What stands out in a run: each diagnosis is a function of what the run recorded."""
