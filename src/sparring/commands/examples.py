"""Examples for supervised training, made of games: a winner's moves, a member's, or a scripted player's.

A game keeps every move, but not the prompt of a player that is not trained. So each game is played again from
its seed, by the same rules and with the moves that it had, as if every seat were trained. A game that does
not come out as before, because its rules or its template have changed, is left out.
"""

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from sparring.collection.rollout_log import RolloutLog
from sparring.config.loading import load_config
from sparring.config.play import DEFAULT_TEMPLATE, EnvSettings, Games, GameSettings
from sparring.core import (
    AgentSpec,
    Arena,
    InferenceClient,
    InputError,
    Message,
    Messages,
    ModelResponse,
    PlaySpec,
    Rollout,
    SparringError,
    derive_seed,
)
from sparring.core.env_id import absolute_id
from sparring.core.errors import renaming
from sparring.core.play import GameTurn, played_steps
from sparring.core.reasoning import KNOWN_TAGS
from sparring.core.text import counted
from sparring.envs.game_episode import GameEpisode, build_episode
from sparring.envs.scripted import PLAYER_NAMES
from sparring.evaluation.match import Progress, SeatedGame, play_games, play_of_game
from sparring.run.checks import check_opponent, checked_seats

RANDOM_MOVES = "random moves"
ILL_FORMED = "invalid or ill-formed moves"
CHANGED = "games that no longer come out as they did"


@dataclass
class GameExamples:
    """The lines of a file in OpenAI's format, each a prompt and the move that answers it; the number of games
    that they are from; and what was left out, with numbers. ``plain``: some prompts are plain text, which
    only a server of ours reads."""

    lines: list[str] = field(default_factory=list)
    games: int = 0
    left_out: Counter[str] = field(default_factory=Counter)
    plain: bool = False

    def add(self, prompt: Messages, answer: str) -> None:
        """Add an example. Answers in the prompt, such as those of a few-shot prompt, are not trained on."""
        messages = [_as_example(one) for one in prompt]
        messages.append({"role": "assistant", "content": answer})
        self.lines.append(json.dumps({"messages": messages}))
        self.plain = self.plain or prompt[0]["role"] == "text"

    def summary(self, file: Path) -> str:
        """Return in a line what was written to a file."""
        left = ", ".join(f"{number:,} {what}" for what, number in sorted(self.left_out.items()))
        found = f"{counted(len(self.lines), 'example')} of {counted(self.games, 'game')} in {file}"
        return f"{found}; left out: {left}" if left else found


def _as_example(message: Message) -> dict[str, Any]:
    weight = {"weight": 0} if message["role"] == "assistant" else {}
    return {"role": message["role"], "content": message["content"], **weight}


def expert_game(
    expert: str, opponent: str, env_id: str | None, num_players: int | None, template: str | None
) -> EnvSettings:
    """Return the game of two scripted players, checked."""
    if env_id is None:
        raise InputError("env.id", "is missing", "Name a game (see: sparring envs)")
    env_id = absolute_id(env_id, Path())
    seats = checked_seats(env_id, num_players, template)
    for place, name in (("script", expert), ("opponent", opponent)):
        if name not in PLAYER_NAMES:
            raise InputError(place, f"no scripted player {name!r}", f"Use one of {', '.join(PLAYER_NAMES)}")
        with renaming({"opponent": place}):
            check_opponent(name, env_id)
    return EnvSettings(id=env_id, num_players=seats, template=template or DEFAULT_TEMPLATE)


def expert_examples(
    expert: str, opponent: str, env: EnvSettings, games: int, seed: int, progress: Progress
) -> GameExamples:
    """Let a scripted player play games and return its moves: of both sides where its opponent is the same.

    Raises:
        SparringError: a game failed.
    """
    episode, found = build_episode(env), GameExamples()
    specs = [_spec(env, expert, opponent, game, seed) for game in range(games)]
    with progress.doing(f"{expert} plays {env.name}", "games", games) as count:
        rollouts = asyncio.run(_play(episode, specs, lambda done: count(done, games)))
    for rollout in rollouts:
        _add_game(found, [env], rollout, lambda turn, _: turn["model"] == expert, reasoning=False)
    return found


def _spec(env: EnvSettings, expert: str, opponent: str, game: int, seed: int) -> PlaySpec:
    agents = [AgentSpec("script", opponent)] * env.num_players
    agents[game % env.num_players] = AgentSpec("script", expert)
    deal = derive_seed(seed, "examples", game // env.num_players)
    return PlaySpec(env.name, env.num_players, tuple(agents), deal)


async def _play(
    episode: GameEpisode, specs: Sequence[PlaySpec], on_game: Callable[[int], None]
) -> list[Rollout]:
    found: dict[int, Rollout] = {}

    def keep(index: int, played: SeatedGame | str) -> None:
        if isinstance(played, str):
            raise SparringError(f"a game failed: {played}")
        found[index] = played.rollout
        on_game(len(found))

    named = [(f"game-{index:05d}", spec) for index, spec in enumerate(specs)]
    await play_games(play_of_game(Arena(_Replies([])), episode), named, keep)
    return [rollout for _, rollout in sorted(found.items())]


def run_examples(
    run: Path, env_id: str | None, member: str | None, *, reasoning: bool, progress: Progress
) -> GameExamples:
    """Return the moves of the winners of a run's logged games, or all moves of a member.

    A game that ended by an invalid move, or at the limit of turns, has no winner.

    Args:
        env_id: the game; all of the run by default.
        member: whose moves, as the log names it: ``default``, ``ckpt-10``, ``optimal``.
        reasoning: whether an answer begins with what its model thought before it.

    Raises:
        InputError: the run plays no such game, its log is damaged, or nothing is left.
    """
    config = load_config(str(run / "config.toml"), {})
    if not isinstance(config.play, Games):
        raise InputError("RUN", "plays a program, which has no moves", "Name a run of games")
    envs = [env for env in config.envs if env_id is None or env_id in (env.env_id, env.name)]
    if not envs:
        played = ", ".join(env.env_id for env in config.envs)
        raise InputError("env.id", f"the run did not play {env_id}", f"It played {played}")
    found = GameExamples()
    names: set[str] = set()
    wanted = _of_winner if member is None else (lambda turn, _: turn["model"] == member)
    with progress.doing(f"reading the games of {run}", "games") as count:
        for number, (_, rollout) in enumerate(RolloutLog(run / "rollouts"), 1):
            if rollout.error is None:
                names.update(turn["model"] for turn in rollout.extras["turns"])
                _add_game(found, envs, rollout, wanted, reasoning=reasoning)
            count(number, None)
    if not found.lines:
        raise InputError(*_why_nothing(member, names, found))
    return found


def _why_nothing(member: str | None, names: set[str], found: GameExamples) -> tuple[str, str, str]:
    if not names:
        return "RUN", "has no games in its log", "Train with tracking.games_logged above 0"
    if member is not None and member not in names:
        return "member", f"no move of {member} is in the log", f"There are: {', '.join(sorted(names))}"
    if found.left_out:
        return "RUN", f"only {' and '.join(sorted(found.left_out))} were found", "Train it longer first"
    return "RUN", "no game was won, but by invalid moves", "Name whose moves: --member default"


def _of_winner(turn: GameTurn, extras: dict[str, Any]) -> bool:
    if extras["invalid_pid"] is not None or extras["truncated"]:
        return False
    rewards: dict[int, float] = extras["final_rewards"]
    least = 0.0 if len(rewards) == 1 else min(rewards.values())
    return rewards[turn["pid"]] == max(rewards.values()) > least


def _add_game(
    found: GameExamples,
    envs: Sequence[GameSettings],
    rollout: Rollout,
    wanted: Callable[[GameTurn, dict[str, Any]], bool],
    *,
    reasoning: bool,
) -> None:
    """Add the wanted moves of a game, which was one of ``envs``."""
    spec = msgspec.convert(rollout.artifact, PlaySpec, from_attributes=True)
    turns: list[GameTurn] = rollout.extras["turns"]
    chosen = [place for place, turn in enumerate(turns) if wanted(turn, rollout.extras)]
    possible = [env for env in envs if (env.name, env.num_players) == (spec.env_id, spec.num_players)]
    if not chosen or not possible:
        return
    replies = [(env, asyncio.run(_replayed(env, spec, rollout))) for env in possible]
    same = [(env, prompts) for env, prompts in replies if prompts is not None]
    if not same:
        found.left_out[CHANGED] += 1
        return
    env, prompts = same[0]
    before, template = len(found.lines), build_episode(env).template
    explored = _explored(rollout)
    for place in chosen:
        turn = turns[place]
        agent = spec.agents[turn["pid"]]
        if place in explored or ((turn["kind"], turn["model"]) != (agent.kind, agent.model)):
            found.left_out[RANDOM_MOVES] += 1
        elif turn["invalid"] or not turn["well_formed"]:
            found.left_out[ILL_FORMED] += 1
        else:
            exact = template.strict or turn["kind"] == "script"
            answer = template.answer(turn["action"]) if exact else f"{turn['text']}{template.stop}"
            found.add(prompts[place], _thought(env, turn) + answer if reasoning else answer)
    found.games += len(found.lines) > before


def _explored(rollout: Rollout) -> set[int]:
    """Return the turns at which a policy's answer was a random one. Each of its turns has a step."""
    of_policies = [place for place, one in enumerate(rollout.extras["turns"]) if one["kind"] == "policy"]
    steps = zip(of_policies, played_steps(rollout), strict=True)
    return {place for place, step in steps if step.info.get("explored") is True}


def _thought(env: GameSettings, turn: GameTurn) -> str:
    if not turn.get("reasoning"):
        return ""
    first, second = env.reasoning if isinstance(env.reasoning, list | tuple) else KNOWN_TAGS[0]
    return f"{first}\n{turn['reasoning']}\n{second}\n\n"


async def _replayed(env: GameSettings, spec: PlaySpec, rollout: Rollout) -> list[Messages] | None:
    """Return the prompt of each turn of a game; ``None`` if it does not come out as it did.

    The random moves of its beginning are made like others: they are in the log.
    """
    episode = build_episode(env.plain)
    turns: list[GameTurn] = rollout.extras["turns"]
    replies = [
        episode.template.answer(one["action"]) if one["kind"] == "script" else one["text"] for one in turns
    ]
    agents = tuple(AgentSpec("policy", str(pid)) for pid in range(spec.num_players))
    again = PlaySpec(spec.env_id, spec.num_players, agents, spec.seed)
    played = (await episode.generate(Arena(_Replies(replies), retries=0), again)).rollout
    same = [_move(one) for one in played.extras["turns"]] == [_move(one) for one in turns]
    same = same and played.extras["final_rewards"] == rollout.extras["final_rewards"]
    known = iter(played_steps(rollout))
    for step, turn in zip(played.steps, turns, strict=True) if same else ():
        if turn["kind"] == "policy":
            same = same and step.prompt == next(known, step).prompt
    return [step.prompt for step in played.steps] if same else None


def _move(turn: GameTurn) -> tuple[int, str, str, bool]:
    return turn["pid"], turn["observation"], turn["action"], turn["invalid"]


class _Replies(InferenceClient):
    """Answers with given texts, one after the other, and an empty text after the last."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._texts = iter(texts)

    async def complete(self, messages: Messages, *args: Any, **options: Any) -> ModelResponse:
        """Answer with the next text."""
        text = next(self._texts, "")
        return ModelResponse(text, [{"role": "assistant", "content": text}])
