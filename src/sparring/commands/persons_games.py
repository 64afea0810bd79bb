"""Games of a person against models: their deals, and the moves of both, wherever the person sits."""

import random
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from sparring.commands.members import MODEL, Member
from sparring.commands.model_source import find_player
from sparring.commands.serving import build_engine
from sparring.config.model import InferenceSettings
from sparring.core import CallSettings, InferenceClient, InputError, ModelResponse, derive_seed
from sparring.core.env_id import absolute_id
from sparring.core.errors import is_transient
from sparring.core.model_caller import ModelCaller
from sparring.core.own_code import is_from_outside
from sparring.core.text import one_line
from sparring.envs.catalog import open_game
from sparring.envs.game import Game
from sparring.envs.templates import PromptTemplate, calls_of, get_template
from sparring.evaluation.match import Progress, drawn
from sparring.evaluation.results import outcome_of
from sparring.evaluation.venues import GameVenue
from sparring.run.checks import checked_seats

ILLEGAL = "that was not a legal move"
_SAID = {"win": "won", "draw": "drew", "loss": "lost"}


@dataclass(frozen=True)
class ModelPlayer:
    """The person's opponent, a policy in each seat."""

    client: InferenceClient
    policies: Sequence[str]
    template: PromptTemplate
    calls: CallSettings

    async def answer(self, game: Game, seed: int) -> ModelResponse:
        """Return the model's answer to the prompt of the player whose turn it is."""
        return await ModelCaller(self.client, 1, None).call_model(
            self.template.messages(game, game.current_pid),
            calls=self.calls.over(calls_of(self.template)),
            return_tokens=False,
            model=self.policies[game.current_pid],
            seed=seed,
        )


@dataclass(frozen=True)
class Dealt:
    """A game that begins: the person's seat, who has the others, and the seed of their answers."""

    game: Game
    mine: int
    model: ModelPlayer
    seed: int


@dataclass(frozen=True)
class Move:
    """What a model did: what it thought and said, the move found in it, and why that is invalid, if it is."""

    pid: int
    thought: str
    said: str
    action: str
    problem: str = ""


class PersonsGames:
    """The games of a person against a model, or against the policy of each seat.

    Args:
        run: a run, an adapter, a model or a mixture.
        env_id: the game.
        template: how the model sees it; by default as in its training.
        seat: the person's; by default drawn for each game.
        seed: determines deals, seats and answers.

    Attributes:
        dealt: the number of games so far.
        max_turns: after so many turns, a game of the model's training ends.

    Raises:
        InputError: the model or environment is not available, or there is no such seat.
    """

    def __init__(
        self, run: str, env_id: str, *, template: str | None, seat: int | None, seed: int, progress: Progress
    ) -> None:
        env_id = absolute_id(env_id, Path())
        checked_seats(env_id, None, template)
        source = find_player(run).for_game(env_id)
        member, env = Member(MODEL, "model", run, source), source.environment(env_id, template, None)
        if seat is not None and seat >= env.num_players:
            problem = f"{seat} is not one of the {env.num_players} seats"
            raise InputError("seat", problem, "Seats are numbered from 0.")
        self._policies = member.models(GameVenue(env), "RUN")
        inference = InferenceSettings(max_tokens=source.max_tokens)
        self._engine = build_engine(source.model, member.adapters(), inference, seed, progress)
        self._calls = replace(env.calls, max_tokens=env.max_tokens or source.max_tokens)
        self._env_id, self._num_players = env.env_id, env.num_players
        self._template, self._seat, self._seed = get_template(env.template), seat, seed
        self._rng = random.Random(seed)
        self.dealt, self.max_turns = 0, env.max_turns

    @asynccontextmanager
    async def deal(self) -> AsyncIterator[Dealt]:
        """Begin the next game, and leave it however the body ends."""
        deal = derive_seed(self._seed, "play", self.dealt)
        playing = [drawn(policy, deal, pid) for pid, policy in enumerate(self._policies)]
        model = ModelPlayer(self._engine, playing, self._template, self._calls)
        mine = self._rng.randrange(self._num_players) if self._seat is None else self._seat
        self.dealt += 1
        seed = self._seed + self.dealt
        async with open_game(self._env_id, self._num_players, deal) as game:
            yield Dealt(game, mine, model, seed)


def next_to_move(game: Game, mine: int) -> int:
    """Let the person move first of those who move at once; return whose turn it is."""
    acting = game.acting()
    game.turn_to(mine if mine in acting else acting[0])
    return game.current_pid


async def model_move(game: Game, model: ModelPlayer, seed: int) -> Move:
    """Let the model move. An illegal move ends the game."""
    pid = game.current_pid
    response = await model.answer(game, seed)
    action = game.normalise(model.template.extract(response.text)[0])
    legal = game.legal_actions()
    problem = await make_move(game, pid, action) if legal is None or action in legal else ILLEGAL
    if problem and not game.done:
        game.forfeit(pid, "illegal move")
    thought = "" if response.reasoning is None else response.reasoning.text
    return Move(pid, thought, response.text, action, problem)


async def make_move(game: Game, pid: int, action: str) -> str:
    """Make a move; return why it is invalid, or nothing. One on which the game raises ends it."""
    try:
        valid = game.apply(action)
        await game.settle()
        return "" if valid else ILLEGAL
    except BaseException as error:  # any error is the move's fault
        if is_from_outside(error) or is_transient(error):
            raise
        game.break_off(pid, error)
        reason = game.game_info()[pid]["reason"]
        return one_line(f"{reason}; this is an invalid move of player {pid}")


def verdict_of(rewards: Mapping[int, float], mine: int) -> str:
    """Return how a game ended for the person, by the rewards: ``won``; of three or more also the place."""
    earned, players = rewards[mine], len(rewards)
    above = sum(one > earned for one in rewards.values())
    alike = sum(one == earned for one in rewards.values())
    if players < 3 or alike == players or (above == 0 and alike == 1):
        return _SAID[outcome_of(rewards, mine)]
    place = "first" if above == 0 else "last" if above + alike == players else _ordinal(above + 1)
    return f"shared {place} place" if alike > 1 else f"came {place}"


def _ordinal(number: int) -> str:
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def outcome_text(rewards: Mapping[int, float], mine: int) -> tuple[str, str]:
    """Return how a game ended for the person, and what each player earned."""
    others = [f"player {pid} {reward:+g}" for pid, reward in sorted(rewards.items()) if pid != mine]
    return f"you {verdict_of(rewards, mine)}", ", ".join([f"you {rewards[mine]:+g}", *others])
