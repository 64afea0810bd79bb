"""``sparring export --verifiers``: what a configuration plays, as a package that verifiers evaluates."""

import keyword
import re
import shlex
import sys
from pathlib import Path

import tomli_w

from sparring.commands.export import check_new, written
from sparring.config import Config, load_config
from sparring.config.play import Games
from sparring.core import InputError
from sparring.core.play import seat_role
from sparring.run.programs import build_program
from sparring.run.run_directory import RunDirectory
from sparring.run.run_names import find_run

KEPT = ("seed", "envs", "program", "roles")
"""The parts of a configuration that say what is played."""
TAKEN = ("id", "taskset", "timeout", "retries", "max_concurrent_agents", "interception")
"""The fields of every environment of verifiers."""
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
{module} = ["config.toml"]
"""


def export_verifiers(source: str, out: Path) -> str:
    """Write a package whose name is the directory's; return the command that evaluates it.

    ``source`` is a run, a configuration file or a preset. Files of your own are named by their paths.

    Raises:
        InputError: there is no such run or configuration, or verifiers cannot have what it plays.
    """
    check_new(out)
    config = _config_of(source)
    path = out.resolve()
    name, module = path.name.lower(), _module_of(path.name)
    seats = "\n".join(map(SEAT.format, _seats(config)))
    every = config.model_dump(exclude_none=True)
    content = {key: every[key] for key in KEPT if every.get(key)}
    with written(out) as scratch:
        (scratch / "pyproject.toml").write_text(PROJECT.format(name=name, module=module), "utf-8")
        (scratch / module).mkdir()
        (scratch / module / "__init__.py").write_text(MODULE.format(seats=seats), "utf-8")
        (scratch / module / "config.toml").write_text(tomli_w.dumps(content), "utf-8")
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
    try:
        return load_config(source, {})
    except InputError:
        if source.endswith(".toml"):
            raise
    return load_config(str(RunDirectory.open(find_run(source)).config_file), {})


def _seats(config: Config) -> list[str]:
    """Return the names of the agents: the seats of the only game, or the roles of a program."""
    if isinstance(config.play, Games):
        if len(config.envs) > 1:
            raise InputError("RUN", "it plays several games", "Name a configuration with one of them")
        return [seat_role(pid) for pid in range(config.envs[0].num_players)]
    arena = build_program(config)
    assert arena is not None
    for name in arena.roles:
        if not re.fullmatch(r"[a-zA-Z]\w*", name) or keyword.iskeyword(name) or name in TAKEN:
            raise InputError("RUN", f"{name} cannot be the name of an agent of verifiers", "Rename the role")
    return [*arena.roles]
