"""The command line: thin commands over ``runtime``."""
