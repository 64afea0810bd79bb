"""The programs that members and best responses play, found by the runs that trained in them."""

from collections.abc import Mapping, Sequence

from sparring.commands.members import Member
from sparring.config import Config
from sparring.config.play import Games
from sparring.core import InputError
from sparring.core.adapters import BASE
from sparring.core.errors import refuse
from sparring.evaluation.venues import Frozen, ProgramVenue
from sparring.run.given_adapters import find_adapter, frozen_of
from sparring.run.programs import build_program


def refuse_for_programs(options: Mapping[str, object]) -> None:
    """Raise an InputError for an option of games that is set, by its name, where a program is played."""
    refuse(options, "is for games, but a program is played", "Leave it out, or name a game")


def program_venue(config: Config, name: str, field: str, least: int = 2) -> ProgramVenue:
    """Return the program of a configuration, which ``name`` has in the user's input ``field``.

    Raises:
        InputError: it is no program, has fewer than ``least`` roles that are trained, or one of them judges.
    """
    arena = build_program(config)
    if arena is None:
        raise InputError(field, f"{name} plays games, not a program", "Name a game")
    roles = tuple(role for role in arena.roles.values() if role.policy not in arena.frozen)
    if len(roles) < least:
        problem = f"the program of {name} trains the role {roles[0].id} alone"
        raise InputError(field, problem, "Choose a program that trains two roles")
    judge = getattr(config.play, "judge_model", None) or BASE
    if judge not in arena.frozen:
        problem = f"the program of {name} lets {judge} judge, which its members have each in another version"
        raise InputError(field, problem, "It takes a program whose judge is not trained")
    return ProgramVenue(config, arena, roles, frozen_of_program(config))


def frozen_of_program(config: Config) -> Frozen:
    """Return who holds the roles of a configuration's program that nobody trains; raise an InputError if an
    adapter is missing."""
    adapters = {
        name: find_adapter(place, name, f"frozen.{name}")
        for name, place in frozen_of(config, "adapter").items()
    }
    return Frozen(adapters, frozen_of(config, "api"), config.collection.api_calls)


def venue_of_members(members: Sequence[Member], seed: int) -> ProgramVenue:
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
    return program_venue(first, name, "members")
