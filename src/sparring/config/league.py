"""A league: policies with roles, which learn from each other and from each other's frozen copies."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Self

from pydantic import Field

from sparring.config.base import Line, Name, PolicyName, Rule, Settings, at_field
from sparring.config.facts import FOR_GAMES, FOR_PROGRAMS
from sparring.core import InputError
from sparring.core.play import LeagueRole, Seat

Seats = Mapping[Seat, str]
"""The policy of each seat of a game, or of each role of a program that is trained."""
FEWEST_COMPARED = 20
"""The games on which players can be compared: with fewer, the interval of a difference is too narrow."""


class PlayerSettings(Settings):
    """A player of the league: a policy that learns, by its name."""

    role: LeagueRole
    """A `main` player aims to be the strongest; a `main_exploiter` looks for weaknesses of the main players,
    a `league_exploiter` for weaknesses of all frozen copies."""
    share: float = Field(default=1.0, ge=1e-9, le=1e9)
    """Its share of the training games, relative to the other players'."""
    seats: list[Annotated[int, Field(ge=0, le=999)] | Name] = Field(default=[], max_length=1000)
    """The seats that it holds: a game's by their numbers, `[0]`, a program's roles by their names,
    `["Solver"]`. By default those whose policy has its name; all, if none has."""


class EvolutionSettings(Settings):
    """Players of one role and the same seats are compared, and the worst is replaced by a child of better
    ones."""

    every: int = Field(default=20, ge=1, le=10_000_000)
    """Number of updates between two comparisons."""
    games: Annotated[int, FOR_GAMES] = Field(default=200, ge=FEWEST_COMPARED, le=10_000_000)
    """Games that each player plays in each game of evaluations against each opponent there that stays the
    same: scripts, `base` and adapters. The deals are the same for all players."""
    measures: Annotated[dict[Name, Line], FOR_PROGRAMS] = Field(default={}, max_length=1000)
    """The measure of a program by which the players of a role are compared, by role; the base model has the
    other roles. `smallest NAME` if less is better; its figures then have a minus."""
    noise: float = Field(default=0.02, ge=0, le=1)
    """Standard deviation of the noise in each matrix of a child, relative to its root mean square."""


class LeagueSettings(Settings):
    """Players that learn in one run, each with an adapter and an optimizer of its own. It replaces
    `population.sample_mode`."""

    players: dict[PolicyName, PlayerSettings] = Field(default={}, max_length=1000)
    """The players, by name. In evaluations, the policies of `envs` hold the seats (`default` if none is
    given); they must be main players."""
    at_once: int | None = Field(default=None, ge=1, le=1000)
    """The number of players that learn in an update, at most. They take turns, more often those with larger
    shares, and an update of few adapters costs less. By default, all players learn in every update."""
    self_play: float = Field(default=0.35, ge=0, le=1)
    """Share of a main player's games in which it plays against itself, or another main player."""
    forgotten: float = Field(default=0.15, ge=0, le=1)
    """Share of a main player's games against copies that it no longer beats. Its remaining games are against
    all frozen copies, most often those that it beats least."""
    snapshot_win_rate: float = Field(default=0.7, ge=1e-9, lt=1)
    """An exploiter is frozen when its win rate against each of its targets, over 100 games or more, is above
    this."""
    main_snapshot_win_rate: float | None = Field(default=None, ge=1e-9, lt=1)
    """A main player is also frozen when its win rate against each active copy of itself, over 100 games or
    more, is above this. For a player of one seat, the copies of the other seats' main players count instead.
    By default, it is frozen only every `population.add_every` updates."""
    snapshot_updates: int = Field(default=40, ge=1, le=10_000_000)
    """An exploiter is frozen after this many updates, however well it plays."""
    evolution: EvolutionSettings | None = None
    """Replacement of weak players. Nobody is replaced without it."""

    def rules(self) -> Iterable[Rule]:
        """There are players, and shares of games that add up."""
        return (self._has_players, self._shares_add_up)

    def _has_players(self) -> None:
        if not self.players:
            raise InputError("league.players", "is empty", 'Add [league.players.default] with role = "main"')

    def _shares_add_up(self) -> None:
        if self.self_play + self.forgotten > 1:
            raise at_field("and league.self_play are together more than 1", "Lower one of them", "forgotten")

    @property
    def rivals(self) -> list[list[str]]:
        """The players that evolution compares: those of one role and the same seats, where there are two.

        The settings are those of :meth:`seated`.
        """
        groups: dict[tuple[object, ...], list[str]] = {}
        for name, player in self.players.items():
            groups.setdefault((player.role, *player.seats), []).append(name)
        return [group for group in groups.values() if len(group) > 1]

    @property
    def may_start_again(self) -> list[str]:
        """The players that may begin again, or be replaced."""
        return self.exploiters if self.evolution is None else [*self.players]

    @property
    def mains(self) -> list[str]:
        """The main players."""
        return [name for name, player in self.players.items() if player.role == "main"]

    @property
    def exploiters(self) -> list[str]:
        """The other players."""
        return [name for name in self.players if name not in self.mains]

    def seated(self, games: Sequence[Seats]) -> Self:
        """Return the settings with the seats that each player holds in these games, or in a program.

        They are in the order of the games' own.
        """
        every = seats_of(games)
        players = {}
        for name, player in self.players.items():
            named = [seat for seat in every if any(policies.get(seat) == name for policies in games)]
            held = [seat for seat in every if seat in player.seats]
            players[name] = player.model_copy(update={"seats": held or named or every})
        return self.model_copy(update={"players": players})

    def check_seats(self, games: Sequence[tuple[str, Seats]]) -> None:
        """Raise an InputError unless main players have the seats of these games, each given with its name."""
        every, held = seats_of([policies for _, policies in games]), self.seated([one for _, one in games])
        for name, player in self.players.items():
            if unknown := [seat for seat in player.seats if seat not in every]:
                known = f"There are: {', '.join(map(str, every))}"
                raise InputError(f"league.players.{name}.seats", f"there is no seat {unknown[0]}", known)
            if len({*player.seats}) < len(player.seats):
                raise InputError(f"league.players.{name}.seats", "names a seat twice", "Name it once")
        for game, policies in games:
            if len(policies) < 2:
                problem = f"its players meet each other, but {game} has one seat that is trained"
                raise InputError("league", problem, "Leave [league] out")
            for seat, policy in policies.items():
                main = held.players.get(policy)
                if main is None or main.role != "main" or seat not in main.seats:
                    named = f"roles.{seat}.policy" if isinstance(seat, str) else "envs.policies"
                    raise InputError(
                        "league.players",
                        f"no main player {policy} plays seat {seat} of {game}",
                        f'Add [league.players.{policy}] with role = "main", or name a main player in {named}',
                    )
        if self.evolution is not None:
            _check_compared(self.evolution.measures, held, every)


def _check_compared(measures: Mapping[str, str], league: LeagueSettings, every: Sequence[Seat]) -> None:
    """Raise an InputError unless evolution compares players of a league, in a program by measures."""
    if unknown := [*measures.keys() - {*every}]:
        known = f"There are: {', '.join(map(str, every))}"
        raise InputError("league.evolution.measures", f"there is no role {min(unknown)}", known)
    if not league.rivals:
        problem = "compares players, but no two have the same role and the same seats"
        raise InputError("league.evolution", problem, "Add a second player of a role, or leave it out")
    compared = dict.fromkeys(seat for first, *_ in league.rivals for seat in league.players[first].seats)
    if measures and not measures.keys() & compared.keys():
        fix = f"Name one for {' or '.join(map(str, compared))}"
        raise InputError("league.evolution.measures", "has none for players that are compared", fix)


def seats_of(games: Iterable[Seats]) -> list[Seat]:
    """Return all seats of games, each once."""
    return list(dict.fromkeys(seat for policies in games for seat in policies))
