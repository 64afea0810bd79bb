"""What others put beside a command's files, or into its directories, stays: it is moved, deleted or replaced
by no command."""

import contextlib
import io
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from finetune_runs import guesses, make_trainer
from game_runs import configure, run
from job_server import serving
from sparring.cli.options import write_text
from sparring.cluster.adapters import AdapterCache, AdapterFiles
from sparring.collection.journal import Journal
from sparring.commands.export import export, export_payoffs
from sparring.commands.psro_files import PsroDirectory
from sparring.core import InputError, SparringError
from sparring.core.adapters import ADAPTER_FILE, BUNDLED_MODEL
from sparring.core.files import LOCK
from sparring.evaluation.tournament_files import TournamentFiles, TournamentSettings
from sparring.finetune.algorithms import PureTextEiTrainer
from sparring.learn.model_files import resolve_model
from sparring.run.given_adapters import copy_adapter
from sparring.run.run_directory import RunDirectory
from sparring.run.run_names import named_run_directory
from sparring.run.single_process import resume
from sparring.view.report.page import build_report
from tiny_models import roomy_model

NAMES = (
    ".thesis.partial",
    ".thesis.replaced",
    ".thesis.damaged",
    ".out.partial",
    "thesis.txt",
    "notes-1.json",
    "report.html.tmp",
    "step-000001.txt",
    "step-000009-notes.txt",
    "answers.jsonl",
    "file-notes",
)
SETTINGS = TournamentSettings({}, {}, 0, [], 1)
QUIET = Console(file=io.StringIO())


def plant(directory: Path) -> dict[Path, str]:
    """Put files into a directory and everywhere below it; return them with their contents."""
    planted = {}
    for folder in [directory, *(path for path in directory.rglob("*") if path.is_dir())]:
        (folder / ".study.partial").mkdir()
        for name in (*NAMES, ".study.partial/draft"):
            planted[folder / name] = f"{folder.name} {name}"
    for path, content in planted.items():
        path.write_text(content)
    return planted


@pytest.fixture(scope="module")
def unfinished(tmp_path_factory) -> Path:
    """A run of two updates with frozen copies, checkpoints and a best adapter."""
    path = tmp_path_factory.mktemp("unfinished") / "run"
    changes = {
        "learning.schedule": "constant",
        "run.keep_best": "'win rate against random'",
        "population.sample_mode": "lagged",
    }
    changes |= {"run.save_every": "1", "run.keep_checkpoints": "1", "population.add_every": "1"}
    changes |= {"learning.steps": "2", "evaluation.games": "2", "evaluation.games_during": "2"}
    run(configure(roomy_model(), "kuhn", **changes), path)
    return path


def a_run(tmp: Path, unfinished: Path) -> Path:
    return Path(shutil.copytree(unfinished, tmp / "run"))


def a_tournament(tmp: Path, _: Path) -> Path:
    TournamentFiles.open(tmp / "tournament", SETTINGS).close()
    (tmp / "tournament" / "games").mkdir()
    return tmp / "tournament"


def a_psro(tmp: Path, _: Path) -> Path:
    psro = PsroDirectory.open(tmp / "psro")
    psro.write_config(configure(roomy_model()))
    psro.close()
    (tmp / "psro" / "member-000").mkdir()
    return tmp / "psro"


def jobs(tmp: Path, _: Path) -> Path:
    with serving(tmp / "jobs"):
        pass
    return tmp / "jobs"


def a_fine_tuning(tmp: Path, _: Path) -> Path:
    for folder in ("jobs", "rollouts", "answers", "analysis"):
        (tmp / "finetune" / folder).mkdir(parents=True)
    return tmp / "finetune"


def a_journal(tmp: Path, _: Path) -> Path:
    journal = Journal[dict](tmp / "journal")
    journal.load()
    journal.snapshot({"one": 1})
    return tmp / "journal"


def a_cache(tmp: Path, _: Path) -> Path:
    (tmp / "cache").mkdir()
    return tmp / "cache"


def a_place(tmp: Path, unfinished: Path) -> Path:
    """A directory of the user's, in which a command is to write."""
    shutil.copytree(unfinished, tmp / "from")
    (tmp / "place").mkdir()
    return tmp / "place"


def resume_longer(place: Path) -> None:
    resume(place, QUIET, {"learning.steps": "4"})


def fall_back(place: Path) -> None:
    directory = RunDirectory.open(place)
    directory.lock()
    directory.truncate_after(0)
    assert directory.saved_steps() == []
    directory.unlock()


def serve_jobs(place: Path) -> None:
    with serving(place):
        pass


def export_run(place: Path) -> None:
    export(str(place.parent / "from"), place / "out", merge=False, policy=None, console=QUIET)
    assert (place / "out" / ADAPTER_FILE).is_file()


def start_again(place: Path) -> None:
    trainer = make_trainer(PureTextEiTrainer, guesses(), place, settings={"do_not_load_checkpoint": True})
    trainer.files.remove_growing()


def snapshot(place: Path) -> None:
    journal = Journal[dict](place)
    journal.load()
    journal.snapshot({"two": 2})


def fill_the_cache(place: Path) -> None:
    sources = place.parent / "adapters"
    (sources / "1").mkdir(parents=True)
    (sources / "1" / ADAPTER_FILE).write_bytes(b"weights")
    cache = AdapterCache(None, place)
    files = AdapterFiles(lambda files: files)
    copy = __import__("asyncio").run(files.copy(str(sources / "1")))
    cache._keep(place / copy.key, copy.files)


CASES: dict[str, tuple[Callable[[Path, Path], Path], Callable[[Path], object]]] = {
    "train --resume": (a_run, resume_longer),
    "train --resume, falling back": (a_run, fall_back),
    "report": (a_run, build_report),
    "tournament --out": (a_tournament, lambda place: TournamentFiles.open(place, SETTINGS).close()),
    "psro": (a_psro, lambda place: PsroDirectory.open(place).close()),
    "psro, its first member": (a_psro, lambda place: copy_adapter(place, place / "member-000")),
    "serve --jobs": (jobs, serve_jobs),
    "export": (a_place, export_run),
    "export --payoffs": (a_place, lambda place: export_payoffs(str(place.parent / "from"), place / "out")),
    "eval --out": (a_place, lambda place: write_text(place / "out", "written")),
    "finetune": (a_fine_tuning, start_again),
    "a service on Ray": (a_journal, snapshot),
}


@pytest.mark.parametrize("case", CASES)
def test_what_others_put_into_a_directory_of_sparring_stays(case, tmp_path, unfinished):
    prepare, act = CASES[case]
    place = prepare(tmp_path, unfinished)
    planted = plant(place)
    act(place)
    assert {path: path.read_text() for path in planted if path.is_file()} == planted


REFUSED: dict[str, Callable[[Path], object]] = {
    "train --name": lambda place: named_run_directory(place.parent, place.name),
    "a new run": RunDirectory.create,
    "train --resume": lambda place: resume(place, QUIET),
    "tournament --out": lambda place: TournamentFiles.open(place, SETTINGS),
    "psro": PsroDirectory.open,
    "serve --jobs": serve_jobs,
    "export": lambda place: export("nothing", place, merge=False, policy=None, console=QUIET),
    "export --payoffs": lambda place: export_payoffs("nothing", place),
    "the bundled model": lambda place: resolve_model(BUNDLED_MODEL),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_directory_of_others_is_refused_and_unchanged(case, tmp_path, monkeypatch):
    monkeypatch.setenv("SPARRING_CACHE", str(tmp_path))
    place = tmp_path / BUNDLED_MODEL
    for folder in ("wandb", "given", "rollouts", "checkpoints/step-000001", "files"):
        (place / folder).mkdir(parents=True)
    plant(place)
    (place / LOCK).touch()
    before = {path: path.is_file() and path.read_text() for path in place.rglob("*")}
    with pytest.raises(InputError):
        REFUSED[case](place)
    assert {path: path.is_file() and path.read_text() for path in place.rglob("*")} == before


@pytest.mark.parametrize("thesis", ["thesis.txt", "wandb/results", "given/default/notes", "metrics.jsonl"])
def test_a_new_run_that_fails_deletes_only_what_it_wrote(tmp_path, thesis):
    """Also in the directory of a run that never began, and also what came while it started."""
    path = tmp_path / "run"
    if thesis == "wandb/results":  # W&B's own, perhaps
        (path / "wandb").mkdir(parents=True)
        (path / thesis).write_text("thesis")
        (path / LOCK).touch()
    directory = RunDirectory.create(path)
    (path / thesis).parent.mkdir(parents=True, exist_ok=True)
    if thesis != "metrics.jsonl":
        (path / thesis).write_text("thesis")
    directory.write_config("")
    assert directory.remove_new() == (thesis == "metrics.jsonl")
    directory.unlock()
    assert thesis == "metrics.jsonl" or (path / thesis).read_text() == "thesis"


@pytest.mark.parametrize("name", ["thesis.txt", "metrics.jsonl", "rollouts/one", "given/default/notes"])
def test_a_directory_with_a_lock_and_something_else_is_no_run_that_never_began(tmp_path, name):
    (tmp_path / "run" / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / "run" / LOCK).touch()
    (tmp_path / "run" / name).write_text("thesis")
    with pytest.raises(InputError, match="exists already"):
        named_run_directory(tmp_path, "run")
    with contextlib.suppress(SparringError):
        RunDirectory.create(tmp_path / "run").unlock()
    assert (tmp_path / "run" / name).read_text() == "thesis"
