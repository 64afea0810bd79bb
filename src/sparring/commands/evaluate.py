"""A match of any model, adapter, run or mixture, and its exact measure."""

import asyncio
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sparring.commands.board_nash_conv import BoardNashConv
from sparring.commands.member_sampling import member_calls, split_sampling
from sparring.commands.members import MODEL, Member, check_match_opponent, find_opponent
from sparring.commands.model_source import ModelSource, find_player, with_template_options
from sparring.commands.serving import serving
from sparring.core import Arena, CallSettings, InputError, Rollout
from sparring.core.adapters import BASE
from sparring.core.env_id import absolute_id, class_name
from sparring.core.errors import renaming
from sparring.core.sampling import AS_LEARNED
from sparring.engine.api_models import MembersClient
from sparring.envs.game_episode import build_episode
from sparring.envs.templates import get_template
from sparring.evaluation import KeptValue, MatchResult, NashConvResult, kept_value, play_match
from sparring.evaluation.board_policy import is_hidden_board
from sparring.evaluation.kept_value import solved_game
from sparring.evaluation.match import Mixture, Progress
from sparring.evaluation.nash_conv import LONG_LIMIT, TooSlow
from sparring.evaluation.nash_conv import nash_conv as exact_nash_conv
from sparring.evaluation.venues import GameVenue
from sparring.run.checks import check_models_end_answers, check_nash_conv, checked_seats
from sparring.run.evaluation_opponents import default_opponent, why_base

GAMES = 400


@dataclass(frozen=True)
class Evaluated:
    """A match, and what was played in it.

    Attributes:
        result: the counts, with the model and the opponent as the user named them.
        adapter: the model's adapter, or the checkpoint of its policies; ``None`` if it has none.
        opponent_adapter: the adapter of an opponent that is a run.
        kept: how often its moves kept the value of the position; ``None`` in a game that is not solved.
        exact: its exact measure, if that was asked for.
    """

    result: MatchResult
    adapter: Path | None
    opponent_adapter: Path | None
    template: str
    kept: KeptValue | None = None
    exact: NashConvResult | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON-able values, the counts as in the files of a run's evaluations."""
        return {
            "kind": "match",
            **self.result.to_dict(),
            "adapter": None if self.adapter is None else str(self.adapter),
            "opponent_adapter": None if self.opponent_adapter is None else str(self.opponent_adapter),
            "template": self.template,
            "kept_value": None if self.kept is None else self.kept.to_dict(),
            "exact": None if self.exact is None else self.exact.to_dict(),
        }


def evaluate(
    name: str,
    env_id: str,
    opponent: str | None = None,
    games: int = GAMES,
    *,
    template: str | None = None,
    num_players: int | None = None,
    seed: int = 0,
    temperature: float = 1.0,
    nash_conv: bool = False,
    max_states: int | None = None,
    template_options: str | None = None,
    progress: Progress | None = None,
) -> Evaluated:
    """Play a match. Each policy of a run plays its seats.

    In a game that minimax solves, the model's moves are compared with perfect play.

    Args:
        name: the model: a run, a checkpoint, an adapter, a base model or a mixture; how it draws may stand
            behind it, as in ``base,top_p=0.9``, and behind an opponent.
        opponent: a scripted player, ``base``, or what may be a model; by default ``random``, or ``base``
            where legal moves are not listed.
        games: number of games, rounded up so that seats balance.
        template: how positions become prompts; by default as the run trained.
        num_players: number of seats; by default as the run trained, or two where that is possible.
        temperature: the model's, if none is written behind it; an opponent's is then 1.
        nash_conv: compute NashConv too.
        max_states: about how many information states to ask for before NashConv is left for the next time,
            in a game of millions.
        template_options: those of the chat template, as a table of TOML; by default as the run trained.

    Raises:
        InputError: the model, environment or opponent is not available, or NashConv cannot be computed.
    """
    progress, env_id = progress or Progress(), absolute_id(env_id, Path())
    seats = checked_seats(env_id, num_players, template)
    if opponent is None:
        opponent = default_opponent(env_id)
        if opponent == BASE and seats > 1:
            progress.say(f"note: {why_base(env_id)}")
    if seats > 1:
        check_match_opponent(opponent, env_id)
    of_board = nash_conv and is_hidden_board(env_id)
    if max_states is not None and not of_board:
        raise InputError("max_states", "is for NashConv of phantom_ttt", "Leave it out")
    if nash_conv and not of_board:
        with renaming({"evaluation.nash_conv": "nash_conv"}):
            check_nash_conv(env_id)
    bare, settings = split_sampling(name)
    source = _with_options(find_player(bare), template_options).for_game(env_id)
    calls = member_calls(settings, source.model.name, "MODEL_OR_RUN").over(CallSettings(temperature))
    drawn, sampling = calls.temperature or 0.0, calls.sampling or AS_LEARNED
    model, env = Member(MODEL, "model", bare, source), source.environment(env_id, template, num_players)
    other = None if env.num_players == 1 else find_opponent(opponent, source, env_id)
    if nash_conv:
        check_models_end_answers(env, "nash_conv", "Leave it out")
    venue = GameVenue(env)
    models = model.models(venue, "MODEL_OR_RUN")
    named = [one for one in models if not isinstance(one, Mixture)]
    if of_board and len(named) < len(models):
        raise InputError("nash_conv", f"{env_id} is too large for a mixture", "Name one of its members")
    if other is not None and other.source is not None:
        other = replace(other, source=_with_options(other.source, template_options))
    agents = None if other is None else other.agents(venue, "opponent")
    turns: list[tuple[int, list[dict[str, Any]]]] = []
    is_solved = solved_game(env_id) is not None

    def keep(index: int, rollout: Rollout) -> None:
        turns.append((index % env.num_players, rollout.extras["turns"]))

    async def measure(client: MembersClient, board: BoardNashConv | None) -> NashConvResult | None:
        if board is not None:
            return await board.measure(client, max_states)
        if not nash_conv:
            return None
        try:
            prompts = get_template(env.template)
            return await exact_nash_conv(
                client, env.id, prompts, model=models, timeout=LONG_LIMIT, progress=progress
            )
        except TooSlow as error:  # the match that was played counts too
            progress.say(f"note: NashConv is left out: {error.problem}")
            return None

    async def play() -> tuple[MatchResult, NashConvResult | None]:
        async with serving([model, *([] if other is None else [other])], seed, progress) as client:
            board = BoardNashConv(model, env, named, progress) if of_board else None
            doing = f"playing {class_name(env_id)} against {'the environment' if other is None else opponent}"
            with nullcontext() if board is None else board.table:
                with progress.doing(doing, "games", games) as count:
                    result = await play_match(
                        Arena(client),
                        build_episode(env),
                        model=models,
                        opponent=agents,
                        games=games,
                        seed=seed,
                        temperature=drawn,
                        max_tokens=source.max_tokens,
                        sampling=sampling,
                        on_game=count,
                        on_rollout=keep if is_solved else None,
                    )
                return result, await measure(client, board)

    result, exact = asyncio.run(play())
    return Evaluated(
        replace(result, model=name, opponent="" if other is None else opponent),
        source.adapter,
        None if other is None or other.source is None else other.source.adapter,
        env.template,
        _kept_value(env_id, turns, progress) if is_solved else None,
        None if exact is None else replace(exact, model=name),
    )


def _with_options(source: ModelSource, template_options: str | None) -> ModelSource:
    return replace(source, model=with_template_options(source.model, template_options))


def _kept_value(
    env_id: str, played: list[tuple[int, list[dict[str, Any]]]], progress: Progress
) -> KeptValue | None:
    """Compare the moves of a match with minimax; ``None`` if its search takes too many positions."""
    with progress.doing(f"comparing the moves with perfect play of {env_id}"):
        try:
            return kept_value(env_id, played)
        except InputError:
            progress.say(f"note: {env_id} is too large to compare the moves with perfect play")
            return None
