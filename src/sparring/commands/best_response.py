"""Best responses: the run that trains one against a frozen policy, to its end, whatever stops it."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from rich.console import Console

from sparring.collection.sinks import read_metrics
from sparring.commands.console import ConsoleProgress, runtime_of
from sparring.commands.model_source import ModelSource
from sparring.config import Config
from sparring.config.loading import differences_text, load_config
from sparring.config.problems import read_settings
from sparring.core import InputError, SparringError
from sparring.core.adapters import BASE
from sparring.evaluation.match import Mixture
from sparring.evaluation.results import evaluated_steps
from sparring.evaluation.venues import Venue
from sparring.run.best import has_settled
from sparring.run.evaluation_opponents import MIXTURE
from sparring.run.given_adapters import find_given, frozen_of, same_adapter
from sparring.run.progress_views import print_line
from sparring.run.resume import CALLS
from sparring.run.run_directory import RunDirectory
from sparring.run.start import resume_run, start_run

Train = Callable[[Config, Path], bool]
"""Trains a run into a directory, and returns whether it is complete: :func:`train_to_the_end`."""
POLICY = "policy"
"""Name of the frozen policy in the run of the best response; with ``-NAME`` if there are several.

So no name of the user's is that of a scripted player or of what is trained.
"""


@dataclass(frozen=True)
class FrozenPolicy:
    """What a best response answers: one adapter, a mixture, a policy for each seat, the base model, or
    somebody who is no model here.

    Attributes:
        seats: who holds each seat: a name in ``adapters`` or ``others``, ``base``, a scripted player, or a
            mixture of these.
        adapters: the adapters by their names in the run of the best response.
        start: what the best response may begin with, by the policy that is trained.
        policies: the policy that is trained in each seat.
        others: what ``[frozen]`` names beside adapters: a policy in a file, a model behind an API.
    """

    seats: tuple[str | Mixture[str], ...]
    adapters: Mapping[str, Path]
    start: Mapping[str, Path]
    policies: tuple[str, ...]
    others: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, source: ModelSource, venue: Venue, named: Callable[[str], str] | None = None) -> Self:
        """Return what plays each seat of the venue if a model plays all of them.

        A best response to a mixture begins with the member of the largest weight, one to a policy for each
        seat with the policy of its own seat. ``named`` gives the adapters' names in its run, by their own.
        """
        policies, own = source.policies(venue), source.adapters()
        if not source.members and len(own) > 1:
            own = {policy: own[policy] for policy in policies if policy in own}
        begins = own
        if source.members:
            begins = max(source.members, key=lambda one: one.weight).policies()
        start = {policy: begins.get(policy, next(iter(begins.values()))) for policy in policies if begins}
        named = named or (_named if source.members or len(own) > 1 else _alone)
        seats = source.models(venue, "MODEL_OR_RUN", named)
        return cls(seats, {named(name): path for name, path in own.items()}, start, policies)

    def opponents(self) -> dict[str, float]:
        """Return those who may be met, with their weights. Several members of a mixture may be the base."""
        found: dict[str, float] = {}
        for seat in self.seats:
            mixed = seat if isinstance(seat, Mixture) else Mixture((seat,), (1.0,))
            weights = dict.fromkeys(mixed.members, 0.0)
            for member, weight in zip(mixed.members, mixed.weights, strict=True):
                weights[member] += weight
            found |= weights
        return found

    def places(self) -> dict[str, str]:
        """Return in whose place each adapter plays, if several policies are trained.

        One that holds the seats of several policies has no place: it plays in all of them.
        """
        if len({*self.policies}) == 1:
            return {}
        held: dict[str, set[str]] = {}
        for seat, policy in zip(self.seats, self.policies, strict=True):
            for name in seat.members if isinstance(seat, Mixture) else (seat,):
                held.setdefault(name, set()).add(policy)
        return {name: min(places) for name, places in held.items() if len(places) == 1 and name != BASE}


def best_response_config(
    settings: Mapping[str, Any], policy: FrozenPolicy, start: Mapping[str, Path]
) -> Config:
    """Return the run of a best response: one seat, drawn uniformly, against the policy in all others.

    Evaluations of games are against the policy too, with as many games during training as before and after
    it. ``settings`` are the run's in all else; ``start`` has the adapter with which each trained policy
    begins.
    """
    opponents, evaluation, frozen = policy.opponents(), settings["evaluation"], settings.get("frozen", {})
    if taken := (policy.adapters.keys() | policy.others.keys()) & frozen.keys():
        raise InputError(f"frozen.{min(taken)}", "is a name that the best response needs", "Rename it")
    alone = len(opponents) == 1 and not isinstance(policy.seats[0], Mixture)
    data = dict(settings) | {
        "start": _absolute(start),
        "frozen": frozen | _absolute(policy.adapters) | dict(policy.others),
        "population": {
            "sample_mode": "fixed",
            "fixed_opponents": list(opponents),
            "weights": [] if alone else list(opponents.values()),
            "places": policy.places(),
        },
    }
    if "program" not in settings:
        data["evaluation"] = evaluation | {
            "games_during": evaluation["games"],
            "opponents": [next(iter(opponents)) if alone else MIXTURE],
        }
    return read_settings(Config, data)


AGAIN = "or give this command again, which goes on to the end"


def train_to_the_end(config: Config, directory: Path, console: Console | None = None) -> bool:
    """Train a run; return whether it is complete: all updates are made, or it settled before.

    The directory may have the same run, whole or in part, which is continued, also if it had fewer updates.

    Raises:
        InputError: the directory holds another run, or something else.
        SparringError: the training had to stop.
    """
    console = console or Console(quiet=True)
    run = RunDirectory(directory)
    try:
        _train(config, run, console)
    except InputError:
        raise
    except SparringError as error:  # which says how to continue the run alone
        raise SparringError(f"{error}; {AGAIN}") from error
    if is_trained(run, config):
        return True
    print_line(console, AGAIN)
    return False


def _train(config: Config, run: RunDirectory, console: Console) -> None:
    """Begin a run, or go on with it, unless it has ended."""
    directory, progress = run.path, ConsoleProgress(console)
    if run.config_file.is_file():
        found = _check_same(config, directory)
        if not is_trained(run, config):
            resume_run(directory, console, runtime_of(config, progress), _changes(run, found, config))
    elif directory.exists() and not run.never_began():
        raise InputError("directory", f"{directory} exists and is not a run", "Name another directory")
    else:
        start_run(config, directory, console, runtime_of(config, progress))


def _changes(run: RunDirectory, found: Config, config: Config) -> dict[str, str | None]:
    """Return what changes in a run that goes on: its cluster's address, and more updates if it makes more."""
    changes: dict[str, str | None] = {}
    if config.run.runtime == "ray":
        changes["ray.address"] = config.ray.address
    longer = config.learning.steps > found.learning.steps
    if longer and not has_settled(run.evaluation, config.evaluation):
        changes["learning.steps"] = str(config.learning.steps)
    calls = config.collection.api_calls
    if calls != found.collection.api_calls:
        changes[CALLS] = None if calls is None else str(calls)
    return changes


def training_games(run: RunDirectory) -> int:
    """Return the games that a run was trained on."""
    last = read_metrics(run.metrics_file)[-1]
    return int(last.get("accounts/consumed", last["accounts/finished"]))


def without_places(config: Config, **sections: Any) -> Config:
    """Return a configuration without where it runs, on how many threads and with how many calls to APIs, and
    with other sections."""
    without = {
        "model": config.model.model_copy(update={"threads": None}),
        "run": config.run.model_copy(update={"directory": ""}),
        "ray": config.ray.model_copy(update={"address": None}),
        "collection": config.collection.model_copy(update={"api_calls": None}),
    }
    return config.model_copy(update=without | sections)


def _check_same(config: Config, directory: Path) -> Config:
    """Return the configuration of the run in ``directory``; raise an InputError unless it is this one.

    It may have had fewer updates, and it and its adapters may have been moved: adapters are known by their
    content.
    """
    found = load_config(str(directory / "config.toml"), {})
    steps, apis = max(found.learning.steps, config.learning.steps), frozen_of(config, "api")
    comparable = without_places(
        found,
        learning=found.learning.model_copy(update={"steps": steps}),
        start={name: config.start.get(name, place) for name, place in found.start.items()},
        frozen={
            name: place if name in apis else config.frozen.get(name, place)
            for name, place in found.frozen.items()
        },
    )
    if comparable != (wanted := without_places(config)):
        differs = differences_text(comparable, wanted)
    else:
        given = RunDirectory(directory).given
        sources = find_given(config)
        sources |= {name: Path(source) for name, source in frozen_of(config, "policy").items()}
        changed = [name for name, source in sources.items() if not same_adapter(source, given / name)]
        if not changed:
            return found
        differs = f"the weights of {', '.join(changed)}"
    problem = f"{directory} holds another run, which differs in {differs}"
    raise InputError("directory", problem, "Name another directory, or give the same options")


def is_trained(run: RunDirectory, config: Config) -> bool:
    """Whether the training of a run is complete: all updates are made, or it settled before.

    If a kill came between the evaluation that settled it and the checkpoint, that update is made again.
    """
    if not run.report_file.exists():
        return False
    kept, measured = max(run.saved_steps(), default=-1), max(evaluated_steps(run.evaluation), default=-1)
    settled = has_settled(run.evaluation, config.evaluation) and kept >= measured
    return settled or run.is_finished(config.learning.steps)


def _named(name: str) -> str:
    return f"{POLICY}-{name}"


def _alone(name: str) -> str:
    return POLICY


def _absolute(adapters: Mapping[str, Path]) -> dict[str, str]:
    return {name: os.path.abspath(path) for name, path in adapters.items()}
