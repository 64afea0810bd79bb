"""What a run writes into its directory, by name: only that is ever deleted there. What else may be there."""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePath, PurePosixPath

from sparring.core import InputError
from sparring.core.adapters import MANIFEST_FILE, SAVED_FILES
from sparring.core.files import (
    EPOCH_FILE,
    LOCK,
    PARTIAL,
    finish_replacements,
    remove_directory,
    remove_partial,
)
from sparring.core.text import shell_command
from sparring.engine.paid_answers import ANSWERS_FILE
from sparring.evaluation.tournament_files import PAGE as TOURNAMENT_PAGE
from sparring.evaluation.tournament_files import SETTINGS as TOURNAMENT_FILE
from sparring.finetune.run_files import RunFiles

OWNER_FILE = ".tracker"
"""The tracker actor that owns the directory, of a run on Ray."""
GIVEN = "given"
SINKS = ("wandb", "tensorboard")
"""The folders in which other programs choose the names."""
BEFORE_TUNING = ("metadata.json", "hyper_params.json", "state.json")
"""What sparring finetune writes before its configuration; in other runs these are files of others."""
_FILES = re.compile(
    r"config\.toml|metrics\.jsonl|standings\.jsonl|sessions\.json|report\.html|"
    r"exploitability\.json|won\.jsonl|card\.(html|json)|"
    rf"{re.escape(LOCK)}|{re.escape(EPOCH_FILE)}|{re.escape(OWNER_FILE)}"
)
_IN_FOLDERS = {
    "rollouts": re.compile(r"step-\d{6,}\.jsonl"),
    "batches": re.compile(r"(batch|advantages)-\d{6,}\.jsonl\.gz"),
    "evaluation": re.compile(r"step-\d{6,}-.+\.jsonl?"),
    "tasks": re.compile(r"step-\d{6,}-.+\.jsonl?"),
}
_SAVED = {
    "checkpoints": r"step-\d{6,}",
    "best": r"step-\d{6,}",
    "population": r"(.+-)?ckpt-\d+",
    "learner": r"\d{6,}",
    "versions": r"\d{6,}",
    "averages": r"\d{6,}",
    "beginnings": r"\d{6,}",
}
"""The folders of saved directories, whose names are like this, or are so below one of a policy."""
_JOURNAL = re.compile(r"snapshot-\d+\.json|entries-\d+\.jsonl|format")
_READ_FIRST = ("ModelPool", "tracker")
"""Journals in the reverse of the order in which collectors tell of a game; that of the buffer is the last."""
OF_STORE = ".store"
"""The folder of what a host keeps for itself about the run's store."""


LEARNED = ("versions", "averages", "beginnings", "learner")
"""The folders of what only the learners of a run on Ray save and delete; a saved update is complete with the
last."""


def saved_directories(run: Path, folders: Iterable[str]) -> Iterator[Path]:
    """Yield the directories in these folders of a run that are saved completely, in order."""
    for folder in folders:
        for manifest in sorted((run / folder).rglob(MANIFEST_FILE)):
            directory = manifest.parent
            hidden = any(part.startswith(".") for part in directory.relative_to(run).parts)
            if not hidden and not (directory.parent / MANIFEST_FILE).is_file():
                yield directory


def growing_files(run: Path) -> Iterator[Path]:
    """Yield the files of a run that grow at their end."""
    for name in ("metrics.jsonl", "standings.jsonl"):
        if (run / name).is_file():
            yield run / name


def log_files(run: Path) -> Iterator[Path]:
    """Yield the files of a run that are written once."""
    for folder, names in _IN_FOLDERS.items():
        for path in sorted((run / folder).glob("*")):
            if names.fullmatch(path.name):
                yield path


def files_for_store(run: Path) -> dict[str, bool]:
    """Return the names of a run's complete files, and whether each grows at its end.

    Read in this order, they are what a kill may leave: the pool knows of no game that the buffer does not.
    """
    files = (path for path in run.rglob("*") if path.is_file() and not path.is_symlink())
    names = [name for path in files if is_for_store(name := path.relative_to(run).as_posix())]
    first = tuple(f"state/{journal}/" for journal in _READ_FIRST)
    names.sort(key=lambda name: (name.startswith("state/"), not name.startswith(first), name))
    growing = {*(path.name for path in growing_files(run)), ANSWERS_FILE}
    return {name: name in growing or "/entries-" in name for name in names}


def is_for_store(name: str) -> bool:
    """Return whether a path in a run is that of a complete file that a run writes, and another host needs.

    Answers that were paid for are among them, although no run deletes them as its own (:func:`is_written`).
    """
    file = PurePosixPath(name)
    if not (file.parts and name.isprintable()) or name == LOCK or name.endswith(PARTIAL):
        return False
    return not any(part.startswith((".", "/")) for part in file.parts[:-1]) and (
        name == ANSWERS_FILE or is_written(file)
    )


def foreign(run: Path) -> Iterator[Path]:
    """Yield the files in a run's directory, and the links to directories, that no run writes."""
    for path in run.rglob("*"):
        if (path.is_symlink() or not path.is_dir()) and not is_written(path.relative_to(run)):
            yield path


def is_written(file: PurePath) -> bool:
    """Return whether a run writes a file of this path in its directory."""
    top, name = file.parts[0], file.name
    if top == OF_STORE:
        return True
    if name.startswith(".") and name.endswith(PARTIAL):
        name = name[1:].removesuffix(PARTIAL)
    if len(file.parts) == 1:
        return _FILES.fullmatch(name) is not None
    if top in _IN_FOLDERS:
        return len(file.parts) == 2 and _IN_FOLDERS[top].fullmatch(name) is not None
    if top == "state":
        return _JOURNAL.fullmatch(name) is not None
    return top in (GIVEN, *_SAVED) and name in SAVED_FILES


def finish_writes(run: Path) -> None:
    """Delete what a kill left of unfinished writes in a run's directory, or finish it."""
    remove_partial(run, _FILES.pattern)
    for name, files in _IN_FOLDERS.items():
        remove_partial(run / name, files.pattern)
    for journal in (run / "state").glob("*"):
        remove_partial(journal, _JOURNAL.pattern)
    for name, directories in _SAVED.items():
        for folder in (run / name, *(run / name).glob("[!.]*")):
            finish_replacements(folder, directories)
            remove_partial(folder, directories)
    for copy in (run / GIVEN).glob(f".*{PARTIAL}"):
        remove_directory(copy)


def steps_in(directory: Path) -> list[int]:
    """Return the numbers of the directories whose names are like ``step-000012``, in order.

    One that holds only files of others is none: it is what was left when ours were deleted.
    """
    found = [path for path in directory.glob("step-*") if re.fullmatch(_SAVED["checkpoints"], path.name)]
    return sorted(int(path.name.removeprefix("step-")) for path in found if _is_saved(path))


def _is_saved(directory: Path) -> bool:
    files = [path.name for path in directory.rglob("*") if not path.is_dir()]
    return not files or not SAVED_FILES.isdisjoint(files)


def delete_after(directory: Path, step: int) -> None:
    """Delete the files and directories of later steps, whose names begin like ``step-000012``."""
    files = _IN_FOLDERS.get(directory.name)
    for path in list(directory.glob("*")):
        number = re.match(r"(?:step|batch|advantages)-(\d+)", path.name)
        if number is None or int(number[1]) <= step:
            continue
        if path.is_dir():
            remove_directory(path)
        elif files is not None and files.fullmatch(path.name):
            path.unlink()


PSRO_FILE, PSRO_PAGE = "psro.toml", "psro.html"
"""The configuration of a PSRO, in whose directory best responses are runs, and the page about it."""


def resume_command(run: Path) -> str:
    """Return the command that continues a run."""
    return shell_command(kind_of(run), "--resume", run)


def other_name_or_continue(run: Path) -> str:
    """Return what a user may do who has named a new run like this one."""
    more = ", with --learning.steps N for more updates" if kind_of(run) == "train" else ""
    return f"Choose another name, or continue it: {resume_command(run)}{more}"


def check_kind(run: Path, command: str) -> None:
    """Raise an InputError unless a command continues this kind of run."""
    kind = kind_of(run)
    if kind != command:
        raise InputError("--resume", f"{run} is a run of sparring {kind}", f"Use: {resume_command(run)}")


def kind_of(run: Path) -> str:
    """Return the command that trains a run: ``train`` or ``finetune``."""
    return "finetune" if RunFiles(run).params.exists() else "train"


def check_is_run(path: Path, field: str) -> None:
    """Raise an InputError if a directory is a PSRO or a tournament; ``field`` is its name in the error."""
    for file, kind, command, page in (
        (PSRO_FILE, "a PSRO", "psro", PSRO_PAGE),
        (TOURNAMENT_FILE, "a tournament", "tournament", TOURNAMENT_PAGE),
    ):
        if (path / file).is_file():
            again = f"sparring {command}, given again, continues it"
            shown = field != "--resume" and (path / page).is_file()
            raise InputError(
                field, f"{path} is not a run but {kind}", f"Open {path / page}" if shown else again
            )
