"""Episodes that are conversations: debates, proposers with solvers, interactive proofs."""
