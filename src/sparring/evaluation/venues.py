"""Venues: what is played against each other, a game or a program, and who answers in each of its seats."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sparring.config import Config
from sparring.config.play import GameSettings
from sparring.core import AgentSpec, Arena, CallSettings, EpisodeRequest, InferenceClient, InputError, Role
from sparring.core.adapters import STATE_FILE
from sparring.core.own_code import called, own_code
from sparring.envs.game_episode import StandIn, build_episode
from sparring.evaluation.match import Agent, Mixture, Play, mapped, play_of_game, play_of_program
from sparring.learn.saved_states import read_json

LEAST_REQUESTS = 256
"""The requests of a program of which each deal has one, in whole batches of the program."""


@dataclass(frozen=True)
class Frozen:
    """Who holds the roles of a program that nobody trains.

    Attributes:
        adapters: adapters by name.
        apis: the addresses of models behind an API, by name.
        calls: how many calls may be made to all models behind an API; ``None`` for no limit.
    """

    adapters: Mapping[str, Path] = field(default_factory=dict)
    apis: Mapping[str, str] = field(default_factory=dict)
    calls: int | None = None


@dataclass(frozen=True)
class GameVenue:
    """A game, whose seats are its players, at the models' sampling temperature."""

    env: GameSettings
    temperature: float = 1.0

    @property
    def name(self) -> str:
        """The game's name."""
        return self.env.name

    @property
    def frozen(self) -> Frozen:
        """Nobody: all seats are those of members."""
        return Frozen()

    @property
    def seats(self) -> tuple[str, ...]:
        """The numbers of the seats, from 0."""
        return tuple(map(str, range(self.env.num_players)))

    @property
    def policies(self) -> tuple[str, ...]:
        """The policy of each seat."""
        return self.env.seats

    @property
    def settings(self) -> dict[str, Any]:
        """The game, its rules and the temperature."""
        rules = ("template", "max_turns", "error_allowance", "stop")
        return {
            "env_id": self.name,
            "players": self.env.num_players,
            **{name: getattr(self.env, name) for name in rules},
            "temperature": self.temperature,
        }

    def agents(self, models: Sequence[str | Mixture[str]], calls: CallSettings) -> tuple[Agent, ...]:
        """Return who answers in each seat if it has this model, which draws with these settings."""
        temperature = self.temperature if calls.temperature is None else calls.temperature

        def agent(name: str) -> AgentSpec:
            return AgentSpec("model", name, temperature, calls.max_tokens, sampling=calls.sampling)

        return tuple(mapped(model, agent) for model in models)

    @asynccontextmanager
    async def playing(self, client: InferenceClient, stand_in: StandIn | None = None) -> AsyncIterator[Play]:
        """Provide what plays the game; ``stand_in`` may make moves of agents that have one."""
        yield play_of_game(Arena(client), build_episode(self.env, stand_in=stand_in))


@dataclass(frozen=True)
class ProgramVenue:
    """A program, whose seats are the ``roles`` that it trains; ``frozen`` hold the others.

    The arena goes on from request to request, so it is played once.
    """

    config: Config
    arena: Arena
    roles: tuple[Role, ...]
    frozen: Frozen

    @property
    def name(self) -> str:
        """The program's name."""
        return self.config.play.names[0]

    @property
    def seats(self) -> tuple[str, ...]:
        """The names of the roles."""
        return tuple(role.id for role in self.roles)

    @property
    def policies(self) -> tuple[str, ...]:
        """The policy of each role."""
        return tuple(role.policy for role in self.roles)

    @property
    def settings(self) -> dict[str, Any]:
        """The program's settings, those of its roles, and who is frozen."""
        roles = {name: role.model_dump(mode="json") for name, role in self.config.roles.items()}
        assert self.config.program is not None
        program = self.config.program.model_dump(mode="json")
        return {"program": program, "roles": roles, "frozen": dict(self.config.frozen)}

    def agents(self, models: Sequence[str | Mixture[str]], calls: CallSettings) -> tuple[Agent, ...]:
        """Return who answers in each role if it has this model; roles have limits of their own."""

        def agent(name: str) -> AgentSpec:
            return AgentSpec("model", name, calls.temperature, sampling=calls.sampling)

        return tuple(mapped(model, agent) for model in models)

    @asynccontextmanager
    async def playing(self, client: InferenceClient) -> AsyncIterator[Play]:
        """Start the program up, and provide what plays its requests."""
        self.arena.client = client
        async with started(self.arena):
            requests: list[EpisodeRequest] = []
            while len(requests) < LEAST_REQUESTS:
                requests += await next_requests(self.arena)
            yield play_of_program(self.arena, requests, self.seats)


Venue = GameVenue | ProgramVenue
"""What is played against each other."""


@asynccontextmanager
async def started(arena: Arena, checkpoint: Path | None = None) -> AsyncIterator[None]:
    """Start a program up for as long as the body runs, from its state in a checkpoint if there is one."""
    await called(arena.startup, "the program's startup")
    try:
        if checkpoint is not None and (state := checkpoint / STATE_FILE).exists():
            with own_code("the program's load_state_dict failed"):
                arena.load_state_dict(read_json(state)["source"]["arena"])
        yield
    finally:
        await called(arena.shutdown, "the program's shutdown")


async def next_requests(arena: Arena) -> list[EpisodeRequest]:
    """Return the requests of the program's next step, which nobody ends."""
    with own_code():
        number, requests = await arena.begin_step()
    if not requests:
        raise InputError("program", "get_batch has nothing to play", "Let it return requests")
    arena.step_num = number + 1
    return requests
