"""``sparring export --verifiers``: what a configuration plays, as a package that verifiers evaluates."""

import keyword
import os
import re
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

import tomli_w

from sparring.commands.export import check_new, written
from sparring.config import Config, load_config
from sparring.config.loading import preset_names, with_files
from sparring.config.play import Games
from sparring.config.programs import DebateSettings, PythonProgram
from sparring.core import InputError
from sparring.core.own_modules import imported_beside
from sparring.core.play import seat_role
from sparring.envs.game_episode import build_episode
from sparring.programs.judge import JUDGE
from sparring.run.programs import build_program
from sparring.run.run_directory import RunDirectory
from sparring.run.run_names import find_run, paths_of

KEPT = ("seed", "envs", "program", "roles")
"""The parts of a configuration that say what is played."""
TAKEN = ("id", "taskset", "timeout", "retries", "max_concurrent_agents", "interception", JUDGE)
"""The fields of every environment of verifiers, and of whoever is called and is no role."""
COPIED = (".py", ".json", ".jsonl")
"""The ends of the names of files that are copied into a package."""
MOST_BYTES = 64 << 20
"""The size of the largest file that is copied."""
FILES = "files"
"""Where they lie beside ``config.toml``."""
MODULE = '''"""What config.toml plays, by agents of verifiers; written by sparring export."""

from pathlib import Path

import verifiers.v1 as vf

from sparring.compat.verifiers import ExportedPlay, launch, tasks_of

__all__ = ["Harness", "Play", "Tasks"]
FILE = Path(__file__).with_name("config.toml")
LOCAL = {{"type": "subprocess"}}


class Config(vf.EnvConfig):
    """The agents."""

{seats}


class Play(ExportedPlay, vf.Env[Config]):
    """One game or conversation for each task."""

    FILE = FILE


class Tasks(vf.Taskset[vf.Task, vf.TasksetConfig]):
    """What is played, by number."""

    def load(self):
        return tasks_of(FILE)


class Harness(vf.Harness[vf.HarnessConfig]):
    """One model call for each turn, without a program around it."""

    APPENDS_SYSTEM_PROMPT = True
    SUPPORTS_RESUME = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(self, ctx, trace, runtime, endpoint, secret, mcp_urls, data):
        system, prompt = self.resolve_prompt(data)
        before = [] if system is None else [vf.SystemMessage(content=system)]
        return await launch(ctx, endpoint, secret, [*before, *prompt])
'''
SEAT = "    {}: vf.AgentConfig = vf.AgentConfig(runtime=LOCAL)"
PROJECT = """[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "{name}"
version = "0.1.0"
requires-python = ">=3.11"
dependencies = ["sparring", "verifiers>=0.4.0,<0.5"]

[tool.setuptools]
packages = ["{module}"]

[tool.setuptools.package-data]
{module} = ["config.toml", "files/**/*.py", "files/**/*.json*"]
"""


def export_verifiers(source: str, out: Path) -> str:
    """Write a package whose name is the directory's; return the command that evaluates it.

    ``source`` is a run, or else a configuration file or a preset. The files that it names are copied, with
    the modules beside them that they import, but not what they read. A debate's judge is an agent that states
    its verdict in words.

    Raises:
        InputError: there is no such run or configuration, or verifiers cannot have what it plays.
    """
    check_new(out)
    config = _config_of(source)
    path = out.resolve()
    name, module = path.name.lower(), _module_of(path.name)
    seats = "\n".join(map(SEAT.format, _seats(config)))
    content = _what_is_played(config)
    with written(out) as scratch:
        (scratch / "pyproject.toml").write_text(PROJECT.format(name=name, module=module), "utf-8")
        (scratch / module).mkdir()
        (scratch / module / "__init__.py").write_text(MODULE.format(seats=seats), "utf-8")
        _copy_files(content, scratch / module)
        (scratch / module / "config.toml").write_text(tomli_w.dumps(content), "utf-8")
        _check_alone(scratch / module)
    # To pip, a name without a slash is a package of the index.
    return f"pip install {shlex.quote(str(path))} && vf-eval {name} --no-push"


def _module_of(name: str) -> str:
    """Return the module of a package; raise an InputError if there can be none of this name."""
    module = name.replace("-", "_").lower()
    if not re.fullmatch(r"[a-z]([a-z0-9_]*[a-z0-9])?", module) or keyword.iskeyword(module):
        raise InputError("OUT", f"{name} is no name of a package", "Use letters, digits and -")
    if module in sys.stdlib_module_names or module in ("sparring", "verifiers"):
        raise InputError("OUT", f"{name} would hide the module {module}", f"Name it {name}-game")
    return module


def _config_of(source: str) -> Config:
    is_run = any((path / "config.toml").is_file() for path in paths_of(source))
    if not is_run and (source.endswith(".toml") or Path(source).is_file() or source in preset_names()):
        return load_config(source, {})
    return load_config(str(RunDirectory.open(find_run(source)).config_file), {})


def _what_is_played(config: Config) -> dict[str, Any]:
    """Return the part of a configuration that a package has."""
    every = config.model_dump(exclude_none=True)
    content = {key: every[key] for key in KEPT if every.get(key)}
    content["inference"] = {"max_tokens": config.inference.max_tokens}
    if isinstance(config.play, DebateSettings):  # only our own engine compares likelihoods
        for name in ("judge_model", "judge_by_score"):
            content["program"].pop(name, None)
    return content


def _copy_files(content: dict[str, Any], module: Path) -> None:
    """Copy the files that a configuration names, and the modules that they imported, beside it; let it name
    the copies."""
    places: dict[Path, str] = {}

    def copied(file: str) -> str:
        if not os.path.isabs(file):  # no file, as with the datasets of the Hub
            return file
        path = Path(file)
        place = places.setdefault(path.parent, f"{FILES}/{len(places)}")
        for one in [path, *(imported_beside(path) if path.suffix == ".py" else ())]:
            _check_copied(one)
            copy = module / place / (path.name if one == path else one.relative_to(path.resolve().parent))
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(one, copy)
        return f"{place}/{path.name}"

    with_files(content, copied)


def _check_copied(path: Path) -> None:
    if not path.is_file() or path.suffix not in COPIED:
        ends = ", ".join(COPIED)
        raise InputError("RUN", f"{path} cannot be a part of a package", f"Name a file that ends in {ends}")
    if path.stat().st_size > MOST_BYTES:
        raise InputError("RUN", f"{path} has more than {MOST_BYTES >> 20} MiB", "Name a smaller file")


def _check_alone(module: Path) -> None:
    """Raise an InputError if the copies of the user's files miss what lies beside the originals."""
    try:
        _seats(load_config(str(module / "config.toml"), {}))
    except InputError as error:
        problem = f"a copy of your files does not work alone: {error.problem}"
        raise InputError("RUN", problem, "Put into each file what it reads") from error


def _seats(config: Config) -> list[str]:
    """Return the names of the agents: the seats of the only game, or the roles of a program and its judge."""
    if isinstance(config.play, Games):
        if len(config.envs) > 1:
            raise InputError("RUN", "it plays several games", "Name a configuration with one of them")
        build_episode(config.envs[0])
        return [seat_role(pid) for pid in range(config.envs[0].num_players)]
    arena = build_program(config)
    assert arena is not None
    for name in arena.roles:
        if not re.fullmatch(r"[a-zA-Z]\w*", name) or keyword.iskeyword(name) or name in TAKEN:
            raise InputError("RUN", f"{name} cannot be the name of an agent of verifiers", "Rename the role")
    judges = [JUDGE] if isinstance(config.play, DebateSettings | PythonProgram) else []
    return [*arena.roles, *judges]
