"""Assembly: a run in one process, its directory, its resume."""

import os

# Read when torch is imported. Threads that spin while they wait take the cores from whoever works: on two
# shared cores a forward pass was measured at twenty times its time.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
