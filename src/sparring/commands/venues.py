"""Venues: what members play against each other, a game or a program, and who answers in each of its seats."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from sparring.commands.members import Member
from sparring.config import Config
from sparring.config.loading import load_config
from sparring.config.play import Games, GameSettings
from sparring.core import AgentSpec, Arena, EpisodeRequest, InferenceClient, InputError, Role
from sparring.core.own_code import called, own_code
from sparring.envs.game_episode import build_episode
from sparring.evaluation.match import Agent, Play, play_of_game, play_of_program
from sparring.run.given_adapters import find_adapter
from sparring.run.programs import build_program
from sparring.run.run_directory import RunDirectory
from sparring.run.run_names import find_run, split_checkpoint

LEAST_REQUESTS = 256
"""The requests of a program of which each deal has one, in whole batches of the program."""


@dataclass(frozen=True)
class GameVenue:
    """A game, whose seats are its players.

    Attributes:
        env: the game and its rules.
        temperature: the models' sampling temperature.
        frozen: no adapters.
    """

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
        """Return who answers for a member in each seat.

        Raises:
            InputError: the member has several policies, but none for a seat.
        """
        return member.agents(self.env, self.temperature)

    @asynccontextmanager
    async def playing(self, client: InferenceClient) -> AsyncIterator[Play]:
        """Provide what plays the game."""
        yield play_of_game(Arena(client), build_episode(self.env))


@dataclass(frozen=True)
class ProgramVenue:
    """A program, whose seats are the roles that it trains.

    Attributes:
        config: the configuration of a run of the program.
        arena: the program.
        roles: the roles that are trained, in order.
        frozen: the adapters of the other roles.
    """

    config: Config
    arena: Arena
    roles: tuple[Role, ...]
    frozen: Mapping[str, Path]

    @classmethod
    def of(cls, members: Sequence[Member], seed: int) -> Self:
        """Return the program of the runs among the members, with another seed.

        Raises:
            InputError: there is no such run, or they have different programs.
        """
        runs = [one for one in members if one.source is not None and one.source.trained]
        if not runs:
            raise InputError("members", "there is no run among them", "Name one, or name a game")
        configs = [_config_of(one) for one in runs]
        first = configs[0].model_copy(update={"seed": seed})
        for one, config in zip(runs, configs, strict=True):
            if isinstance(config.play, Games):
                raise InputError("members", f"{one.name} plays games, not a program", "Name a game")
            if (config.play, config.roles) != (first.play, first.roles):
                problem = f"{one.name} has another program, or other roles, than {runs[0].name}"
                raise InputError("members", problem, "Leave one of them out")
        arena = build_program(first)
        assert arena is not None
        roles = tuple(role for role in arena.roles.values() if role.policy not in arena.frozen)
        if len(roles) < 2:
            problem = f"the program of {runs[0].name} trains the role {roles[0].id} alone"
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
        """Return who answers for a member in each role.

        Raises:
            InputError: the member has several policies, but none for a role.
        """
        return tuple(AgentSpec("model", member.model_of(role)) for role in self.roles)

    @asynccontextmanager
    async def playing(self, client: InferenceClient) -> AsyncIterator[Play]:
        """Start the program up, and provide what plays its requests.

        Raises:
            SparringError: the program's own code failed.
        """
        self.arena.client = client
        await called(self.arena.startup, "the program's startup")
        try:
            requests: list[EpisodeRequest] = []
            while len(requests) < LEAST_REQUESTS:
                with own_code():
                    number, asked = await self.arena.begin_step()
                if not asked:
                    raise InputError("members", "get_batch has nothing to play", "Let it return requests")
                self.arena.step_num = number + 1
                requests += asked
            yield play_of_program(self.arena, requests, [role.id for role in self.roles])
        finally:
            await called(self.arena.shutdown, "the program's shutdown")


Venue = GameVenue | ProgramVenue
"""What members play against each other."""


def _config_of(member: Member) -> Config:
    run = RunDirectory.open(find_run(split_checkpoint(member.name)[0], "members"))
    return load_config(str(run.config_file), {})
