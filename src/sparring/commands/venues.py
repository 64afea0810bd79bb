"""Venues: what members play against each other, a game or a program, and who answers in each of its seats."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from sparring.commands.members import Member
from sparring.commands.programs import next_requests, started
from sparring.config import Config
from sparring.config.play import Games, GameSettings
from sparring.core import AgentSpec, Arena, EpisodeRequest, InferenceClient, InputError, Role
from sparring.envs.game_episode import build_episode
from sparring.evaluation.match import Agent, Play, play_of_game, play_of_program
from sparring.run.given_adapters import find_adapter
from sparring.run.programs import build_program

LEAST_REQUESTS = 256
"""The requests of a program of which each deal has one, in whole batches of the program."""


def refuse_for_programs(options: Mapping[str, object]) -> None:
    """Raise an InputError for an option of games that is set, by its name, where a program is played."""
    for name, value in options.items():
        if value:
            raise InputError(name, "is for games, but the runs play a program", "Leave it out")


@dataclass(frozen=True)
class GameVenue:
    """A game, whose seats are its players, at the models' sampling temperature."""

    env: GameSettings
    temperature: float = 1.0
    frozen: Mapping[str, Path] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The game's name."""
        return self.env.name

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

    def agents(self, member: Member) -> Sequence[Agent]:
        """Return who answers for a member in each seat; see :meth:`Member.agents`."""
        return member.agents(self.env, self.temperature)

    @asynccontextmanager
    async def playing(self, client: InferenceClient) -> AsyncIterator[Play]:
        """Provide what plays the game."""
        yield play_of_game(Arena(client), build_episode(self.env))


@dataclass(frozen=True)
class ProgramVenue:
    """A program, whose seats are the ``roles`` that it trains; ``frozen`` are the adapters of the others."""

    config: Config
    arena: Arena
    roles: tuple[Role, ...]
    frozen: Mapping[str, Path]

    @classmethod
    def of(cls, members: Sequence[Member], seed: int) -> Self:
        """Return the program of the runs among the members, with another seed."""
        runs = {one.name: one.source.config for one in members if one.source and one.source.config}
        if not runs:
            raise InputError("members", "there is no run among them", "Name one, or name a game")
        name, config = next(iter(runs.items()))
        first = config.model_copy(update={"seed": seed})
        for other, config in runs.items():
            if isinstance(config.play, Games):
                raise InputError("members", f"{other} plays games, not a program", "Name a game")
            if (config.play, config.roles) != (first.play, first.roles):
                problem = f"{other} has another program, or other roles, than {name}"
                raise InputError("members", problem, "Leave one of them out")
        arena = build_program(first)
        assert arena is not None
        roles = tuple(role for role in arena.roles.values() if role.policy not in arena.frozen)
        if len(roles) < 2:
            problem = f"the program of {name} trains the role {roles[0].id} alone"
            raise InputError("members", problem, "A tournament needs a program with two or more")
        frozen = {name: find_adapter(place, name, f"frozen.{name}") for name, place in first.frozen.items()}
        return cls(first, arena, roles, frozen)

    @property
    def name(self) -> str:
        """The program's name."""
        return self.config.play.names[0]

    @property
    def settings(self) -> dict[str, Any]:
        """The program's settings and those of its roles."""
        roles = {name: role.model_dump(mode="json") for name, role in self.config.roles.items()}
        assert self.config.program is not None
        return {"program": self.config.program.model_dump(mode="json"), "roles": roles}

    def agents(self, member: Member) -> Sequence[Agent]:
        """Return who answers for a member in each role; see :meth:`Member.model_of`."""
        return tuple(AgentSpec("model", member.model_of(role)) for role in self.roles)

    @asynccontextmanager
    async def playing(self, client: InferenceClient) -> AsyncIterator[Play]:
        """Start the program up, and provide what plays its requests."""
        self.arena.client = client
        async with started(self.arena):
            requests: list[EpisodeRequest] = []
            while len(requests) < LEAST_REQUESTS:
                requests += await next_requests(self.arena)
            yield play_of_program(self.arena, requests, [role.id for role in self.roles])


Venue = GameVenue | ProgramVenue
"""What members play against each other."""
