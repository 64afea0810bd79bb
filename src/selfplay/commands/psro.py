"""``selfplay psro``: policy-space response oracles, whose answer is a mixture of policies.

Each iteration trains a best response to the mixture of the members so far, lets it play all of them, and
solves the payoffs for the next mixture. Source: Lanctot et al., "A Unified Game-Theoretic Approach to
Multiagent Reinforcement Learning", 2017, arXiv 1711.00832.
"""

import asyncio
import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from rich.console import Console

from selfplay.commands.best_response_run import runtime_of, train_to_the_end
from selfplay.commands.evaluate import build_engine, exact_measure, measure_exactly
from selfplay.commands.mixture_file import MixtureContent, MixtureEntry, MixtureMember
from selfplay.commands.model_source import ModelSource
from selfplay.commands.psro_config import best_response_config, check_psro
from selfplay.commands.psro_files import PAYOFFS, Iteration, PsroDirectory, PsroState, member_name
from selfplay.commands.psro_page import psro_html
from selfplay.commands.psro_table import print_psro
from selfplay.commands.tournament import Serve, Tournament, run_tournament
from selfplay.commands.tournament_members import Member
from selfplay.commands.tournament_schedule import Schedule
from selfplay.config import Config
from selfplay.config.differences import differences_text
from selfplay.core import InputError, SelfplayError
from selfplay.core.adapters import MIXTURE_FILE, TRAINED
from selfplay.core.files import write_file
from selfplay.evaluation.mixture import Mixture
from selfplay.evaluation.nash_conv import NashConvResult, TooSlow
from selfplay.population.meta_strategies import meta_strategy
from selfplay.population.payoffs import PayoffMatrix, gain_over_mixture
from selfplay.training.given_adapters import copy_adapter, find_given
from selfplay.training.progress_views import print_line
from selfplay.training.run_directory import RunDirectory
from selfplay.training.threads import with_chosen_threads

TEMPERATURE = 1.0
"""A member is the policy that it samples from; NashConv is of the same."""
DIGITS = 4
"""Probabilities are rounded to the accuracy of the solvers, so that no member plays for their noise."""


def psro(config: Config, path: Path, console: Console, tables: Console) -> PsroState | None:
    """Run the iterations that ``path`` does not have, and print a table after each.

    Args:
        config: the configuration.
        path: the directory, which may hold the same PSRO with as many iterations or fewer.
        console: where progress is shown.
        tables: where the tables are printed.

    Returns:
        What was found; ``None`` if the training of a best response was interrupted.

    Raises:
        InputError: the configuration cannot be used, or the directory holds something else.
        SelfplayError: a training had to stop, or games could not be finished.
    """
    check_psro(config)
    directory = PsroDirectory.open(path)
    try:
        loop = Psro(_begin(config, directory, console), directory, console)
        if (state := directory.state()) is None:
            state = loop.first()
        loop.use(state)
        print_psro(state, tables)
        while len(state.iterations) <= loop.settings.iterations:
            number = len(state.iterations)
            print_line(console, f"iteration {number} of {loop.settings.iterations}: a best response")
            if not loop.train(number, state):
                return None
            state = loop.joined(number, state)
            loop.use(state)
            print_psro(state, tables)
        return state
    except OSError as error:
        problem = f"{path} cannot be written ({error}): free the disk or fix its permissions"
        raise SelfplayError(f"{problem}, and give this command again") from error
    finally:
        directory.close()


def _begin(config: Config, directory: PsroDirectory, console: Console) -> Config:
    """Write the configuration and copy the adapter of ``[start]``; return the configuration with its threads.

    Raises:
        InputError: the directory holds another PSRO, or the adapter cannot be copied.
    """
    earlier = directory.config()
    if earlier is None:
        cores = runtime_of(config).cores(config)
        if cores is not None:
            config = with_chosen_threads(config, cores, partial(print_line, console))
    elif (before := _comparable(earlier)) != (now := _comparable(config)):
        problem = f"{directory.path} holds another PSRO, which differs in {differences_text(before, now)}"
        raise InputError("--name", problem, "Choose another name, or give the same configuration")
    else:
        config = config.model_copy(update={"model": earlier.model})
    directory.write_config(config)
    if directory.state() is None:
        for source in find_given(config.model_copy(update={"frozen": {}}), [TRAINED]).values():
            copy_adapter(source, directory.run(0))
    return config


def _comparable(config: Config) -> Config:
    """Return what must stay the same: all but the numbers of threads and of iterations, and the places."""
    _, settings = check_psro(config)
    same = {
        "psro": settings.model_copy(update={"iterations": 1}),
        "model": config.model.model_copy(update={"threads": None}),
        "run": config.run.model_copy(update={"directory": ""}),
        "ray": config.ray.model_copy(update={"address": None}),
    }
    return config.model_copy(update=same)


class Psro:
    """The stages of an iteration. Each one, given again after a kill, goes on where it was.

    Args:
        config: the configuration, with its number of threads.
        directory: where everything is written.
        console: where progress is shown.
    """

    def __init__(self, config: Config, directory: PsroDirectory, console: Console) -> None:
        self.config = config
        self.env, self.settings = check_psro(config)
        self.directory = directory
        self.console = console
        self.serve = _serve_on_cluster(config, console) if config.run.runtime == "ray" else None

    def first(self) -> PsroState:
        """Return what is known of the first member alone, and write it down."""
        name = member_name(0)
        mixture = {name: 1.0}
        iteration = Iteration(name, 0, 0, 0, None, mixture, self._nash_conv(mixture))
        state = PsroState(self.env.name, self.settings.solver, [name], [[0.0]], [[0.0]], [[0]], [iteration])
        self.directory.write_state(state)
        return state

    def train(self, number: int, state: PsroState) -> bool:
        """Train the best response to the last mixture; return whether it is complete.

        Raises:
            InputError: its directory holds something else.
            SelfplayError: the training had to stop.
        """
        config = best_response_config(
            self.config, number, self._adapters(state.members), state.iterations[-1].mixture
        )
        return train_to_the_end(config, self.directory.run(number), self.console, "--name")

    def joined(self, number: int, state: PsroState) -> PsroState:
        """Let the best response play every member, solve the payoffs, and write down what is found.

        Raises:
            SelfplayError: too few games of a pair could be finished.
        """
        name = member_name(number)
        matrix = self._payoffs([*state.members, name])
        solved = meta_strategy(self.settings.solver, matrix.advantage_MM)
        weights = [round(float(one), DIGITS) for one in solved]
        mixture = {one: weight / sum(weights) for one, weight in zip(matrix.members, weights, strict=True)}
        gain = gain_over_mixture(matrix, name, state.iterations[-1].mixture)
        run = RunDirectory(self.directory.run(number))
        line = json.loads(run.metrics_file.read_text().splitlines()[-1])
        iteration = Iteration(
            name,
            run.saved_steps()[-1],
            int(line.get("accounts/consumed", line["accounts/finished"])),
            int(matrix.games_MM.sum()) // 2,
            (gain.low, gain.mid, gain.high),
            mixture,
            self._nash_conv(mixture),
        )
        found = PsroState(
            state.env_id,
            state.solver,
            [*matrix.members],
            matrix.mean_MM.tolist(),
            matrix.error_MM.tolist(),
            matrix.games_MM.tolist(),
            [*state.iterations, iteration],
        )
        self.directory.write_state(found)
        return found

    def use(self, state: PsroState) -> None:
        """Make the last mixture a model's name, and draw the page; delete what joined members do not need."""
        self._write_mixture(state)
        self.directory.write_page(psro_html(state, self.config.seed))
        for number in range(1, len(state.members)):
            self.directory.delete_copies(number)

    def _write_mixture(self, state: PsroState) -> None:
        entries = [
            MixtureEntry(
                name=name,
                adapter=None if adapter is None else str(adapter.relative_to(self.directory.path)),
                weight=state.iterations[-1].mixture[name],
            )
            for name, adapter in self._adapters(state.members).items()
        ]
        content = MixtureContent(
            model=self.config.model,
            max_tokens=self.config.inference.max_tokens,
            envs=(self.env,),
            members=entries,
        )
        write_file(self.directory.path / MIXTURE_FILE, content.to_bytes())

    def _adapters(self, members: list[str]) -> dict[str, Path | None]:
        return {name: self.directory.adapter(number) for number, name in enumerate(members)}

    def _source(self, adapter: Path | None = None, members: tuple[MixtureMember, ...] = ()) -> ModelSource:
        return ModelSource(self.config.model, adapter, self.config.inference.max_tokens, (self.env,), members)

    def _payoffs(self, members: list[str]) -> PayoffMatrix:
        """Play the games of the payoff matrix that are missing."""
        adapters = self._adapters(members)
        players = [Member(name, "model", name, self._source(path)) for name, path in adapters.items()]
        schedule = Schedule(members, self.settings.payoff_games, None, self.config.seed)
        agents = {one.uid: one.agents(self.env, TEMPERATURE) for one in players}
        tournament = Tournament(players, self.env, schedule, agents, TEMPERATURE, self.config.seed)
        outcome = run_tournament(tournament, self.directory.path / PAYOFFS, None, self.console, self.serve)
        for pair in schedule.groups:
            names = [members[place] for place in pair]
            if min(outcome.table.payoff(*seats).games for seats in (names, names[::-1])) < 2:
                reason = next(iter(outcome.failures), "")
                raise SelfplayError(f"{' and '.join(names)} did not finish four games: {reason}")
        return outcome.table.matrix(members)

    def _nash_conv(self, mixture: Mapping[str, float]) -> float | None:
        """Return the NashConv of a mixture, if the configuration asks for it.

        A mixture of several members takes longer than the first one. If that is too long, there is none.

        Raises:
            InputError: the first member's takes too long.
        """
        settings = self.config.evaluation
        if not settings.nash_conv:
            return None
        adapters = self._adapters([*mixture])
        members = [MixtureMember(name, adapters[name], weight) for name, weight in mixture.items() if weight]
        source = self._source(None, tuple(members))
        seats, minutes = source.seats(self.env, "CONFIG"), settings.nash_conv_minutes
        try:
            if self.serve is not None:
                return asyncio.run(self._measured(self.serve, source, seats, minutes)).nash_conv
            engine = build_engine(source, self.console, self.config.seed)
            return exact_measure(engine, self.env, seats, self.console, minutes).nash_conv
        except TooSlow as error:
            if len(mixture) == 1:
                raise
            print_line(self.console, f"warning: NashConv of the mixture is left out: {error.problem}")
            return None

    async def _measured(
        self, serve: Serve, source: ModelSource, seats: Sequence[str | Mixture[str]], minutes: float
    ) -> NashConvResult:
        async with serve(source.adapters()) as client:
            return await measure_exactly(client, self.env, seats, self.console, minutes)


def _serve_on_cluster(config: Config, console: Console) -> Serve:
    """Return what serves members on the configuration's cluster."""
    from selfplay.cluster.served_members import members_served  # imports Ray

    return lambda adapters: members_served(config, adapters, partial(print_line, console))
