"""NashConv of a tournament's members: how exploitable each one is, in games where that can be computed."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from selfplay.commands.tournament_members import Member
from selfplay.config.play import GameSettings
from selfplay.core import AgentSpec, InferenceClient, InputError
from selfplay.core.files import write_file
from selfplay.envs.templates import get_template
from selfplay.evaluation.mixture import Mixture, mapped
from selfplay.evaluation.nash_conv import LONG_LIMIT, TooSlow, nash_conv
from selfplay.population.rankings import Rankings
from selfplay.training.progress_views import View

NASH_CONVS = "nash_conv.json"
"""The file of a tournament's directory that has the NashConv of each member by its name."""

Seats = Sequence[AgentSpec | Mixture[AgentSpec]]
"""Who answers in each seat."""


def read_nash_convs(directory: Path) -> dict[str, float]:
    """Return what was measured before; members of a tournament never change.

    Raises:
        InputError: the file is damaged.
    """
    file = directory / NASH_CONVS
    if not file.is_file():
        return {}
    try:
        return {str(uid): float(value) for uid, value in json.loads(file.read_text(encoding="utf-8")).items()}
    except (ValueError, TypeError, AttributeError) as error:
        raise InputError(str(file), "is damaged", "Delete it; it is measured again") from error


def unmeasured(members: Sequence[Member], measured: Mapping[str, float]) -> list[Member]:
    """Return the members whose NashConv is still to be computed: models that are served here."""
    return [one for one in members if one.kind == "model" and one.uid not in measured]


async def measure_members(
    client: InferenceClient,
    env: GameSettings,
    members: Sequence[Member],
    agents: Mapping[str, Seats],
    directory: Path,
    view: View,
    say: Callable[[str], None],
) -> dict[str, float]:
    """Compute and write down the NashConv of every member that has none yet; return all of them.

    Args:
        client: scores answers of the members.
        env: the game.
        members: the members of the tournament.
        agents: who answers for each member in each seat.
        directory: the tournament's directory.
        view: shows the progress.
        say: called with a line if it would take too long, and is left out.

    Raises:
        InputError: the file of before is damaged.
        OSError: the file cannot be written.
    """
    measured = read_nash_convs(directory)
    template = get_template(env.template)
    for member in unmeasured(members, measured):
        view.counting("positions")
        view.doing(f"NashConv of {member.uid}")
        models = tuple(mapped(seat, lambda agent: agent.model) for seat in agents[member.uid])
        try:
            found = await nash_conv(
                client,
                env.id,
                template,
                model=models,
                timeout=LONG_LIMIT,
                on_position=view.count,
                say=view.doing,
            )
        except TooSlow as error:
            say(f"note: NashConv of {member.uid} is left out: {error.problem}")
            continue
        measured[member.uid] = found.nash_conv
        write_file(directory / NASH_CONVS, f"{json.dumps(measured, indent=1)}\n".encode())
    return measured


def with_nash_conv(rankings: Rankings, measured: Mapping[str, float]) -> Rankings:
    """Return the rankings with the NashConv of the members that have one."""
    members = [replace(one, nash_conv=measured.get(one.uid)) for one in rankings.members]
    return replace(rankings, members=members)
