"""Matches of a model against an opponent, with every seat taken equally often and the same deals."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from sparring.core import (
    AgentSpec,
    Arena,
    EpisodeRequest,
    GenerateResult,
    InputError,
    PlaySpec,
    Rollout,
    Sampling,
    derive_seed,
)
from sparring.core.concurrency import Failure, with_retries
from sparring.core.sampling import AS_LEARNED
from sparring.envs.game_episode import GameEpisode
from sparring.evaluation.results import GameRecord, MatchResult, outcome_of, side_of

Member = TypeVar("Member")
Changed = TypeVar("Changed")


@dataclass(frozen=True)
class Mixture(Generic[Member]):
    """Members, of whom one is drawn at the start of each game, as often as its weight says in proportion."""

    members: tuple[Member, ...]
    weights: tuple[float, ...]

    def __str__(self) -> str:
        return "mixture"


def drawn(player: Member | Mixture[Member], seed: int, seat: int) -> Member:
    """Return who plays a seat in the game with this seed: the player itself, or a member of a mixture."""
    if not isinstance(player, Mixture):
        return player
    rng = random.Random(derive_seed(seed, "mixture", seat))
    member: Member = rng.choices(player.members, player.weights)[0]
    return member


def mapped(
    player: Member | Mixture[Member], change: Callable[[Member], Changed]
) -> Changed | Mixture[Changed]:
    """Return the player, or each member of a mixture, changed."""
    if isinstance(player, Mixture):
        return Mixture(tuple(map(change, player.members)), player.weights)
    return change(player)


Count = Callable[[int, int | None], None]
"""Called with how much is done and how much there is, ``None`` if that is not known."""


class Progress:
    """Tells nobody. The commands show progress in a terminal with a class of their own."""

    def say(self, line: str) -> None:
        """Tell something that is worth keeping: a note, a warning, the path of a result."""

    @contextmanager
    def doing(self, text: str, unit: str = "", total: int | None = None) -> Iterator[Count]:
        """Tell what goes on while the body runs, which may count ``total`` of some unit, such as games."""
        yield _uncounted


def _uncounted(done: int, total: int | None) -> None:
    """Tell nobody."""


Models = str | Mixture[str] | Sequence[str | Mixture[str]]
"""A model or a mixture; one for each seat if they differ."""
Agent = AgentSpec | Mixture[AgentSpec]
"""Who answers in a seat."""
CONCURRENCY = 256
"""Games in flight."""
RETRIES = 1


@dataclass(frozen=True)
class SeatedGame:
    """A finished game: each seat's reward, the seat whose invalid move ended it, and all that happened.

    ``children`` are the episodes that an episode of a program has started.
    """

    rewards: list[float]
    invalid_seat: int | None
    rollout: Rollout
    children: Sequence[GenerateResult] = ()


Play = Callable[[str, PlaySpec], Awaitable[SeatedGame | str]]
"""Plays one game, whose rollout has this id; returns it, or the reason why its last attempt failed."""


async def play_match(
    arena: Arena,
    episode: GameEpisode,
    *,
    model: Models,
    opponent: Agent | Sequence[Agent] | None,
    games: int,
    seed: int,
    seats: Sequence[int] = (),
    concurrency: int = CONCURRENCY,
    temperature: float = 1.0,
    max_tokens: int | None = None,
    sampling: Sampling = AS_LEARNED,
    retries: int = RETRIES,
    on_game: Callable[[int, int], None] | None = None,
    on_rollout: Callable[[int, Rollout], None] | None = None,
) -> MatchResult:
    """Play a match. The result depends neither on ``concurrency`` nor on the order in which games end.

    The model takes its seats in turn, one in each game, and the opponent plays every other seat. The games of
    one round, one for each seat, share a seed, so the model plays the same deal from every seat.

    Args:
        arena: its client answers for ``model``, and for the opponent if that is a model.
        model: uid of the model, or a mixture; one for each seat if they differ.
        opponent: the opponent, or a mixture; one for each seat if they differ; ``None`` in a one-player game.
        games: number of games; rounded up to a multiple of the number of the model's seats.
        seed: determines everything except the models' weights.
        seats: the model's seats; all by default.
        concurrency: maximum number of games in flight.
        temperature: of the model's answers.
        max_tokens: their limit; ``None`` means the client's default.
        sampling: how they are drawn.
        retries: further attempts at a game that failed for a transient reason, before it counts as failed.
        on_game: called after every game with the number of completed games and the total number.
        on_rollout: called after every finished game with its index (from 0) and its rollout.

    Raises:
        InputError: the opponent or a number is wrong, or the input of a game; the match is then abandoned.
    """
    num_players = episode.num_players
    opponents = (
        [opponent] * num_players if isinstance(opponent, AgentSpec | Mixture) else list(opponent or ())
    )
    _check(episode, opponents, games, concurrency)
    models, seats = by_seat(model, num_players), seats or range(num_players)
    specs = []
    for round_ in range(-(-games // len(seats))):
        deal = derive_seed(seed, "match", round_)
        names = [drawn(one, deal, pid) for pid, one in enumerate(models)]
        agents = [AgentSpec("model", name, temperature, max_tokens, sampling=sampling) for name in names]
        others = [drawn(one, deal, pid) for pid, one in enumerate(opponents)]
        specs += [
            PlaySpec(episode.name, num_players, (*others[:seat], agents[seat], *others[seat + 1 :]), deal)
            for seat in seats
        ]
    finished: dict[int, GameRecord | str] = {}

    def record(index: int, played: SeatedGame | str) -> None:
        if isinstance(played, str):
            finished[index] = played
        else:
            if on_rollout is not None:
                on_rollout(index, played.rollout)
            finished[index] = record_of(played.rollout, seats[index % len(seats)])
        if on_game is not None:
            on_game(len(finished), len(specs))

    named = [(f"match-{index:05d}", spec) for index, spec in enumerate(specs)]
    await play_games(play_of_game(arena, episode, retries), named, record, concurrency)
    result = MatchResult(
        env_id=episode.name,
        num_players=num_players,
        model=names_of(models[seat] for seat in seats),
        opponent=names_of(one if isinstance(one, Mixture) else one.model for one in opponents),
        seed=seed,
        requested_games=games,
        temperature=temperature,
        sampling=sampling,
    )
    for _, game in sorted(finished.items()):
        if isinstance(game, str):
            result.add_failure(game)
        else:
            result.add(game)
    return result


async def play_all(
    play: Play, games: Sequence[tuple[str, PlaySpec]], on_game: Callable[[int], None]
) -> list[SeatedGame | str]:
    """Play games, and return what ``play`` returned for each, in order. ``on_game`` is called with their
    number as they end."""
    played: dict[int, SeatedGame | str] = {}

    def keep(place: int, game: SeatedGame | str) -> None:
        played[place] = game
        on_game(len(played))

    await play_games(play, games, keep)
    return [played[place] for place in range(len(games))]


async def play_games(
    play: Play,
    games: Sequence[tuple[str, PlaySpec]],
    on_played: Callable[[int, SeatedGame | str], None],
    concurrency: int = CONCURRENCY,
) -> None:
    """Play games, each given with the id of its rollout, at most ``concurrency`` at once.

    ``on_played`` is called as games end, with the game's place in the list and what ``play`` returned.
    """
    waiting = iter(enumerate(games))

    async def work() -> None:
        for index, (rollout_id, spec) in waiting:
            on_played(index, await play(rollout_id, spec))

    workers = [asyncio.create_task(work()) for _ in range(min(concurrency, len(games)))]
    try:
        await asyncio.gather(*workers)
    finally:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)


def play_of_game(arena: Arena, episode: GameEpisode, retries: int = RETRIES) -> Play:
    """Return what plays a game, whose seats are its players."""

    async def play(rollout_id: str, spec: PlaySpec) -> SeatedGame | str:
        async def attempt(number: int) -> GenerateResult:
            return await episode.generate(arena, spec, {"rollout_id": rollout_id})

        played = await with_retries(attempt, retries)
        if isinstance(played, Failure):
            return played.reason
        extras = played.rollout.extras
        rewards = [extras["final_rewards"][seat] for seat in range(episode.num_players)]
        return SeatedGame(rewards, extras["invalid_pid"], played.rollout)

    return play


def play_of_program(arena: Arena, requests: Sequence[EpisodeRequest], roles: Sequence[str]) -> Play:
    """Return what plays one of a program's requests, which the seed chooses; its seats are these roles.

    A role earns its mean reward over the rollout and its sub-episodes: what a best response is trained on.
    One that nothing paid, such as solvers of a proposal that is none, earns 0.
    """

    async def play(rollout_id: str, spec: PlaySpec) -> SeatedGame | str:
        request = requests[spec.seed % len(requests)]
        agents = {**request.agents, **dict(zip(roles, spec.agents, strict=True))}
        meta = request.meta | {"rollout_id": rollout_id, "seed": spec.seed}
        (result,) = await arena.generate_rollouts([replace(request, agents=agents, meta=meta)])
        earned = earned_by_role(result, roles)
        if isinstance(earned, str):
            return earned
        return SeatedGame(earned, None, result.rollout, result.children)

    return play


def earned_by_role(result: GenerateResult, roles: Sequence[str]) -> list[float] | str:
    """Return the mean reward of each role over an episode and its sub-episodes, or why there is none.

    A role that nothing paid, such as the solvers of a proposal that is none, earns 0.
    """
    if result.rollout.error:
        return result.rollout.error
    rollouts = result.all_rollouts()
    paid = [[one.rewards[role] for one in rollouts if role in one.rewards] for role in roles]
    if not any(paid):
        return f"the episode gave no reward to {' or '.join(roles)}"
    return [sum(one) / max(len(one), 1) for one in paid]


def by_seat(model: Models, num_players: int) -> list[str | Mixture[str]]:
    """Return the model, or the mixture, of each seat."""
    return [model] * num_players if isinstance(model, str | Mixture) else list(model)


def names_of(players: Iterable[str | Mixture[Any]]) -> str:
    """Return the names of the players in the seats, each once."""
    return ", ".join(dict.fromkeys(map(str, players)))


def record_of(rollout: Rollout, seat: int) -> GameRecord:
    """Return the record of a finished game for the model in ``seat``."""
    extras = rollout.extras
    rewards: dict[int, float] = extras["final_rewards"]
    own = [turn for turn in extras["turns"] if turn["pid"] == seat]
    return GameRecord(
        seat=seat,
        reward=rewards[seat],
        outcome=outcome_of(rewards, seat),
        ended_invalid=side_of(extras["invalid_pid"], seat),
        truncated=extras["truncated"],
        moves=len(own),
        invalid_moves=sum(turn["invalid"] for turn in own),
    )


def _check(episode: GameEpisode, opponents: Sequence[object], games: int, concurrency: int) -> None:
    if games < 1:
        raise InputError("games", f"{games} games are too few", "Give 1 or more")
    if concurrency < 1:
        raise InputError("concurrency", f"{concurrency} games cannot be in flight", "Allow at least 1")
    if episode.num_players == 1 and opponents:
        raise InputError("opponent", f"{episode.env_id} is a one-player game", "Leave the opponent out")
    if episode.num_players > 1 and not opponents:
        raise InputError("opponent", f"{episode.env_id} needs one", "Name a scripted player or a model")
