"""The sessions of the environments in ``own_environments.py``, as a server would count them.

A test imports this module, and so does the file of the environments, which runs as a module of its own.
"""

import asyncio
from collections import Counter

counts: Counter[str] = Counter()
"""How many sessions were ``opened`` and ``closed``, and the ``most`` that were open at once."""
steps_wait: list[asyncio.Event] = []
"""While there is an event here, steps wait for it."""
closes_wait: list[asyncio.Event] = []
"""While there is an event here, sessions wait for it before they close."""
events: list[tuple[str, dict[int, float]]] = []
"""What ``Wages`` did: ``acts`` with whom it asked, and ``paid`` with what it paid."""
