"""Policy-space response oracles, whose answer is a mixture of policies.

Each iteration trains a best response to the mixture of the members so far, lets it play all of them, and
solves the payoffs for the next mixture. Source: Lanctot et al., "A Unified Game-Theoretic Approach to
Multiagent Reinforcement Learning", 2017, arXiv 1711.00832.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import msgspec

from sparring.commands.best_response import (
    FrozenPolicy,
    Train,
    best_response_config,
    train_to_the_end,
    training_games,
    without_places,
)
from sparring.commands.console import runtime_of
from sparring.commands.members import Member
from sparring.commands.model_source import MixtureContent, MixtureEntry, MixtureMember, ModelSource
from sparring.commands.psro_files import (
    PAGE,
    PAYOFFS,
    Iteration,
    PsroDirectory,
    PsroState,
    member_name,
    read_state,
)
from sparring.commands.psro_page import psro_html
from sparring.commands.serving import Serve, serving
from sparring.commands.tournament import hold, tournament_of
from sparring.config import Config
from sparring.config.loading import differences_text
from sparring.config.play import EnvSettings, Games
from sparring.config.population import PsroSettings
from sparring.core import InputError, SparringError
from sparring.core.adapters import BASE, MIXTURE_FILE, TRAINED
from sparring.core.errors import check_installed
from sparring.core.files import remove_directory, write_file
from sparring.envs.catalog import library_of
from sparring.envs.openspiel_game import is_constant_sum
from sparring.envs.templates import get_template
from sparring.evaluation.best_response import gain_over_mixture
from sparring.evaluation.match import Mixture, Progress
from sparring.evaluation.nash_conv import TooSlow, nash_conv
from sparring.evaluation.results import NashConvResult
from sparring.evaluation.schedule import GameSchedule
from sparring.evaluation.venues import GameVenue
from sparring.population.meta_strategies import PACKAGES, meta_strategy
from sparring.population.payoffs import PayoffMatrix
from sparring.run.given_adapters import copy_adapter, find_given
from sparring.run.hardware import with_chosen_threads
from sparring.run.run_directory import RunDirectory

DIGITS = 4
"""Probabilities are rounded to the accuracy of the solvers, so that no member plays for their noise."""


def psro(
    config: Config,
    path: Path,
    *,
    train: Train = train_to_the_end,
    progress: Progress | None = None,
    on_state: Callable[[PsroState], None] | None = None,
) -> PsroState | None:
    """Run the iterations that ``path`` does not have, which may hold the same PSRO with as many or fewer.

    ``on_state`` is called with what is known at the beginning and after each iteration.

    Returns:
        What was found; ``None`` if the training of a best response was interrupted.

    Raises:
        InputError: the configuration cannot be used, or the directory holds something else.
        SparringError: a training had to stop, or games could not be finished.
    """
    check_psro(config)
    check_installed("sparring psro", "populations", *PACKAGES)
    progress = progress or Progress()
    directory = PsroDirectory.open(path)
    try:
        loop = _Psro(_begin(config, directory, progress), directory, progress)
        state = read_state(path) or loop.first()
        while True:
            loop.use(state)
            if on_state is not None:
                on_state(state)
            number = len(state.iterations)
            if number > loop.settings.iterations:
                return state
            progress.say(f"iteration {number} of {loop.settings.iterations}: a best response")
            if not train(loop.best_response(number, state), directory.run(number)):
                return None
            state = loop.joined(number, state)
    except OSError as error:
        problem = f"{path} cannot be written ({error}): free the disk or fix its permissions"
        raise SparringError(f"{problem}, and give this command again") from error
    finally:
        directory.close()


def check_psro(config: Config) -> tuple[EnvSettings, PsroSettings]:
    """Return the game and the settings of a PSRO; raise an InputError if it is for something else."""
    if not isinstance(config.play, Games):
        raise InputError("program", "PSRO is for games", "Give [[envs]]")
    if config.league is not None:
        raise InputError("league", "PSRO has a population of its own", "Leave [league] out")
    if config.evaluation.envs:
        raise InputError("evaluation.envs", "PSRO is evaluated in the game that it plays", "Leave it out")
    if len(config.envs) > 1:
        raise InputError("envs", f"PSRO needs one game, but there are {len(config.envs)}", "Leave one")
    env = config.envs[0]
    if env.num_players != 2:
        problem = f"PSRO needs a game for two, but {env.name} is for {env.num_players}"
        raise InputError("envs.0.num_players", problem, "Choose another game")
    if library_of(env.id) == "openspiel" and not is_constant_sum(env.id):
        problem = f"PSRO is for zero-sum games, and {env.name} is not one"
        raise InputError("envs.0.id", problem, "Choose another game")
    if config.policies != [TRAINED]:
        raise InputError("envs.0.policies", "PSRO needs one policy in both seats", "Leave it out")
    if config.inference.temperature != 1:
        problem = "must be 1, the temperature at which the payoffs of a PSRO are played"
        raise InputError("inference.temperature", problem, "Leave it out")
    if not config.evaluation.every:
        problem = "is 0, but a best response is complete when its evaluations find no better one"
        raise InputError("evaluation.every", problem, "Set it to 5")
    return env, config.psro or PsroSettings()


def best_response_to(
    mixture: Mapping[str, float], members: Mapping[str, Path | None], number: int, config: Config
) -> Config:
    """Return the run of the best response with this number, from 1 on, to a mixture.

    It keeps the model, the game and everything about playing and learning. ``members`` are the members
    so far with their adapters, in order; ``None`` is the base model.
    """
    settings = config.psro or PsroSettings()
    data = config.model_dump(exclude_none=True, exclude={"psro", "population", "frozen"})
    data["seed"] = config.seed + number
    data["evaluation"] |= {"patience": settings.patience, "games_alongside": 0, "nash_conv": False}
    data["run"].pop("keep_best", None)
    met = {name: path for name, path in members.items() if mixture[name]}
    names = tuple(BASE if path is None else name for name, path in met.items())
    seat = Mixture(names, tuple(mixture[name] for name in met))
    begins = [*members.values()][0 if settings.start == "first" else -1]
    start = {} if begins is None else {TRAINED: begins}
    frozen = {name: path for name, path in met.items() if path is not None}
    seats = config.envs[0].num_players
    policy = FrozenPolicy((seat,) * seats, frozen, start, (TRAINED,) * seats)
    return best_response_config(data, policy, start)


def _begin(config: Config, directory: PsroDirectory, progress: Progress) -> Config:
    """Write the configuration, copy the adapter of ``[start]``, and return the configuration with threads."""
    earlier = directory.config()
    if earlier is None:
        cores = runtime_of(config, progress).cores(config)
        if cores is not None:
            config = with_chosen_threads(config, cores, progress.say)
    elif (before := _comparable(earlier)) != (now := _comparable(config)):
        problem = f"{directory.path} holds another PSRO, which differs in {differences_text(before, now)}"
        raise InputError("directory", problem, "Choose another name, or give the same configuration")
    else:
        config = config.model_copy(update={"model": earlier.model})
    directory.write_config(config)
    if read_state(directory.path) is None:
        for source in find_given(config.model_copy(update={"frozen": {}})).values():
            copy_adapter(source, directory.run(0))
    return config


def _comparable(config: Config) -> Config:
    """Return what must stay the same: all but the places, the numbers of threads and of iterations."""
    settings = config.psro or PsroSettings()
    return without_places(config, psro=settings.model_copy(update={"iterations": 1}))


class _Psro:
    """The stages of an iteration. Each one, given again after a kill, goes on where it was."""

    def __init__(self, config: Config, directory: PsroDirectory, progress: Progress) -> None:
        self.config = config
        self.env, self.settings = check_psro(config)
        self.directory = directory
        self.progress = progress
        self.serve = _serve_on_cluster(config, progress) if config.run.runtime == "ray" else None

    def first(self) -> PsroState:
        """Return what is known of the first member alone, and write it down."""
        name = member_name(0)
        iteration = Iteration(name, 0, 0, 0, None, {name: 1.0}, *self._nash_conv({name: 1.0}))
        state = PsroState(self.env.name, self.settings.solver, [name], [[0.0]], [[0.0]], [[0]], [iteration])
        self.directory.write_state(state)
        return state

    def best_response(self, number: int, state: PsroState) -> Config:
        """Return the run of the best response to the last mixture."""
        mixture = state.iterations[-1].mixture
        return best_response_to(mixture, self._adapters(state.members), number, self.config)

    def joined(self, number: int, state: PsroState) -> PsroState:
        """Let the best response play every member, solve the payoffs, and write down what is found."""
        name = member_name(number)
        matrix = self._payoffs([*state.members, name])
        solved = meta_strategy(self.settings.solver, matrix.advantage_MM)
        weights = [round(float(one), DIGITS) for one in solved]
        mixture = {one: weight / sum(weights) for one, weight in zip(matrix.members, weights, strict=True)}
        run = RunDirectory(self.directory.run(number))
        iteration = Iteration(
            name,
            run.saved_steps()[-1],
            training_games(run),
            int(matrix.games_MM.sum()) // 2,
            gain_over_mixture(matrix, name, state.iterations[-1].mixture),
            mixture,
            *self._nash_conv(mixture),
        )
        found = msgspec.structs.replace(
            state,
            members=[*matrix.members],
            payoffs=matrix.mean_MM.tolist(),
            standard_error=matrix.error_MM.tolist(),
            games=matrix.games_MM.tolist(),
            iterations=[*state.iterations, iteration],
        )
        self.directory.write_state(found)
        return found

    def use(self, state: PsroState) -> None:
        """Make the last mixture a model's name, and draw the page; delete what joined members do not need."""
        path, mixture = self.directory.path, state.iterations[-1].mixture
        entries = [
            MixtureEntry(
                name=name,
                adapter=None if adapter is None else str(adapter.relative_to(path)),
                weight=mixture[name],
            )
            for name, adapter in self._adapters(state.members).items()
        ]
        limit = self.config.inference.max_tokens
        content = MixtureContent(model=self.config.model, max_tokens=limit, envs=(self.env,), members=entries)
        write_file(path / MIXTURE_FILE, content.to_bytes())
        write_file(path / PAGE, psro_html(state, self.config.seed).encode())
        for number in range(1, len(state.members)):
            remove_directory(RunDirectory(self.directory.run(number)).given)  # copies of earlier members

    def _adapters(self, members: Iterable[str]) -> dict[str, Path | None]:
        return {name: self.directory.adapter(number) for number, name in enumerate(members)}

    def _member(self, name: str, adapter: Path | None, mixed: tuple[MixtureMember, ...] = ()) -> Member:
        limit = self.config.inference.max_tokens
        source = ModelSource(self.config.model, adapter, limit, (self.env,), mixed)
        return Member(name, "model", name, source)

    def _payoffs(self, members: list[str]) -> PayoffMatrix:
        """Play the games of the payoff matrix that are missing."""
        players = [self._member(name, path) for name, path in self._adapters(members).items()]
        schedule = GameSchedule(members, self.settings.payoff_games, None, self.config.seed)
        games = tournament_of(players, GameVenue(self.env), schedule, self.progress, serve=self.serve)
        result = hold(games, self.directory.path / PAYOFFS, self.progress)
        for pair in schedule.groups:
            names = [members[place] for place in pair]
            if min(result.table.payoff(*seats).games for seats in (names, names[::-1])) < 2:
                reason = next(iter(result.failures), "")
                raise SparringError(f"{' and '.join(names)} did not finish four games: {reason}")
        return result.table.matrix(members)

    def _nash_conv(self, mixture: Mapping[str, float]) -> tuple[float | None, bool]:
        """Return the NashConv of a mixture, if the configuration asks for it, and whether it can be played.

        A mixture of several members takes longer than the first one. If that is too long, there is none.
        """
        if not self.config.evaluation.nash_conv:
            return None, True
        adapters = self._adapters(mixture)
        mixed = (MixtureMember(name, adapters[name], weight) for name, weight in mixture.items() if weight)
        member = self._member("mixture", None, tuple(mixed))

        async def measured() -> NashConvResult:
            async with serving([member], self.config.seed, self.progress, self.serve) as client:
                return await nash_conv(
                    client,
                    self.env.id,
                    get_template(self.env.template),
                    model=member.models(GameVenue(self.env)),
                    timeout=60 * self.config.evaluation.nash_conv_minutes,
                    progress=self.progress,
                )

        try:
            found = asyncio.run(measured())
        except TooSlow as error:
            if len(mixture) == 1:
                raise
            self.progress.say(f"warning: NashConv of the mixture is left out: {error.problem}")
            return None, True
        return found.nash_conv, found.is_playable


def _serve_on_cluster(config: Config, progress: Progress) -> Serve:
    """Return what serves members on the configuration's cluster."""
    from sparring.cluster.served import members_served  # imports Ray

    return lambda adapters: members_served(config, adapters, progress.say)
