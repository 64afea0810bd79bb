"""The collector: keeps games in flight, accounts for each."""
