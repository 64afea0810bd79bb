"""Blocks of the documentation."""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]


DOCS = ROOT / "docs"


MADE_FROM_SOURCE = ("configuration.md", "errors.md")  # these have tests of their own


PAGES = [ROOT / "README.md", ROOT / "AGENTS.md", ROOT / "CHANGELOG.md"]


PAGES += sorted(path for path in DOCS.glob("*.md") if path.name not in MADE_FROM_SOURCE)


FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


FILE_NAME = re.compile(r'(?:# |""")([\w-]+\.(?:py|toml))\b')


@dataclass(frozen=True)
class Block:
    """A fenced block; ``line`` is where its text begins."""

    page: Path
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.page.name}:{self.line}"


def blocks(language: str) -> list[Block]:
    return [
        Block(page, page.read_text()[: match.start(2)].count("\n") + 1, match[2])
        for page in PAGES
        for match in FENCE.finditer(page.read_text())
        if match[1] == language
    ]


def save_named_blocks(page: Path, directory: Path) -> None:
    """Write the blocks of a page whose first line begins with the name of a file into that file."""
    for block in blocks("python") + blocks("toml"):
        name = FILE_NAME.match(block.text)
        if name and block.page == page:
            (directory / name[1]).write_text(block.text)
