"""The run of a best response: trained to its end, however often the command is stopped and given again."""

from pathlib import Path

from rich.console import Console

from selfplay.config import Config
from selfplay.config.differences import differences_text
from selfplay.config.loading import load_config
from selfplay.core import InputError
from selfplay.evaluation.result_files import evaluated_steps
from selfplay.training.given_adapters import find_given, same_adapter
from selfplay.training.progress_views import print_line
from selfplay.training.run_directory import RunDirectory
from selfplay.training.settled import has_settled
from selfplay.training.single_process import SingleProcess
from selfplay.training.start import Runtime, resume_run, start_run


def runtime_of(config: Config) -> Runtime:
    """Return where a configuration's run takes place."""
    if config.run.runtime == "local":
        return SingleProcess()
    from selfplay.cluster.train import Cluster  # imports Ray

    return Cluster()


def train_to_the_end(config: Config, directory: Path, console: Console, field: str) -> bool:
    """Train a run, or continue the one in the directory; return whether it is complete.

    It is complete if all updates are made, or if it settled before. Otherwise it was interrupted. A run of
    fewer updates is made longer.

    Args:
        config: the run's configuration.
        directory: the run's directory, which may have the same run, whole or in part.
        console: where progress is shown.
        field: the user's input that named the directory, for errors.

    Raises:
        InputError: the directory holds another run, or something else.
        SelfplayError: the training had to stop.
    """
    run = RunDirectory(directory)
    if run.config_file.is_file():
        found = _check_same(config, directory, field)
        if not _is_trained(run, config):
            resume_run(directory, console, runtime_of(config), _changes(run, found, config))
    elif directory.exists() and not run.never_began():
        raise InputError(field, f"{directory} exists and is not a run", "Name another directory")
    else:
        start_run(config, directory, console, runtime_of(config))
    if _is_trained(run, config):
        return True
    print_line(console, "or give this command again, which goes on to the end")
    return False


def _changes(run: RunDirectory, found: Config, config: Config) -> dict[str, str | None]:
    """Return what changes in a run that goes on: its cluster's address, and more updates if it makes more."""
    changes: dict[str, str | None] = {}
    if config.run.runtime == "ray":
        changes["ray.address"] = config.ray.address
    longer = config.learning.steps > found.learning.steps
    if longer and not has_settled(run.evaluation, config.evaluation):
        changes["learning.steps"] = str(config.learning.steps)
    return changes


def _check_same(config: Config, directory: Path, field: str) -> Config:
    """Return the configuration of the run in ``directory``; raise an InputError unless it is this one.

    It has chosen its threads, it may have had fewer updates, and its cluster may have another address. It
    and its adapters may have been moved: adapters are known by their content.
    """
    found = load_config(str(directory / "config.toml"), {})
    steps = max(found.learning.steps, config.learning.steps)
    same = {
        "model": found.model.model_copy(update={"threads": config.model.threads}),
        "learning": found.learning.model_copy(update={"steps": steps}),
        "start": _in_place_of(found.start, config.start),
        "frozen": _in_place_of(found.frozen, config.frozen),
        "run": found.run.model_copy(update={"directory": config.run.directory}),
        "ray": found.ray.model_copy(update={"address": config.ray.address}),
    }
    comparable = found.model_copy(update=same)
    if comparable != config:
        differs = differences_text(comparable, config)
    else:
        given = RunDirectory(directory).given
        sources = find_given(config, config.policies)
        changed = [name for name, source in sources.items() if not same_adapter(source, given / name)]
        if not changed:
            return found
        differs = f"the weights of {', '.join(changed)}"
    problem = f"{directory} holds another run, which differs in {differs}"
    raise InputError(field, problem, "Name another directory, or give the same options")


def _in_place_of(found: dict[str, str], wanted: dict[str, str]) -> dict[str, str]:
    """Return the wanted places of the adapters that were found; one that is not wanted keeps its own."""
    return {name: wanted.get(name, place) for name, place in found.items()}


def _is_trained(run: RunDirectory, config: Config) -> bool:
    """Whether the training of a run is complete: all updates are made, or it settled before.

    If a kill came between the evaluation that settled it and the checkpoint, that update is made again.
    """
    if not run.report_file.exists():
        return False
    kept, measured = max(run.saved_steps(), default=-1), max(evaluated_steps(run.evaluation), default=-1)
    settled = has_settled(run.evaluation, config.evaluation) and kept >= measured
    return settled or run.is_finished(config.learning.steps)
