"""Interactive proofs: a verifier judges claims by questioning provers that want to convince it."""
