"""Tournaments of members that are named: runs, scripts, models behind an API; in a directory of their own."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from selfplay.commands.members import Member, base_of, environment_of, find_members
from selfplay.commands.serving import Serve, serving
from selfplay.commands.tournament_page import tournament_html
from selfplay.config.play import GameSettings
from selfplay.core import InputError, SelfplayError
from selfplay.core.files import write_file
from selfplay.core.own_classes import absolute
from selfplay.envs.game_episode import build_episode
from selfplay.evaluation.progress import Progress
from selfplay.evaluation.schedule import GameSchedule
from selfplay.evaluation.tournament import SAMPLES_PER_GROUP, Tournament, TournamentResult, with_nash_conv
from selfplay.evaluation.tournament_files import PAGE, TournamentFiles, write_payoffs
from selfplay.population.meta_strategies import check_installed
from selfplay.training.checks import (
    check_models_end_answers,
    check_nash_conv,
    checked_seats,
    renaming,
)

GAMES, GAMES_BEFORE_BUDGET = 200, 20
"""Games of each pair or group, and the first ones where a budget says how many there are in total."""


def tournament(
    members: Sequence[str],
    env_id: str,
    out: Path,
    *,
    games: int | None = None,
    budget: int | None = None,
    players: int | None = None,
    template: str | None = None,
    seed: int = 0,
    temperature: float = 1.0,
    nash_conv: bool = False,
    progress: Progress | None = None,
) -> TournamentResult:
    """Let all members play each other, rank them, and write the payoffs and a page into a directory.

    Games that the directory has already are not played again.

    Args:
        members: names of runs, checkpoints, adapters, scripted players, mixtures and models behind an API.
        env_id: the game.
        out: the directory, which may hold an unfinished tournament with the same settings.
        games: games of each pair or group; 200 by default. With a budget the first ones; 20 by default.
        budget: games in total, which go where the order is still open.
        players: number of seats; by default two where that is possible.
        template: how positions become prompts; by default as the runs trained.
        seed: root of all randomness.
        temperature: the models' sampling temperature.
        nash_conv: compute the NashConv of every model that is served here too.
        progress: told what goes on.

    Raises:
        InputError: an argument is wrong, the directory cannot be used, or a model cannot be loaded.
        SelfplayError: no game could be finished, or the directory cannot be written.
    """
    env_id = absolute(env_id, Path())
    seats = checked_seats(env_id, players, template)
    if seats < 2:
        problem = f"{env_id} has 1 seat"
        raise InputError("env.id", problem, "A tournament needs a game for two or more players")
    check_installed("tournament")
    if nash_conv:
        if temperature != 1:
            raise InputError("nash_conv", "is that of a temperature of 1", "Leave the temperature out")
        with renaming({"evaluation.nash_conv": "nash_conv"}):
            check_nash_conv(env_id)
    found = find_members(members, env_id)
    env = environment_of(found, env_id, template, seats)
    if nash_conv:
        check_models_end_answers(env, "nash_conv", "Leave it out")
    games = games or (GAMES if budget is None else GAMES_BEFORE_BUDGET)
    schedule = GameSchedule([one.uid for one in found], games, budget, seed, seats)
    held = HeldTournament(found, env, schedule, temperature, nash_conv)
    return held.hold(out, progress or Progress())


@dataclass(frozen=True)
class HeldTournament:
    """A tournament of members in a directory.

    Attributes:
        members: the players.
        env: a game for two or more.
        schedule: the games.
        temperature: the models' sampling temperature.
        nash_conv: whether the NashConv of every model that is served here is computed as well.
        serve: serves the members' adapters; without it, this process does.
    """

    members: Sequence[Member]
    env: GameSettings
    schedule: GameSchedule
    temperature: float = 1.0
    nash_conv: bool = False
    serve: Serve | None = None

    def hold(self, out: Path, progress: Progress) -> TournamentResult:
        """Play the games that ``out`` does not have, and write every file there.

        Raises:
            InputError: the directory cannot be used, or a model cannot be loaded.
            SelfplayError: no game could be finished, or the directory cannot be written.
        """
        agents = {one.uid: one.agents(self.env, self.temperature) for one in self.members}
        played = Tournament(build_episode(self.env), self.schedule, agents)
        files = TournamentFiles.open(out, self._settings())
        try:
            files.check_rewards(self.env.id)
            if files.played:
                progress.say(f"{out} has {len(files.played)} finished games, which are not played again")
            result = asyncio.run(self._play(played, files, progress))
            self._write(files, result)
        except OSError as error:
            problem = f"{out} cannot be written ({error}): free the disk or fix its permissions"
            raise SelfplayError(f"{problem}, and give this command again") from error
        finally:
            files.close()
        return result

    async def _play(
        self, tournament: Tournament, files: TournamentFiles, progress: Progress
    ) -> TournamentResult:
        measured = [one.uid for one in self.members if self.nash_conv and one.kind == "model"]
        is_done = tournament.is_complete(files) and files.nash_convs.keys() >= {*measured}
        answering = () if is_done else self.members
        async with serving(answering, self.schedule.seed, progress, self.serve) as client:
            result = await tournament.play(client, files, progress)
            await tournament.measure(client, measured, files, progress)
        known = files.nash_convs if self.nash_conv else {}
        return replace(result, rankings=with_nash_conv(result.rankings, known))

    def _settings(self) -> dict[str, Any]:
        """Return what a tournament that goes on must share with its beginning."""
        base = base_of(self.members)
        return {
            "env_id": self.env.name,
            "players": self.env.num_players,
            "template": self.env.template,
            "max_turns": self.env.max_turns,
            "error_allowance": self.env.error_allowance,
            "stop": self.env.stop,
            "base_model": base.name,
            "dtype": base.dtype,
            "quantization": base.quantization,
            "temperature": self.temperature,
            "seed": self.schedule.seed,
            "games": self.schedule.games,
            "budget": self.schedule.budget,
            "members": [
                {"uid": one.uid, "kind": one.kind, "weights": one.weights(), "max_tokens": one.max_tokens}
                for one in self.members
            ],
        }

    def _write(self, files: TournamentFiles, result: TournamentResult) -> None:
        """Write the payoffs and the page."""
        name, schedule = self.env.name, self.schedule
        about = {"env_id": name, "rankings": result.rankings.to_dict(), "failures": result.failures}
        write_payoffs(files.path, about, result.table, schedule.uids)
        samples = {
            " and ".join(schedule.uids[member] for member in members): [
                files.sample_path(schedule.game(group, index)) for index in range(SAMPLES_PER_GROUP)
            ]
            for group, members in enumerate(schedule.groups)
        }
        page = tournament_html(name, schedule.seed, result.table, result.rankings, samples)
        write_file(files.path / PAGE, page.encode())
