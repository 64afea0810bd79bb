"""A league: policies with roles, which learn from each other and from each other's frozen copies."""

from collections.abc import Iterable
from typing import Annotated

from pydantic import Field

from sparring.config.base import PolicyName, Rule, Settings, at_field
from sparring.config.play import EnvSettings
from sparring.core import InputError
from sparring.core.play import LeagueRole

SEATS = (0, 1)
"""A league plays games for two."""


class PlayerSettings(Settings):
    """A player of the league: a policy that learns, by its name."""

    role: LeagueRole
    """A `main` player aims to be the strongest; a `main_exploiter` looks for weaknesses of the main players,
    a `league_exploiter` for weaknesses of all frozen copies."""
    share: float = Field(default=1.0, ge=1e-9, le=1e9)
    """Its share of the training games, relative to the other players'."""
    seats: list[Annotated[int, Field(ge=0, le=1)]] = Field(default=list(SEATS), max_length=2)
    """The seats that it plays; by default both."""


class LeagueSettings(Settings):
    """Players that learn in one run, each with an adapter and an optimizer of its own. It replaces
    `population.sample_mode`."""

    players: dict[PolicyName, PlayerSettings] = Field(default={}, max_length=1000)
    """The players, by name. In evaluations, the policies of `envs` hold the seats (`default` if none is
    given); they must be main players."""
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
    more, is above this. For a player of one seat, the copies of the other seat's main players count instead.
    By default, it is frozen only every `population.add_every` updates."""
    snapshot_updates: int = Field(default=40, ge=1, le=10_000_000)
    """An exploiter is frozen after this many updates, however well it plays."""

    def rules(self) -> Iterable[Rule]:
        """There are players with seats, and shares of games that add up."""
        return (self._players_are_possible, self._shares_add_up)

    def _players_are_possible(self) -> None:
        if not self.players:
            raise InputError("league.players", "is empty", 'Add [league.players.default] with role = "main"')
        for name, player in self.players.items():
            if len({*player.seats}) != len(player.seats) or not player.seats:
                problem = f"{player.seats} are not seats of a game for two"
                raise InputError(f"league.players.{name}.seats", problem, "Give [0], [1] or [0, 1]")

    def _shares_add_up(self) -> None:
        if self.self_play + self.forgotten > 1:
            raise at_field("and league.self_play are together more than 1", "Lower one of them", "forgotten")

    @property
    def mains(self) -> list[str]:
        """The main players."""
        return [name for name, player in self.players.items() if player.role == "main"]

    @property
    def exploiters(self) -> list[str]:
        """The other players."""
        return [name for name in self.players if name not in self.mains]

    def check_games(self, envs: list[EnvSettings]) -> None:
        """Raise an InputError unless these games are for two, with main players in their seats."""
        for env in envs:
            if env.num_players != len(SEATS):
                problem = f"a league plays games for two, but {env.name} is for {env.num_players}"
                raise InputError("league", problem, "Choose another game, or leave [league] out")
            for seat, policy in enumerate(env.seats):
                player = self.players.get(policy)
                if player is None or player.role != "main" or seat not in player.seats:
                    raise InputError(
                        "league.players",
                        f"no main player {policy} plays seat {seat} of {env.name}",
                        f'Add [league.players.{policy}] with role = "main", or name a main player in '
                        "envs.policies",
                    )
