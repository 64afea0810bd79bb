"""The specifications' own names where ours differ. It uses what is public, and nothing uses it."""
