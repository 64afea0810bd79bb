"""A dry run: one episode of all that a run plays, with made-up answers, and a look into the model's files."""

import asyncio
import io
import json
import random
import time
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import Future
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from threading import Thread
from typing import Any

from sparring.collection.buffers import BaseBuffer
from sparring.config import Config
from sparring.config.play import Games, GameSettings
from sparring.config.programs import PythonProgram
from sparring.core import (
    Arena,
    EpisodeError,
    EpisodeRequest,
    GenerateResult,
    InputError,
    SparringError,
    TrainingBatch,
    Trajectory,
    derive_seed,
    trajectories_of,
)
from sparring.core.adapters import BUNDLED_MODEL
from sparring.core.errors import first_line, frames_of, module_of, shown
from sparring.core.own_code import (
    awaitable,
    called,
    is_from_outside,
    method_of,
    own_code,
    own_failure,
    returned,
    state_of,
)
from sparring.core.play import PlaySpec, trajectories_of_roles
from sparring.core.text import counted
from sparring.core.types import AgentSpec
from sparring.envs.catalog import library_of
from sparring.envs.game_episode import build_episode
from sparring.learn.model_files import model_directory, unconverted_template
from sparring.learn.model_fit import Call, answer_tokens, check_model_fits, check_template
from sparring.run.answer_lengths import answer_limits, notes_on_lengths
from sparring.run.evaluation_opponents import evaluation_opponents
from sparring.run.made_up import MadeUp, Prompter
from sparring.run.programs import build_program, measured
from sparring.run.rewards import build_buffer

LIMIT_SECONDS = 20.0
"""The longest rehearsal; what takes longer is not checked."""
_GRACE_SECONDS = 0.5
"""What is left to code that waits, and not to code that blocks, before it is given up."""
MORE_GAMES, MORE_SECONDS = 31, 2.0
"""How often the user's own games are played again, and until when: some fail after rare moves only."""
MOST_TURNS = 100


@dataclass
class Rehearsal:
    """What a rehearsal found: lines about what went well, notes, and the calls of the model. ``legal`` are
    legal answers, each with its game's name."""

    found: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    legal: list[tuple[str, str]] = field(default_factory=list)


def dry_run_of(config: Config) -> tuple[list[str], list[str]]:
    """Return one line for each thing that went well, and notes.

    Raises:
        InputError: a run would fail.
    """
    rehearsal = rehearse(config)
    found, notes = rehearsal.found, [*rehearsal.notes, *_note_on_evaluations(config)]
    name, settings = config.model.name, config.inference
    directory = model_directory(name)
    if directory is None and name == BUNDLED_MODEL:
        return found, notes
    if directory is None:
        template = unconverted_template(name)
        if template is not None:
            check_template(name, template, rehearsal.calls, config.model.template_options)
            return found, [*notes, f"the layers of {name} were not checked: it is not converted yet"]
        return found, [*notes, f"the tokenizer and the layers of {name} were not checked: it is not here yet"]
    room = [settings.max_context] if settings.max_context is not None else []
    room += [settings.max_cached_tokens] if settings.engine == "embedded" else []
    limit = min(room, default=10**9)
    notes += check_model_fits(
        name,
        directory,
        config.lora.target_modules,
        rehearsal.calls,
        limit,
        config.model.template_options,
    )
    tokens = answer_tokens(directory, {answer for _, answer in rehearsal.legal})
    lengths = ((game, answer, tokens[answer]) for game, answer in rehearsal.legal if tokens)
    notes += notes_on_lengths(answer_limits(config), lengths)
    return [*found, f"tokenizer, layers and context of {name}"], notes


def _note_on_evaluations(config: Config) -> list[str]:
    if not isinstance(config.play, Games):
        return []
    evaluation, steps = config.evaluation, config.learning.steps
    during = (steps - 1) // evaluation.every if evaluation.every else 0
    evaluated, sizes = 0, set[str]()
    for place, game in enumerate(config.evaluated):
        matches = len(evaluation_opponents(config, game)) if game.num_players > 1 else 1
        whole, part = game.games or evaluation.games, game.games or evaluation.games_during
        evaluated += matches * (2 * whole + during * part)
        if matches:
            own, shared = f"evaluation.envs.{place}.games", ["evaluation.games", "evaluation.games_during"]
            sizes |= {own} if game.games else {*shared[: 2 if during else 1]}
    trained = steps * config.collection.games_per_step
    if evaluated <= trained:
        return []
    return [
        f"evaluations play {evaluated} games, training {trained}; for a short run, lower "
        f"{' and '.join(sorted(sizes))}, or set evaluation.opponents = []"
    ]


def rehearse(config: Config) -> Rehearsal:
    """Play one episode of each environment, or of each kind in the program's first batch.

    A user's own code runs, down to the rewards and the state of a checkpoint; what it prints is not shown.

    Raises:
        InputError: it failed.
    """
    rehearsal = Rehearsal()
    play = _games if config.program is None else _program
    try:
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            _in_a_thread(lambda: play(config, rehearsal)).result(LIMIT_SECONDS + _GRACE_SECONDS)
    except InputError:
        raise
    except SparringError as error:
        field = "envs" if config.program is None else "program"
        raise InputError(field, first_line(error), "Correct it") from error
    except TimeoutError:
        rehearsal.notes.append(f"an episode took more than {LIMIT_SECONDS:g} s and was not checked further")
    return rehearsal


def _in_a_thread(work: Callable[[], Coroutine[Any, Any, None]]) -> "Future[None]":
    """Run a coroutine in a thread of its own, which ends with the process: own code may block."""
    outcome: Future[None] = Future()

    def run() -> None:
        try:
            asyncio.run(asyncio.wait_for(work(), LIMIT_SECONDS))
        except BaseException as error:  # noqa: BLE001 - who waits for the outcome gets it
            outcome.set_exception(error)
        else:
            outcome.set_result(None)

    Thread(target=run, daemon=True).start()
    return outcome


async def _games(config: Config, rehearsal: Rehearsal) -> None:
    trajectories, envs, end = [], [*config.envs, *config.evaluation.envs], time.monotonic() + MORE_SECONDS
    for env in envs:
        result = await _game(config, env, config.seed, rehearsal)
        trajectories += trajectories_of(result.rollout)
        rehearsal.found.append(f"one episode of {env.name} with made-up answers")
    _through_a_buffer(config, trajectories)
    own = [env for env in envs if library_of(env.id) == "python"]
    more = await _more_games(config, own, end)
    if more:
        rehearsal.found.append(f"{counted(len(more), 'more episode')} of your own, with other answers")
    for name in dict.fromkeys(name for name, _ in more):
        if not any(ended for one, ended in more if one == name):
            turns = min(MOST_TURNS, *(env.max_turns for env in own if env.name == name))
            problem = f"no game of {name} with random moves has ended within {counted(turns, 'turn')}"
            rehearsal.notes.append(f"{problem}; a game that max_turns ends is a draw")


async def _more_games(config: Config, own: list[GameSettings], end: float) -> list[tuple[str, bool]]:
    """Play the user's own games again, in turn, until a time; return their names and whether they ended."""
    played = list[tuple[str, bool]]()
    for number, env in ((number, env) for number in range(MORE_GAMES) for env in own):
        if time.monotonic() > end:
            break
        result = await _game(config, env, derive_seed(config.seed, "rehearsal", number), Rehearsal())
        played.append((env.name, not result.rollout.extras.get("truncated")))
    return played


async def _game(config: Config, env: GameSettings, seed: int, rehearsal: Rehearsal) -> GenerateResult:
    episode, draw = build_episode(env), random.Random(seed)
    episode.template = template = Prompter(episode.template)
    episode.max_turns = min(episode.max_turns, MOST_TURNS)
    client = MadeUp(
        lambda: draw.choice(template.legal or ["a made-up answer"]),
        rehearsal.calls,
        config.inference.max_tokens,
    )
    arena = Arena(client, episode_timeout=2 * LIMIT_SECONDS, retries=0)
    trained = config.policies
    agents = tuple(AgentSpec("policy" if one in trained else "model", one) for one in env.seats)
    arena.add_episode(episode.episode_type, episode)
    spec = PlaySpec(episode.name, env.num_players, agents, seed)
    result = await arena.try_episode(episode.episode_type, spec, {"seed": seed})
    rehearsal.legal += [(env.name, answer) for answer in sorted(template.seen)]
    reason = result.rollout.error or _raised(result.rollout.extras)
    if reason and (library_of(env.id) == "python" or result.rollout.error):
        problem = f"an episode of {env.name} with made-up answers failed: {reason}"
        raise InputError(env.section, problem, "Correct it")
    return result


def _raised(extras: dict[str, Any]) -> str:
    """Return the reason why a game raised on a move; empty if none did."""
    return str(extras["game_info"][extras["invalid_pid"]]["reason"]) if extras.get("raised") else ""


async def _program(config: Config, rehearsal: Rehearsal) -> None:
    arena = build_program(config)
    assert arena is not None
    arena.client = MadeUp(lambda: "a made-up answer", rehearsal.calls, config.inference.max_tokens)
    arena.episode_timeout, arena.retries = 2 * LIMIT_SECONDS, 0
    name = config.play.names[0]
    await called(arena.startup, "the program's startup", "program")
    with own_code(field="program"):
        number, requests = await arena.begin_step()
        first = {request.episode_type: request for request in reversed(requests)}
        played, failed = await _played(arena, [*first.values()], name)
        if config.uses_buffer:
            pids = {role: pid for pid, role in enumerate(arena.roles)}
            _through_a_buffer(config, (one for each in played for one in trajectories_of_roles(each, pids)))
        elif played:
            returned(arena.end_step(number, played), TrainingBatch, method_of(arena, "end_step"))
    of_failed = f", which failed, as it may with such answers: {failed[0]}" if failed else ""
    rehearsal.found.append(f"one episode of {name} with made-up answers{of_failed}")
    if isinstance(config.program, PythonProgram):
        measures = measured(await called(arena.evaluate, "the program's evaluate", "program"))
        rehearsal.found += [f"its evaluate measures {', '.join(measures)}"] if measures else []
    await called(arena.shutdown, "the program's shutdown", "program")
    again = build_program(config)
    assert again is not None
    await called(again.startup, "the program's startup", "program")
    with own_code(field="program"):
        _check_restores(arena, again, "program")
    await called(again.shutdown, "the program's shutdown", "program")


async def _played(
    arena: Arena, requests: list[EpisodeRequest], name: str
) -> tuple[list[GenerateResult], list[str]]:
    played, failed = [], []
    for request in requests:
        try:
            artifact = await awaitable(arena.resolve_artifact(request), method_of(arena, "resolve_artifact"))
            played.append(await arena.run_episode(request.episode_type, artifact, request.meta))
        except InputError:
            raise
        except BaseException as error:
            if is_from_outside(error):
                raise
            if not isinstance(error, EpisodeError) or _is_raised_by_the_core(error):
                problem = f"an episode of {name} with made-up answers failed: {own_failure(error)}"
                fix = "Correct it; raise an EpisodeError if an answer is at fault"
                raise InputError("program", problem, fix) from error
            failed.append(first_line(error))
    return played, failed


def _is_raised_by_the_core(error: EpisodeError) -> bool:
    """Return whether the core refused what own code returned; other code raises because of an answer."""
    *_, innermost = frames_of(error)
    return module_of(innermost).startswith("sparring.core")


def _through_a_buffer(config: Config, trajectories: Iterable[Trajectory]) -> None:
    buffer = build_buffer(config, None, None)
    for trajectory in trajectories:
        buffer.add_player_trajectory(trajectory, trajectory.env_id)
    if buffer.entries():  # games of random moves only have none
        buffer.get_batch(buffer.entries())
    with own_code(field="rewards"):
        _check_restores(buffer, build_buffer(config, None, None), "rewards")


def _check_restores(owner: Arena | BaseBuffer, again: Arena | BaseBuffer, field: str) -> None:
    """Raise an InputError unless ``again`` has the state of ``owner`` after a checkpoint."""
    try:
        written = json.dumps(state_of(owner), allow_nan=False)
    except ValueError as error:
        problem = f"its state_dict cannot be written as JSON ({error})"
        raise InputError(field, problem, "Return plain numbers, texts, lists and tables") from error
    again.load_state_dict(json.loads(written))
    restored = json.loads(json.dumps(again.state_dict()))
    if found := _difference(json.loads(written), restored):
        place, was, now = found
        problem = f"state_dict gave {place} = {shown(was)}, and after load_state_dict it gives {shown(now)}"
        raise InputError(field, problem, "Restore in load_state_dict all that state_dict returns")


def _difference(one: Any, other: Any, place: str = "") -> tuple[str, Any, Any] | None:
    """Return the first place where two values of JSON differ, and both values there; ``None`` if nowhere."""
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        pairs = [(name, one[name], other[name]) for name in one]
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        pairs = [(str(index), *both) for index, both in enumerate(zip(one, other, strict=True))]
    else:
        return None if one == other else (place, one, other)
    inside = f"{place}." if place else ""
    found = (_difference(first, second, f"{inside}{name}") for name, first, second in pairs)
    return next(filter(None, found), None)
