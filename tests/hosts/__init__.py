"""Hosts that share nothing, on one machine: namespaces of Linux with a network of our own between them.

``network.py`` starts and stops them, ``host.py`` is what a test sees of one, ``inside.py`` the first process
of each, and ``wire.py`` the process that carries the packets; ``nodes.py`` makes them a Ray cluster.
"""
