"""Episodes that are conversations: debate, proposer and solvers."""
