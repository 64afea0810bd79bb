"""The loop of every run, its assembly, its directory and its resume."""

import os

# torch reads these when it is imported. Threads that spin while they wait take the cores from the threads
# that work: on two shared cores a forward pass was measured to take twenty times as long.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
