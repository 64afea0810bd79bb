"""Matches of a model against an opponent, with every seat taken equally often and the same deals."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from selfplay.core import AgentSpec, Arena, GenerateResult, InputError, PlaySpec, Rollout, derive_seed
from selfplay.core.retries import Failure, with_retries
from selfplay.envs.game_episode import GameEpisode
from selfplay.envs.templates import PromptTemplate
from selfplay.evaluation.match_result import GameRecord, MatchResult, Side, outcome_of
from selfplay.evaluation.mixture import Mixture, drawn

Models = str | Mixture[str] | Sequence[str | Mixture[str]]
"""A model or a mixture; one for each seat if they differ."""


async def play_match(
    arena: Arena,
    env_id: str,
    num_players: int,
    template: PromptTemplate,
    *,
    model: Models,
    opponent: AgentSpec | Mixture[AgentSpec] | Sequence[AgentSpec | Mixture[AgentSpec]] | None,
    games: int,
    seed: int,
    concurrency: int = 256,
    temperature: float = 1.0,
    max_tokens: int | None = None,
    max_turns: int = 200,
    error_allowance: int = 0,
    stop: Sequence[str] = (),
    retries: int = 1,
    on_game: Callable[[int, int], None] | None = None,
    on_rollout: Callable[[int, Rollout], None] | None = None,
) -> MatchResult:
    """Play a match. The result depends neither on ``concurrency`` nor on the order in which games end.

    In game i the model plays seat i % num_players and the opponent plays every other seat. The games of one
    round (equal i // num_players) share a seed, so the model plays the same deal from every seat.

    Args:
        arena: its client answers for ``model``, and for the opponent if that is a model.
        env_id: the environment; see envs.catalog.
        num_players: number of seats.
        template: the prompt template of the models.
        model: uid of the model, or a mixture; one for each seat if they differ.
        opponent: the opponent, or a mixture; one for each seat if they differ; ``None`` in a one-player game.
        games: number of games; rounded up to a multiple of ``num_players``.
        seed: determines everything except the models' weights.
        concurrency: maximum number of games in flight.
        temperature: the model's sampling temperature.
        max_tokens: token limit of the model's answers; ``None`` means the client's default.
        max_turns: a game ends as a draw after this many turns.
        error_allowance: number of consecutive invalid moves after which a player is still asked again.
        stop: texts that end the answer of a model.
        retries: number of further attempts at a game that failed for a transient reason; after them the game
            counts as failed.
        on_game: called after every game with the number of completed games and the total number.
        on_rollout: called after every finished game with its index (from 0) and its rollout.

    Raises:
        InputError: the environment, the opponent or a number is wrong; the match is then abandoned.
    """
    opponents = (
        [opponent] * num_players if isinstance(opponent, AgentSpec | Mixture) else list(opponent or ())
    )
    _check(env_id, num_players, opponents, games, concurrency)
    episode = GameEpisode(
        env_id, num_players, template, max_turns=max_turns, error_allowance=error_allowance, stop=stop
    )
    models = by_seat(model, num_players)
    specs = []
    for round_ in range(-(-games // num_players)):
        deal = derive_seed(seed, "match", round_)
        names = [drawn(one, deal, pid) for pid, one in enumerate(models)]
        agents = [AgentSpec("model", name, temperature, max_tokens) for name in names]
        others = [drawn(one, deal, pid) for pid, one in enumerate(opponents)]
        specs += [
            PlaySpec(episode.name, num_players, _seats(agents, others, seat), deal)
            for seat in range(num_players)
        ]
    finished = await _play_all(arena, episode, specs, concurrency, retries, on_game, on_rollout)
    result = MatchResult(
        env_id=episode.name,
        num_players=num_players,
        model=names_of(models),
        opponent=names_of(one if isinstance(one, Mixture) else one.model for one in opponents),
        seed=seed,
        requested_games=games,
    )
    for game in finished:
        if isinstance(game, str):
            result.add_failure(game)
        else:
            result.add(game)
    return result


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
    invalid_pid = extras["invalid_pid"]
    ended_invalid: Side | None = None
    if invalid_pid is not None:
        ended_invalid = "model" if invalid_pid == seat else "opponent"
    own = [turn for turn in extras["turns"] if turn["pid"] == seat]
    return GameRecord(
        seat=seat,
        reward=rewards[seat],
        outcome=outcome_of(rewards, seat),
        ended_invalid=ended_invalid,
        truncated=extras["truncated"],
        moves=len(own),
        invalid_moves=sum(turn["invalid"] for turn in own),
    )


def _check(env_id: str, num_players: int, opponents: Sequence[object], games: int, concurrency: int) -> None:
    if games < 1:
        raise InputError("games", f"{games} games are too few", "Give 1 or more")
    if concurrency < 1:
        raise InputError("concurrency", f"{concurrency} games cannot be in flight", "Allow at least 1")
    if num_players == 1 and opponents:
        raise InputError("opponent", f"{env_id} is a one-player game", "Leave the opponent out")
    if num_players > 1 and not opponents:
        raise InputError("opponent", f"{env_id} needs one", "Name a scripted player or a model")


def _seats(agents: Sequence[AgentSpec], opponents: Sequence[AgentSpec], seat: int) -> tuple[AgentSpec, ...]:
    """Return the agents of a game: the model's in ``seat``, and the opponents' in all others."""
    return (*opponents[:seat], agents[seat], *opponents[seat + 1 :])


async def _play_all(
    arena: Arena,
    episode: GameEpisode,
    specs: list[PlaySpec],
    concurrency: int,
    retries: int,
    on_game: Callable[[int, int], None] | None,
    on_rollout: Callable[[int, Rollout], None] | None,
) -> list[GameRecord | str]:
    """Return for each of ``specs``, in order, the record of the game or the reason of its failure."""
    finished: dict[int, GameRecord | str] = {}
    waiting = iter(enumerate(specs))

    async def work() -> None:
        for index, spec in waiting:
            seat = index % episode.num_players
            played = await play_game(arena, episode, spec, f"match-{index:05d}", retries)
            if isinstance(played, Rollout) and on_rollout is not None:
                on_rollout(index, played)
            finished[index] = record_of(played, seat) if isinstance(played, Rollout) else played
            if on_game is not None:
                on_game(len(finished), len(specs))

    workers = [asyncio.create_task(work()) for _ in range(min(concurrency, len(specs)))]
    try:
        await asyncio.gather(*workers)
    finally:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
    return [finished[index] for index in range(len(specs))]


async def play_game(
    arena: Arena, episode: GameEpisode, spec: PlaySpec, rollout_id: str, retries: int
) -> Rollout | str:
    """Return the rollout of a game, or the reason why its last attempt failed."""

    async def attempt(number: int) -> GenerateResult:
        return await episode.generate(arena, spec, {"rollout_id": rollout_id})

    played = await with_retries(attempt, retries)
    return played.reason if isinstance(played, Failure) else played.rollout
