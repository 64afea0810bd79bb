"""The policy model and everything that improves it."""

import logging

# Where it is installed, peft imports bitsandbytes, which warns that it finds no faster kernels for CPUs.
logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)
