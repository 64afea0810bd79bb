"""The collector: keeps games in flight and accounts for each of them."""
