"""What stands out in a run, or in the runs of a PSRO, as text and as JSON."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.text import Text

from sparring.core.files import check_kinds
from sparring.core.text import counted, printable
from sparring.run.run_layout import PSRO_FILE
from sparring.run.run_names import find_run, paths_of
from sparring.view.findings.diagnosis import findings_of
from sparring.view.findings.finding import Finding
from sparring.view.findings.played import PlayedGames, read_played
from sparring.view.run_view import RunView
from sparring.view.source import RunDirectorySource, config_problem, read_to_end

FORMAT = 1
"""The version of the JSON; a field is added without a new one, and none is changed or removed."""
INDENT = 4
_STYLES = {"critical": "bold red", "warning": "yellow"}


@dataclass(frozen=True)
class Diagnosis:
    """A run as far as it was read, and what stands out in it, worst first."""

    run: RunView
    findings: list[Finding]

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON-able values."""
        return {
            "run": self.run.name,
            "updates": self.run.step,
            "total": self.run.total_steps,
            "running": self.run.in_use and not self.run.is_finished,
            "findings": [one.to_dict() for one in self.findings],
        }


def diagnose(name: str) -> list[Diagnosis]:
    """Return what stands out in a run, given by name or path; of a PSRO, in the run of each member.

    Raises:
        InputError: there is no such run, or it cannot be read.
        OSError: a file of its games cannot be read.
    """
    for path in paths_of(name):
        if (path / PSRO_FILE).is_file():
            members = [_diagnose(config.parent) for config in sorted(path.glob("*/config.toml"))]
            return [*_of_psro(path), *members]
    return [_diagnose(find_run(name))]


def _of_psro(path: Path) -> list[Diagnosis]:
    """Return a diagnosis if the configuration of a PSRO is damaged."""
    problem = config_problem(path / PSRO_FILE)
    view = RunView(path.resolve().name, damaged_evaluations=[f"{PSRO_FILE} ({problem})"])
    return [Diagnosis(view, findings_of(view))] if problem else []


def _diagnose(path: Path) -> Diagnosis:
    check_kinds(path)
    view = read_to_end(RunDirectorySource(path))
    played = read_played(path) if view.tuning is None else PlayedGames()
    return Diagnosis(view, findings_of(view, played))


def to_dict(diagnoses: list[Diagnosis]) -> dict[str, Any]:
    """Return the documented JSON."""
    healthy = not any(one.findings for one in diagnoses)
    return {"format": FORMAT, "healthy": healthy, "runs": [one.to_dict() for one in diagnoses]}


def print_diagnosis(diagnosis: Diagnosis, console: Console) -> None:
    """Print what stands out: each finding with its figure, where it was seen, and what to change."""
    console.print(_text(_head(diagnosis)))
    for finding in diagnosis.findings:
        for part in _lines(finding, diagnosis.run.turn):
            console.print(part)


def _head(diagnosis: Diagnosis) -> str:
    run, found = diagnosis.run, diagnosis.findings
    total = "" if run.total_steps is None else f" of {run.total_steps}"
    if not run.step and not found:
        return f"{run.name}: no {run.turn} yet, so there is nothing to say"
    stands = f"{counted(len(found), 'thing')} {'stands' if len(found) == 1 else 'stand'} out"
    return f"{run.name}, after {run.turn} {run.step}{total}: {stands if found else 'nothing stands out'}"


def _lines(finding: Finding, turn: str) -> Iterator[RenderableType]:
    yield Text()
    yield Text(f"{finding.severity}: ", _STYLES[finding.severity]).append(_text(finding.text))
    rows = {
        "seen": finding.where(turn),
        "do": finding.advice,
        "settings": ", ".join(finding.settings),
        "page": f"docs/{finding.page}" if finding.page else "",
    }
    for name, value in rows.items():
        if value:
            yield Padding(Text(f"{name}: ", "dim").append(_text(value)), (0, 0, 0, INDENT))


def _text(text: str) -> Text:
    return Text(printable(text, keep=""))
