"""Run the command line as ``python -m selfplay``."""

from selfplay.cli.main import run

run()
