"""Who is in the pool, how strong they are, and who plays next."""
