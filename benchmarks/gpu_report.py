"""The page that gpu_check.py writes, a section at a time: what it has is not measured again."""

import contextlib
import io
import re
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter

FAILED = "FAILED: "


@dataclass(frozen=True)
class Part:
    """A section of the page: ``measure`` prints it."""

    name: str
    title: str
    measure: Callable[[], None]


@dataclass
class Report:
    """The page at ``path``; one with another heading, so of another machine, is begun again."""

    path: Path
    heading: str
    sections: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        text = self.path.read_text() if self.path.is_file() else ""
        heading, *sections = re.split(r"^## ", text, flags=re.MULTILINE)
        if heading.strip() == self.heading:
            parts = (section.partition("\n") for section in sections)
            self.sections = {title: body.strip() for title, _, body in parts}

    def has(self, part: Part) -> bool:
        """Whether a part was measured and did not fail."""
        return part.title in self.sections and FAILED not in self.sections[part.title]

    def failed(self) -> list[str]:
        """Return the titles of the sections that failed."""
        return [title for title, text in self.sections.items() if FAILED in text]

    def measure(self, part: Part) -> None:
        """Measure a part and write the page; on the terminal, say how long it took.

        An error is a result like others and ends only this part: time on a GPU is too rare to lose the rest.
        """
        started, text = perf_counter(), io.StringIO()
        with contextlib.redirect_stdout(text):
            try:
                part.measure()
            except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever a GPU raises is a result
                print(f"{FAILED}{type(error).__name__}: {error}")
                traceback.print_exc()
        self.sections[part.title] = text.getvalue().strip()
        sections = "".join(f"\n## {title}\n\n{text}\n" for title, text in self.sections.items())
        self.path.write_text(f"{self.heading}\n{sections}")
        print(f"{part.title}: {perf_counter() - started:.0f} s", file=sys.stderr)
