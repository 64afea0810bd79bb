"""Screens of ``sparring watch``."""

import xml.etree.ElementTree as ElementTree

from sparring.view.watch.terminal_interface import TerminalInterface


def words_on(app: TerminalInterface) -> str:
    """Return all text on the screen, line by line."""
    root = ElementTree.fromstring(app.export_screenshot())
    lines: dict[float, list[tuple[float, str]]] = {}
    for element in root.iter("{http://www.w3.org/2000/svg}text"):
        place = float(element.get("x", "0")), element.text or ""
        lines.setdefault(float(element.get("y", "0")), []).append(place)
    rows = ("".join(text for _, text in sorted(found)) for _, found in sorted(lines.items()))
    return "\n".join(rows).replace("\xa0", " ")


async def look(app, pilot):
    await app.workers.wait_for_complete()
    await app.look()
    await pilot.pause()
    await pilot.pause()
