"""docs/errors.md is made of tests/errors.txt: python tests/error_page.py > docs/errors.md

The text is the page, but for its examples. One is up to three lines: ``? `` and what is wrong, ``$ `` and the
command, and the line that it prints. tests/test_bad_input.py runs the commands.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

SOURCE = Path(__file__).parent / "errors.txt"
PAGE = Path(__file__).parents[1] / "docs" / "errors.md"


@dataclass(frozen=True)
class Example:
    """A mistake, the command that makes it, and what it says; without a command, what happens in a run."""

    what: str
    command: str
    line: str

    @property
    def row(self) -> str:
        """The row of the page's table."""
        cells = [self.what, *(f"`{one}`" for one in (self.command, self.line) if one)]
        return f"| {' | '.join(cells)} |"


def parts() -> Iterator[str | Example]:
    """Yield the paragraphs of the text and its examples, in order."""
    for block in SOURCE.read_text().split("\n\n"):
        if not block.startswith("? "):
            yield block.strip("\n")
            continue
        what, *commands, line = block.strip("\n").split("\n")
        (command,) = commands or [""]
        yield Example(what.removeprefix("? "), command.removeprefix("$ "), line)


def examples() -> list[Example]:
    """Return the examples with a command."""
    return [one for one in parts() if isinstance(one, Example) and one.command]


def page() -> str:
    """Return the page."""
    blocks = []
    for is_table, found in groupby(parts(), lambda one: isinstance(one, Example)):
        entries = list(found)
        if not is_table:
            blocks += entries
            continue
        head = ["what is wrong", "command"] if entries[0].command else ["what happens"]
        head.append("what it says")
        lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}", *[one.row for one in entries]]
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks) + "\n"


if __name__ == "__main__":
    print(page(), end="")
