"""PSRO of a configuration, a game or a program: best responses are runs, members are adapters."""

import asyncio
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

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
from sparring.commands.psro_files import PAGE, PAYOFFS, PsroDirectory
from sparring.commands.psro_page import psro_html
from sparring.commands.serving import Serve, serving
from sparring.commands.tournament import hold, tournament_of
from sparring.commands.venues import program_venue
from sparring.config import Config
from sparring.config.base import MOST_SEED
from sparring.config.loading import differences_text
from sparring.config.play import Games
from sparring.config.population import PsroSettings
from sparring.core import InputError
from sparring.core.adapters import MIXTURE_FILE, TRAINED
from sparring.core.errors import check_installed
from sparring.core.files import remove_directory, unwritable, write_file
from sparring.engine.paid_answers import ANSWERS_FILE, CallsSpent, PaidFile
from sparring.envs.catalog import library_of
from sparring.envs.openspiel_game import is_constant_sum
from sparring.envs.templates import get_template
from sparring.evaluation.match import Progress
from sparring.evaluation.nash_conv import TooSlow, nash_conv
from sparring.evaluation.psro import (
    PsroState,
    Response,
    find_equilibrium,
    first_solver,
    member_name,
    read_state,
)
from sparring.evaluation.results import NashConvResult
from sparring.evaluation.schedule import MAX_SEATS, GameSchedule
from sparring.evaluation.tournament import TournamentResult
from sparring.evaluation.venues import GameVenue, Venue
from sparring.population.meta_strategies import PACKAGES
from sparring.run.given_adapters import copy_adapter, find_given
from sparring.run.hardware import with_chosen_threads
from sparring.run.run_directory import RunDirectory

MOST_PROFILES = {"alpharank": (1000, "prd"), "prd": (100_000, "uniform")}
"""With more than two seats, how many profiles, a member for each seat, a solver takes minutes for; and the
solver to choose for more."""


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
    venue = check_psro(config)
    check_installed("sparring psro", "populations", *PACKAGES)
    progress = progress or Progress()
    directory = PsroDirectory.open(path)
    try:
        config = _begin(config, venue, directory, progress)
        members, said = _Members(config, directory, train, progress), ""

        def tell(state: PsroState) -> None:
            nonlocal said
            members.use(state)
            if members.settings.solver is None and len(state.iterations) > 1 and state.solver != said:
                progress.say(_solver_line(state))
                said = state.solver
            if on_state is not None:
                on_state(state)

        return find_equilibrium(
            venue.name,
            members.settings,
            path,
            seats=len(venue.seats),
            respond=members.respond,
            play=members.play,
            measure=members.nash_conv,
            on_state=tell,
        )
    except CallsSpent as error:
        raise CallsSpent.after(config.collection.api_calls or 0) from error
    except OSError as error:
        raise unwritable(path, error) from error
    finally:
        directory.close()


def check_psro(config: Config) -> Venue:
    """Return what a PSRO plays; raise an InputError if the configuration is for something else."""
    if config.league is not None:
        raise InputError("league", "PSRO has a population of its own", "Leave [league] out")
    iterations = (config.psro or PsroSettings()).iterations
    if config.seed + iterations > MOST_SEED:
        problem = f"the seeds of {iterations} best responses follow {config.seed}"
        raise InputError("seed", problem, f"Give at most {MOST_SEED - iterations}")
    if config.evaluation.envs:
        raise InputError("evaluation.envs", "PSRO is evaluated in the game that it plays", "Leave it out")
    if not isinstance(config.play, Games):
        program = program_venue(config, "the configuration", "program")
        _check_seats(config, program, "program")
        return program
    if len(config.envs) > 1:
        raise InputError("envs", f"PSRO needs one game, but there are {len(config.envs)}", "Leave one")
    env = config.envs[0]
    if env.num_players < 2:
        problem = f"PSRO needs a game for two or more, but {env.name} is for {env.num_players}"
        raise InputError("envs.0.num_players", problem, "Choose another game")
    if frozen := config.frozen.keys() & {*env.seats}:
        problem = f"PSRO trains all seats, but {min(frozen)} is in [frozen]"
        raise InputError("envs.0.policies", problem, "Name policies that are trained")
    if config.inference.temperature != 1:
        problem = "must be 1, the temperature at which the payoffs of a PSRO are played"
        raise InputError("inference.temperature", problem, "Leave it out")
    if not config.evaluation.every:
        problem = "is 0, but a best response is complete when its evaluations find no better one"
        raise InputError("evaluation.every", problem, "Set it to 5")
    venue = GameVenue(env)
    _check_seats(config, venue, "envs.0.num_players")
    return venue


def _check_seats(config: Config, venue: Venue, field: str) -> None:
    if len(venue.seats) > MAX_SEATS:
        problem = f"PSRO plays all orders of seats, and {venue.name} has {len(venue.seats)}"
        raise InputError(field, problem, f"At most {MAX_SEATS} are possible")
    settings, seats = config.psro or PsroSettings(), len(venue.seats)
    if seats == 2:
        return
    members, name = settings.iterations + 1, first_solver(settings, seats)
    if name == "nash":
        problem = f"nash is for two seats, but {venue.name} has {seats}"
        raise InputError("psro.solver", problem, "Choose prd, alpharank or uniform")
    most, other = MOST_PROFILES.get(name, (math.inf, ""))
    if (profiles := members**seats) > most:
        problem = f"{name} would solve {profiles:,} profiles of {members} members in {seats} seats"
        fix = f"Choose {other}, or fewer iterations: {most:,} profiles are possible"
        raise InputError("psro.solver", problem, fix)


def _solver_line(state: PsroState) -> str:
    """Return why mixtures are solved as they are, where the configuration names no solver."""
    if state.solver == "nash":
        return "note: both seats together earn the same in every game, so mixtures are solved by nash"
    why = "there are more than two seats" if state.seats > 2 else "what both seats earn together varies"
    return f"note: {why}, so mixtures are solved by {state.solver}"


def _is_constant_sum(venue: Venue) -> bool | None:
    """Return whether all seats together always earn the same; ``None`` if nobody says so."""
    if not isinstance(venue, GameVenue) or library_of(venue.env.id) != "openspiel":
        return None
    return is_constant_sum(venue.env.id)


def best_response_to(
    mixture: Mapping[str, float], members: Mapping[str, Path | None], number: int, config: Config
) -> Config:
    """Return the run of the best response with this number, from 1 on, to a mixture.

    It keeps the model, what is played and everything about playing and learning. ``members`` are the members
    so far with their adapters, in order; ``None`` is the base model.
    """
    settings, venue = config.psro or PsroSettings(), check_psro(config)
    replaced = {"psro", "population", "start"}
    if isinstance(venue, GameVenue):
        replaced.add("frozen")
    data = config.model_dump(exclude_none=True, exclude=replaced)
    data["seed"] = config.seed + number
    if isinstance(venue, GameVenue):
        data["evaluation"] |= {"patience": settings.patience, "games_alongside": 0, "nash_conv": False}
    data["run"].pop("keep_best", None)
    met = (MixtureMember(name, path, mixture[name]) for name, path in members.items() if mixture[name])
    source = ModelSource(config.model, envs=tuple(config.envs), members=tuple(met))
    begins = [*members.values()][0 if settings.start == "first" else -1]
    first = ModelSource(config.model, begins, envs=tuple(config.envs))
    policy = FrozenPolicy.of(source, venue, named=str)
    return best_response_config(data, policy, FrozenPolicy.of(first, venue).start)


def _begin(config: Config, venue: Venue, directory: PsroDirectory, progress: Progress) -> Config:
    """Write the configuration, copy the adapters of ``[start]``, return the configuration with threads."""
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
    given: dict[str, Path] = {}
    policies = {*venue.policies}
    if read_state(directory.path) is None:
        if config.start and (missing := policies - config.start.keys()):
            problem = (
                f"PSRO begins with an adapter for every policy, or for none, but {min(missing)} has none"
            )
            raise InputError("start", problem, "Name one for each")
        given = find_given(config.model_copy(update={"frozen": {}}))
    directory.write_config(config)  # only now: a corrected [start] is not another PSRO
    for policy, source in given.items():
        place = directory.run(0)
        copy_adapter(source, place if policies == {TRAINED} else place / policy)
    return config


def _comparable(config: Config) -> Config:
    """Return what must stay the same: all but the places, the numbers of threads and of iterations."""
    settings = config.psro or PsroSettings()
    return without_places(config, psro=settings.model_copy(update={"iterations": 1}))


@dataclass(frozen=True)
class _Members:
    """The members of a PSRO, which are trained, play and are measured as its configuration says."""

    config: Config
    directory: PsroDirectory
    train: Train
    progress: Progress

    @property
    def settings(self) -> PsroSettings:
        return self.config.psro or PsroSettings()

    def respond(self, number: int, mixture: Mapping[str, float]) -> Response | None:
        """Train the best response to a mixture."""
        self.progress.say(f"iteration {number} of {self.settings.iterations}: a best response")
        members = self._adapters(map(member_name, range(number)))
        place = self.directory.run(number)
        config = best_response_to(mixture, members, number, self._with_calls_left(place))
        if not self.train(config, place):
            return None
        run = RunDirectory(place)
        return Response(run.saved_steps()[-1], training_games(run))

    def play(self, members: list[str]) -> TournamentResult:
        """Play the games of the payoff matrix that are missing."""
        players = [self._member(name, path) for name, path in self._adapters(members).items()]
        place = self.directory.path / PAYOFFS
        venue = check_psro(self._with_calls_left(place))
        seats, games = len(venue.seats), self.settings.payoff_games
        repeats = seats > 2 or not _is_constant_sum(venue)
        schedule = GameSchedule(members, games, None, self.config.seed, seats, repeats=repeats)
        tournament = tournament_of(players, venue, schedule, self.progress, serve=self._serve())
        return hold(tournament, place, self.progress)

    def _with_calls_left(self, place: Path) -> Config:
        """Return the configuration with the calls to models behind an API that ``place``, a member or the
        payoffs, may make beside those of all others."""
        collection = self.config.collection
        if collection.api_calls is None:
            return self.config
        others = (file for file in self.directory.path.glob(f"*/{ANSWERS_FILE}") if file.parent != place)
        made = sum(PaidFile(file, None).calls for file in others)
        left = collection.model_copy(update={"api_calls": max(0, collection.api_calls - made)})
        return self.config.model_copy(update={"collection": left})

    def nash_conv(self, mixture: Mapping[str, float]) -> tuple[float | None, bool]:
        """Return the NashConv of a mixture, if the configuration asks for it, and whether it can be played.

        A mixture of several members takes longer than the first one. If that is too long, there is none.
        """
        if not self.config.evaluation.nash_conv:
            return None, True
        adapters = self._adapters(mixture)
        mixed = (MixtureMember(name, adapters[name], weight) for name, weight in mixture.items() if weight)
        member, env = self._member("mixture", None, tuple(mixed)), self.config.envs[0]

        async def measured() -> NashConvResult:
            async with serving([member], self.config.seed, self.progress, self._serve()) as client:
                return await nash_conv(
                    client,
                    env.id,
                    get_template(env.template),
                    model=member.models(GameVenue(env)),
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
        limit, envs = self.config.inference.max_tokens, tuple(self.config.envs)
        content = MixtureContent(model=self.config.model, max_tokens=limit, envs=envs, members=entries)
        write_file(path / MIXTURE_FILE, content.to_bytes())
        write_file(path / PAGE, psro_html(state, self.config.seed).encode())
        for number in range(1, len(state.members)):
            remove_directory(RunDirectory(self.directory.run(number)).given)  # copies of earlier members

    def _adapters(self, members: Iterable[str]) -> dict[str, Path | None]:
        return {name: self.directory.adapter(number) for number, name in enumerate(members)}

    def _member(self, name: str, adapter: Path | None, mixed: tuple[MixtureMember, ...] = ()) -> Member:
        limit, envs = self.config.inference.max_tokens, tuple(self.config.envs)
        return Member(name, "model", name, ModelSource(self.config.model, adapter, limit, envs, mixed))

    def _serve(self) -> Serve | None:
        """Return what serves members on the configuration's cluster; ``None`` if this process does."""
        if self.config.run.runtime != "ray":
            return None
        from sparring.cluster.served import members_served  # imports Ray

        return lambda adapters: members_served(self.config, adapters, self.progress.say)
