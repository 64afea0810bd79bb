"""A league: policies with roles, which learn from each other and from each other's frozen copies."""

from typing import Annotated

from pydantic import Field, model_validator

from selfplay.config.base import Name, Settings
from selfplay.config.play import EnvSettings, check_policy_name
from selfplay.core import InputError
from selfplay.core.play import LeagueRole

SEATS = (0, 1)
"""A league plays games for two."""


class PlayerSettings(Settings):
    """A player of the league: a policy that learns, by its name."""

    role: LeagueRole
    """`main` becomes the strongest player; `main_exploiter` looks for weaknesses of the main players, and
    `league_exploiter` for those of all frozen copies."""
    share: float = Field(default=1.0, ge=1e-9, le=1e9)
    """Its share of the games in which a player learns, relative to the other players'."""
    seats: list[Annotated[int, Field(ge=0, le=1)]] = Field(default=list(SEATS), max_length=2)
    """The seats that it plays. If not given, both."""


class LeagueSettings(Settings):
    """Players that learn in one run, each with an adapter and an optimizer of its own. It takes the place of
    `population.sample_mode`."""

    players: dict[Name, PlayerSettings] = Field(default={}, max_length=1000)
    """The players, by name. Those that hold the games' seats in evaluations are the policies of `envs`,
    `default` if none is given; they must be main players."""
    self_play: float = Field(default=0.35, ge=0, le=1)
    """Share of a main player's games in which it plays against itself, or another main player."""
    forgotten: float = Field(default=0.15, ge=0, le=1)
    """Share of a main player's games against copies that it no longer beats. The rest of its games are
    against all frozen copies, most against those that it beats least."""
    snapshot_win_rate: float = Field(default=0.7, ge=1e-9, lt=1)
    """An exploiter is frozen when its win rate is above this against each of its targets, in 100 games or
    more."""
    main_snapshot_win_rate: float | None = Field(default=None, ge=1e-9, lt=1)
    """A main player is frozen, besides every `population.add_every` updates, when its win rate is above this
    against each active copy of itself, in 100 games or more. If it plays one seat, the copies are those of
    the main players of the other one. If not given, its win rates freeze nothing."""
    snapshot_updates: int = Field(default=40, ge=1, le=10_000_000)
    """Number of updates after which an exploiter is frozen, however it plays."""

    @model_validator(mode="after")
    def _players_are_possible(self) -> "LeagueSettings":
        if not self.players:
            raise InputError("league.players", "is empty", 'Add [league.players.default] with role = "main"')
        for name, player in self.players.items():
            check_policy_name(name, "league.players")
            if (
                not player.seats
                or set(player.seats) - set(SEATS)
                or len(set(player.seats)) < len(player.seats)
            ):
                raise InputError(
                    f"league.players.{name}.seats",
                    f"{player.seats} are not seats of a game for two",
                    "Give [0], [1] or [0, 1]",
                )
        if self.self_play + self.forgotten > 1:
            raise InputError(
                "league.forgotten", "and league.self_play are together more than 1", "Lower one of them"
            )
        return self

    @property
    def mains(self) -> list[str]:
        """The main players."""
        return [name for name, player in self.players.items() if player.role == "main"]

    @property
    def exploiters(self) -> list[str]:
        """The other players."""
        return [name for name in self.players if name not in self.mains]

    def check_games(self, envs: list[EnvSettings]) -> None:
        """Check that these games have main players in their seats.

        Raises:
            InputError: that is not so, or a game is not for two.
        """
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
