"""Ladders: games, recipes, rules of choosing opponents and seeds from one file, measured side by side.

``file.py`` reads the file, ``cells.py`` makes the run of each combination, ``running.py`` plays them,
``results.py`` writes what came of it, ``standings.py`` sums it up, and ``page.py`` shows it.
"""
