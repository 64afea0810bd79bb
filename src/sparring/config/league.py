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
FEWEST_COMPARED = 20
"""The games on which players can be compared: with fewer, the interval of a difference is too narrow."""


class PlayerSettings(Settings):
    """A player of the league: a policy that learns, by its name."""

    role: LeagueRole
    """A `main` player aims to be the strongest; a `main_exploiter` looks for weaknesses of the main players,
    a `league_exploiter` for weaknesses of all frozen copies."""
    share: float = Field(default=1.0, ge=1e-9, le=1e9)
    """Its share of the training games, relative to the other players'."""
    seats: list[Annotated[int, Field(ge=0, le=1)]] = Field(default=list(SEATS), max_length=2)
    """The seats that it plays; by default both."""


class EvolutionSettings(Settings):
    """Players of one role and the same seats are compared, and the worst is replaced by a child of better
    ones."""

    every: int = Field(default=20, ge=1, le=10_000_000)
    """Number of updates between two comparisons."""
    games: int = Field(default=200, ge=FEWEST_COMPARED, le=10_000_000)
    """Games that each player plays in each of `envs` against each of its evaluation opponents that stay the
    same: scripts, `base` and adapters. The deals are the same for all players."""
    noise: float = Field(default=0.02, ge=0, le=1)
    """Standard deviation of the noise in each matrix of a child, relative to its root mean square."""


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
    evolution: EvolutionSettings | None = None
    """Replacement of weak players. Nobody is replaced without it."""

    def rules(self) -> Iterable[Rule]:
        """There are players with seats, and shares of games that add up."""
        return (self._players_are_possible, self._shares_add_up, self._some_compete)

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

    def _some_compete(self) -> None:
        if self.evolution is not None and not self.rivals:
            problem = "compares players, but no two have the same role and the same seats"
            raise at_field(problem, "Add a second player of a role, or leave it out", "evolution")

    @property
    def rivals(self) -> list[list[str]]:
        """The players that evolution compares: those of one role and the same seats, where there are two."""
        groups: dict[tuple[object, ...], list[str]] = {}
        for name, player in self.players.items():
            groups.setdefault((player.role, *sorted(player.seats)), []).append(name)
        return [group for group in groups.values() if len(group) > 1]

    @property
    def may_start_again(self) -> list[str]:
        """The players that may begin again, or be replaced."""
        rivals = {name for group in self.rivals for name in group} if self.evolution is not None else set()
        return [name for name in self.players if name in rivals or name in self.exploiters]

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
