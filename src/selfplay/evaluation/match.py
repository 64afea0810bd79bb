"""Matches: a model against an opponent, every seat taken equally often, on the same deals."""

import asyncio
from collections.abc import Callable

from selfplay.core import AgentSpec, Arena, InputError, PlaySpec, Rollout, SelfplayError, derive_seed
from selfplay.envs.game_episode import GameEpisode
from selfplay.envs.templates import PromptTemplate
from selfplay.evaluation.match_result import GameRecord, MatchResult, Side

SOLVED_REWARD = 1.0
"""A game for one player is solved from this reward on; less is partial progress."""


async def play_match(
    arena: Arena,
    env_id: str,
    num_players: int,
    template: PromptTemplate,
    *,
    model: str,
    opponent: AgentSpec | None,
    games: int,
    seed: int,
    concurrency: int = 256,
    temperature: float = 1.0,
    max_tokens: int | None = None,
    max_turns: int = 200,
    error_allowance: int = 0,
    retries: int = 1,
    on_game: Callable[[int, int], None] | None = None,
) -> MatchResult:
    """Play a match. Nothing in the result depends on ``concurrency`` or on which game ends first.

    Game i puts the model in seat i % num_players and the opponent in every other seat. The games of one
    round (equal i // num_players) share a seed, so the seats swap one and the same deal.

    Args:
        arena: its client answers for ``model``, and for the opponent if that is a model.
        env_id: what is played; see envs.catalog.
        num_players: seats.
        template: the prompts of models.
        model: uid of the model.
        opponent: ``None`` for one player.
        games: how many; rounded up to a multiple of ``num_players``.
        seed: decides everything but the models' weights.
        concurrency: most games in flight.
        temperature: the model's.
        max_tokens: most tokens in an answer of the model; ``None`` for the client's default.
        max_turns: the game is a draw after this many turns.
        error_allowance: invalid moves in a row after which a player is asked again.
        retries: how often a game that failed is played anew; after that it counts as failed.
        on_game: called after every game with the number of games done and of all games.

    Raises:
        InputError: the environment, the opponent or a number is wrong; the match is then abandoned.
    """
    _check(env_id, num_players, opponent, games, concurrency)
    episode = GameEpisode(env_id, num_players, template, max_turns=max_turns, error_allowance=error_allowance)
    agent = AgentSpec("model", model, temperature, max_tokens)
    rounds = -(-games // num_players)
    specs = [
        PlaySpec(
            env_id,
            num_players,
            _seats(agent, opponent, seat, num_players),
            derive_seed(seed, "match", round_),
        )
        for round_ in range(rounds)
        for seat in range(num_players)
    ]
    finished = await _play_all(arena, episode, specs, concurrency, retries, on_game)
    result = MatchResult(
        env_id=env_id,
        num_players=num_players,
        model=model,
        opponent=opponent.model if opponent else "",
        seed=seed,
        requested_games=games,
    )
    for game in finished:
        if isinstance(game, str):
            result.add_failure(game)
        else:
            result.add(game)
    return result


def record_of(rollout: Rollout, seat: int) -> GameRecord:
    """Return a finished game as the model in ``seat`` saw it."""
    extras = rollout.extras
    rewards: dict[int, float] = extras["final_rewards"]
    reward = rewards[seat]
    best_other = max((value for pid, value in rewards.items() if pid != seat), default=None)
    invalid_pid = extras["invalid_pid"]
    ended_invalid: Side | None = None
    if invalid_pid is not None:
        ended_invalid = "model" if invalid_pid == seat else "opponent"
    own = [turn for turn in extras["turns"] if turn["pid"] == seat]
    if best_other is None:
        won, drawn = reward >= SOLVED_REWARD, False
    else:
        won, drawn = reward > best_other, reward == best_other
    return GameRecord(
        seat=seat,
        reward=reward,
        outcome="win" if won else "draw" if drawn else "loss",
        ended_invalid=ended_invalid,
        truncated=extras["truncated"],
        moves=len(own),
        invalid_moves=sum(turn["invalid"] for turn in own),
    )


def _check(env_id: str, num_players: int, opponent: AgentSpec | None, games: int, concurrency: int) -> None:
    if games < 1:
        raise InputError("games", f"{games} games are no match", "Ask for at least 1")
    if concurrency < 1:
        raise InputError("concurrency", f"{concurrency} games cannot be in flight", "Allow at least 1")
    if num_players == 1 and opponent is not None:
        raise InputError("opponent", f"{env_id} is for one player", "Leave the opponent out")
    if num_players > 1 and opponent is None:
        raise InputError("opponent", f"{env_id} needs one", "Name a scripted player or a model")


def _seats(
    agent: AgentSpec, opponent: AgentSpec | None, seat: int, num_players: int
) -> tuple[AgentSpec, ...]:
    """Return the agents of all seats, with ``agent`` in ``seat``."""
    if opponent is None:
        return (agent,)
    return tuple(agent if pid == seat else opponent for pid in range(num_players))


async def _play_all(
    arena: Arena,
    episode: GameEpisode,
    specs: list[PlaySpec],
    concurrency: int,
    retries: int,
    on_game: Callable[[int, int], None] | None,
) -> list[GameRecord | str]:
    """Return for each of ``specs``, in their order, the finished game or the reason of its failure."""
    finished: dict[int, GameRecord | str] = {}
    waiting = iter(enumerate(specs))

    async def work() -> None:
        for index, spec in waiting:
            seat = index % episode.num_players
            finished[index] = await _play_game(arena, episode, spec, seat, retries)
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


async def _play_game(
    arena: Arena, episode: GameEpisode, spec: PlaySpec, seat: int, retries: int
) -> GameRecord | str:
    """Return the game as the model in ``seat`` saw it, or the reason why its last attempt failed."""
    reason = ""
    for _ in range(1 + retries):
        try:
            async with asyncio.timeout(arena.episode_timeout):
                result = await episode.generate(arena, spec)
            return record_of(result.rollout, seat)
        except InputError:
            raise
        except TimeoutError:
            reason = f"the game took longer than {arena.episode_timeout:g} s"
        except SelfplayError as error:
            reason = str(error)
        except Exception as error:  # noqa: BLE001 - clients raise anything; the result states it
            reason = repr(error)
    return reason
