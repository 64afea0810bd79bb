"""Analysers: Yes or No questions about the messages of a run's proofs."""
