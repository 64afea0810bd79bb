"""``sparring compare --deals``: members play the same deals, and their games stand beside each other."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path
from statistics import fmean

from sparring.commands.members import base_of, environment_of, find_members
from sparring.commands.serving import serving
from sparring.commands.venues import venue_of_members
from sparring.core import AgentSpec, GenerateResult, PlaySpec, derive_seed
from sparring.core.own_code import absolute
from sparring.core.text import counted
from sparring.evaluation.match import Progress, SeatedGame, drawn, play_all
from sparring.evaluation.venues import GameVenue, Venue
from sparring.run.checks import checked_seats
from sparring.view.cards import Card, Mark, card_of
from sparring.view.episodes import LoggedEpisode
from sparring.view.report.cards import cards_html, shared_of, with_parts
from sparring.view.report.html import Page
from sparring.view.tables import Row, Table

PARTS: Mark = ("plays otherwise from here", "")
"""The mark of the first turn in which members differ."""


@dataclass(frozen=True)
class SideBySide:
    """What members did in the same deals.

    Attributes:
        name: what was played.
        members: the members, by their names in results.
        seats: the seats or roles, all of which a member holds in its own games.
        deals: for each deal the game of each member, or why it failed.
        model: the base model.
    """

    name: str
    members: list[str]
    seats: tuple[str, ...]
    deals: list[list[SeatedGame | str]]
    model: str
    seed: int


def side_by_side(
    names: Sequence[str], env_id: str | None, deals: int, seed: int, progress: Progress
) -> SideBySide:
    """Let each member play the same deals with itself, in every seat or role.

    Args:
        names: members as in a tournament: runs, checkpoints, adapters, scripts, models behind an API.
        env_id: the game; ``None`` for the program that the runs trained in.
        deals: the number of deals.
        seed: determines the deals and all draws.
        progress: is told how many games have ended.

    Raises:
        InputError: a member is not available, or cannot play this.
    """
    if env_id is not None:
        env_id = absolute(env_id, Path())
        seats = checked_seats(env_id, None, None)
    members = find_members(names, env_id)
    venue: Venue
    if env_id is None:
        venue = venue_of_members(members, seed)
    else:
        env = environment_of(members, env_id, None, seats)
        venue = GameVenue(env.plain)
    base = base_of(members)
    specs = []
    for deal in range(deals):
        of_deal = derive_seed(seed, "deal", deal)
        for member in members:
            agents = [drawn(agent, of_deal, seat) for seat, agent in enumerate(member.agents(venue))]
            if env_id is not None and member.kind == "model":
                agents = [*map(_with_tokens, agents)]
            specs.append(PlaySpec(venue.name, len(venue.seats), tuple(agents), of_deal))

    async def play() -> list[SeatedGame | str]:
        async with (
            serving(members, seed, progress, frozen=venue.frozen) as client,
            venue.playing(client) as one,
        ):
            with progress.doing(f"playing {venue.name}", "games", len(specs)) as count:
                games = [(f"deal-{place // len(members):04d}", spec) for place, spec in enumerate(specs)]
                return await play_all(one, games, lambda ended: count(ended, len(games)))

    found = asyncio.run(play())
    by_deal = [found[start : start + len(members)] for start in range(0, len(found), len(members))]
    return SideBySide(venue.name, [one.uid for one in members], venue.seats, by_deal, base.name, seed)


def _with_tokens(agent: AgentSpec) -> AgentSpec:
    """Return an agent of whom a game keeps the tokens, as it does of policies, if it draws as one does."""
    is_plain = agent.kind == "model" and agent.sampling is None
    return replace(agent, kind="policy") if is_plain else agent


def side_by_side_table(result: SideBySide) -> Table:
    """Return what each member earned in each seat on average, and how many of its games failed."""
    rows: list[Row] = []
    for place, member in enumerate(result.members):
        games = [deal[place] for deal in result.deals]
        ended = [one for one in games if isinstance(one, SeatedGame)]
        means = [
            f"{fmean(one.rewards[seat] for one in ended):+.3g}" if ended else "-"
            for seat in range(len(result.seats))
        ]
        invalid = sum(one.invalid_seat is not None for one in ended)
        rows.append([member, *means, str(invalid), str(len(games) - len(ended))])
    heads = [f"seat {one}" if one.isdecimal() else one for one in result.seats]
    return Table(("Member", *heads, "Invalid", "Failed"), [("", "", rows)])


def side_by_side_html(result: SideBySide) -> str:
    """Return the games as a page that needs no network. All text is escaped."""
    count, members = counted(len(result.deals), "deal"), ", ".join(result.members)
    about = f"{members}; {count}, seed {result.seed}; each member holds all seats or roles of its games"
    page = Page(f"{result.name} side by side", escape(about), model=result.model)
    page.table("Mean rewards", side_by_side_table(result))
    groups = {
        f"Deal {number}": _cards_of(deal, number, result) for number, deal in enumerate(result.deals, 1)
    }
    cards = [card for group in groups.values() for card in group]
    shared = shared_of(cards, (), page.by_token, of_evaluation=True)
    page.section("Games", cards_html(groups, replace(shared, beside=True), unfolded=True))
    return page.html()


def _cards_of(deal: Sequence[SeatedGame | str], number: int, result: SideBySide) -> list[Card]:
    cards = []
    for member, game in zip(result.members, deal, strict=True):
        if isinstance(game, SeatedGame):
            card = card_of(_episode_of(game, number))
        else:
            card = Card("", result.name, {}, [], "", marks=[("failed", "bad")], kinds=["failed"], error=game)
        card.title, card.players = member, {}
        for turn in card.turns:
            turn.player = ""
        cards.append(card)
    acted = [[turn for one in with_parts(card) for turn in one.turns] for card in cards if not card.error]
    for turns in zip(*acted, strict=False):
        if len({turn.action or turn.text for turn in turns}) > 1:
            for turn in turns:
                turn.marks.append(PARTS)
            break
    return cards


def _episode_of(game: SeatedGame | GenerateResult, number: int, depth: int = 0) -> LoggedEpisode:
    """Return what was played, with the episodes that it has started."""
    children = [_episode_of(one, number, depth + 1) for one in game.children]
    return LoggedEpisode(0, number, game.rollout, depth, children)
