"""``selfplay eval``: a match of any model, adapter or run."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from selfplay.commands.model_source import ModelSource, base_difference, find_player
from selfplay.config.model import InferenceSettings
from selfplay.config.play import GameSettings
from selfplay.core import AgentSpec, Arena, InferenceClient, InputError, Rollout
from selfplay.core.adapters import BASE, TRAINED
from selfplay.envs.templates import get_template
from selfplay.evaluation.kept_value import KeptValue, kept_value, solved_game
from selfplay.evaluation.match import play_match
from selfplay.evaluation.match_result import MatchResult
from selfplay.evaluation.mixture import Mixture, mapped
from selfplay.evaluation.nash_conv import LONG_LIMIT, NashConvResult, TooSlow, nash_conv
from selfplay.evaluation.tables import exact_table, match_table
from selfplay.inference.engine import EmbeddedEngine
from selfplay.training.checks import check_models_end_answers
from selfplay.training.evaluation_opponents import OPPONENTS
from selfplay.training.evaluations import opponent_agent
from selfplay.training.progress_views import print_line, view_of, working
from selfplay.training.publishing import publish_models


def build_engine(
    source: ModelSource, console: Console, seed: int, opponent: Mapping[str, Path] | None = None
) -> EmbeddedEngine:
    """Serve the policies of a model by their names, its base model as ``base``, and an opponent's adapters.

    A model with a single policy is ``default``; :func:`opponent_model` names the opponent's adapters.

    Raises:
        InputError: a model cannot be loaded, or an adapter belongs to another model.
    """
    served = source.adapters()
    served |= {opponent_model(name): path for name, path in (opponent or {}).items()}
    inference = InferenceSettings(max_tokens=source.max_tokens)
    with working(console, f"loading {source.model.name}"):
        say = partial(print_line, console)
        engine = publish_models(source.model, served, inference, seed=seed, say=say).engine
    for name in {TRAINED, opponent_model(TRAINED)} - served.keys():
        engine.publish(name, BASE, 0)
    return engine


def opponent_model(policy: str) -> str:
    """Return the name under which a policy of the opponent is served; no policy can have it."""
    return f"opponent/{policy}"


def _find_opponent(
    name: str, env: GameSettings, base: ModelSource
) -> tuple[AgentSpec | list[AgentSpec | Mixture[AgentSpec]], ModelSource | None]:
    """Return the agents that an opponent's name means, and the model to load for them.

    Raises:
        InputError: the opponent has another base model, or no policy for a seat.
    """
    if name in OPPONENTS:
        return opponent_agent(name), None
    source = find_player(name)
    both = source.trained and base.trained
    if difference := base_difference(source.model, base.model, trained=both):
        raise InputError(
            "--opponent",
            f"the base model of {name} {difference}",
            "Name an opponent with the same base model.",
        )
    own = source.environment(env.id, None, env.num_players)
    seats = source.seats(own, "--opponent", opponent_model)
    return [mapped(seat, partial(AgentSpec, "model")) for seat in seats], source


@dataclass(frozen=True)
class Evaluated:
    """A match, and what was played in it.

    Attributes:
        result: the counts.
        model: the model as the user named it.
        adapter: the model's adapter, or the checkpoint of its policies; ``None`` if it has none.
        opponent: the opponent as the user named it; empty in a game for one player.
        opponent_adapter: the adapter of an opponent that is a run.
        template: how positions became prompts.
        temperature: the model's sampling temperature.
        kept: how often its moves kept the value of the position; ``None`` in a game that is not solved.
        exact: its exact measure, if that was asked for.
    """

    result: MatchResult
    model: str
    adapter: Path | None
    opponent: str
    opponent_adapter: Path | None
    template: str
    temperature: float
    kept: KeptValue | None
    exact: NashConvResult | None

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON-able values, the counts as in the files of a run's evaluations."""
        paths = {"adapter": self.adapter, "opponent_adapter": self.opponent_adapter}
        return {
            "kind": "match",
            **self.result.to_dict(),
            "model": self.model,
            "opponent": self.opponent,
            **{name: None if path is None else str(path) for name, path in paths.items()},
            "template": self.template,
            "temperature": self.temperature,
            "kept_value": None if self.kept is None else self.kept.to_dict(),
            "exact": None if self.exact is None else self.exact.to_dict(),
        }


def evaluate(
    model_or_run: str,
    env_id: str,
    opponent: str,
    games: int,
    *,
    template: str | None,
    num_players: int | None,
    seed: int,
    temperature: float,
    console: Console,
    exact: bool = False,
) -> Evaluated:
    """Play a match, print its table and return it. Each policy of the run plays its seats.

    An argument that is ``None`` takes the value that the run trained with, or else the default. With
    ``exact``, NashConv is computed too. In a game that minimax solves, the model's moves are compared with
    perfect play.

    Raises:
        InputError: the model, environment or opponent is not available, or NashConv would take over an hour.
    """
    source = find_player(model_or_run)
    env = source.environment(env_id, template, num_players)
    if exact:
        check_models_end_answers(env, "--nash-conv", "Leave it out")
    seats = source.seats(env, "MODEL_OR_RUN")
    agent, other = _find_opponent(opponent, env, source)
    alone = env.num_players == 1
    engine = build_engine(source, console, seed, None if other is None else other.adapters())
    played: list[tuple[int, list[dict[str, Any]]]] = []

    def keep(index: int, rollout: Rollout) -> None:
        played.append((index % env.num_players, rollout.extras["turns"]))

    solved = solved_game(env.id) is not None
    view = view_of(console, "games", games)
    view.start()
    try:
        view.doing(f"playing {env.id} against {'the environment' if alone else opponent}")
        result = asyncio.run(
            play_match(
                Arena(engine),
                env.id,
                env.num_players,
                get_template(env.template),
                model=seats,
                opponent=None if alone else agent,
                games=games,
                seed=seed,
                temperature=temperature,
                max_tokens=source.max_tokens,
                max_turns=env.max_turns,
                error_allowance=env.error_allowance,
                stop=env.stop,
                on_game=view.count,
                on_rollout=keep if solved else None,
            )
        )
    finally:
        view.stop()
    kept = _kept_value(env.id, played, console) if solved else None
    console.print(match_table([result], kept))
    measured = _measured_in_time(engine, env, seats, console) if exact else None
    if measured is not None:
        console.print(exact_table(measured))
    return Evaluated(
        result,
        model_or_run,
        source.adapter,
        "" if alone else opponent,
        other.adapter if other else None,
        env.template,
        temperature,
        kept,
        measured,
    )


def _measured_in_time(
    engine: EmbeddedEngine, env: GameSettings, seats: Sequence[str | Mixture[str]], console: Console
) -> NashConvResult | None:
    """Compute NashConv; ``None`` if it would take too long, because the match that was played counts too."""
    try:
        return exact_measure(engine, env, seats, console)
    except TooSlow as error:
        print_line(console, f"note: NashConv is left out: {error.problem}")
        return None


def exact_measure(
    engine: EmbeddedEngine,
    env: GameSettings,
    seats: Sequence[str | Mixture[str]],
    console: Console,
    minutes: float = LONG_LIMIT / 60,
) -> NashConvResult:
    """Compute what :func:`measure_exactly` does."""
    return asyncio.run(measure_exactly(engine, env, seats, console, minutes))


async def measure_exactly(
    client: InferenceClient,
    env: GameSettings,
    seats: Sequence[str | Mixture[str]],
    console: Console,
    minutes: float,
) -> NashConvResult:
    """Compute the NashConv of the served models in the seats, showing progress.

    Raises:
        InputError: the game is too large, or scoring its positions would take longer than ``minutes``.
    """
    view = view_of(console, "positions", None)
    view.start()
    try:
        view.doing(f"{env.id}: NashConv")
        return await nash_conv(
            client,
            env.id,
            get_template(env.template),
            model=seats,
            timeout=60 * minutes,
            on_position=view.count,
            say=view.doing,
        )
    finally:
        view.stop()


def _kept_value(
    env_id: str, played: list[tuple[int, list[dict[str, Any]]]], console: Console
) -> KeptValue | None:
    """Compare the moves of a match with minimax; ``None`` if its search takes too many positions."""
    with working(console, f"comparing the moves with perfect play of {env_id}"):
        try:
            return kept_value(env_id, played)
        except InputError:
            print_line(console, f"note: {env_id} is too large to compare the moves with perfect play")
            return None
