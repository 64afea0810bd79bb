"""One validated configuration, free of torch."""
