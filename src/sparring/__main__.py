"""Run the command line as ``python -m sparring``."""

from sparring.cli.main import run

run()
