"""Episodes that are conversations: debates, and proposers with solvers."""
