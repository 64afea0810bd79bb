"""The rollouts of a log as the rows of a table, one for each answer and each scripted move."""

import math
from collections.abc import Iterator
from typing import Any, Literal

import msgspec

from sparring.core import Rollout, Step
from sparring.core.play import GameSummary, GameTurn, seat_role
from sparring.evaluation.results import outcome_of
from sparring.view.cards import env_of
from sparring.view.episodes import game_of, turns_of

Kind = Literal["integer", "number", "truth", "text", "integers", "numbers", "messages", "json", "time"]
Row = dict[str, Any]

COLUMNS: dict[str, Kind] = {
    "update": "integer",
    "line": "integer",
    "rollout_id": "text",
    "parent_id": "text",
    "episode_type": "text",
    "env_id": "text",
    "seed": "integer",
    "group": "text",
    "started_at": "time",
    "ended_at": "time",
    "error": "text",
    "error_type": "text",
    "raised": "text",
    "truncated": "truth",
    "invalid_seat": "integer",
    "turns": "integer",
    "turn": "integer",
    "seat": "integer",
    "role": "text",
    "kind": "text",
    "member": "text",
    "policy": "text",
    "policy_version": "integer",
    "temperature": "number",
    "outcome": "text",
    "final_reward": "number",
    "reward": "number",
    "reward_final_transformed": "number",
    "reward_step": "number",
    "advantage": "number",
    "observation": "text",
    "prompt": "messages",
    "answer": "text",
    "reasoning": "text",
    "written": "text",
    "action": "text",
    "well_formed": "truth",
    "invalid": "truth",
    "explored": "truth",
    "finish_reason": "text",
    "prompt_token_ids": "integers",
    "completion_token_ids": "integers",
    "logprobs": "numbers",
    "info": "json",
    "artifact": "json",
    "agents": "json",
    "rewards": "json",
    "advantages": "json",
    "metrics": "json",
    "meta": "json",
    "extras": "json",
}
"""The columns, which docs/run-directory.md explains; ``json`` is text for what has no fixed fields."""

_OWN_COLUMNS = ("reward_stages", "explored", "finish_reason")
"""What is not repeated in the column ``info``."""


def rows_of(update: int, line: int, rollout: Rollout) -> Iterator[Row]:
    """Yield the rows of a rollout, each with every column; one without an answer has a row of its own.

    Args:
        update: the update in whose file the rollout is.
        line: its line in the file, from 1.
        rollout: with the rewards of the batches, as :class:`sparring.view.batches.BatchRewards` adds them.
    """
    game = game_of(rollout)
    facts: Row = dict.fromkeys(COLUMNS) | {"update": update, "line": line} | _facts_of(rollout)
    if game is None:
        found: list[tuple[GameTurn | None, Step | None]] = [(None, step) for step in rollout.steps]
        facts |= {"turns": len(found), "extras": _json(rollout.extras)}
    else:
        found = [*turns_of(rollout, game)]
        others = {name: value for name, value in rollout.extras.items() if name != "turns"}
        facts |= _facts_of_game(game) | {"extras": _json(others)}
    if not found:
        yield facts
    for number, (turn, step) in enumerate(found, 1):
        row = facts | {"turn": number}
        if turn is not None and game is not None:
            row |= _facts_of_turn(turn, game)
        if step is not None and turn is None:
            row |= _facts_of_answer(step, rollout)
        if step is not None:
            row |= _facts_of_step(step)
        yield row


def _facts_of(rollout: Rollout) -> Row:
    meta, artifact = rollout.meta, rollout.artifact
    seed = artifact.get("seed") if isinstance(artifact, dict) else None
    return {
        "rollout_id": rollout.id,
        "parent_id": _text(meta.get("parent_id")),
        "episode_type": rollout.episode_type,
        "env_id": env_of(rollout),
        "seed": _integer(seed if _integer(seed) is not None else meta.get("seed")),
        "group": _text(meta.get("group")),
        "started_at": _time(rollout.started_at),
        "ended_at": _time(rollout.ended_at),
        "error": _text(rollout.error),
        "error_type": _text(rollout.error_type),
        "artifact": _json(artifact),
        "agents": _json(rollout.agents),
        "rewards": _json(rollout.rewards),
        "advantages": _json(rollout.advantages),
        "metrics": _json(rollout.metrics),
        "meta": _json(meta),
    }


def _facts_of_game(game: GameSummary) -> Row:
    return {
        "turns": game["num_turns"],
        "raised": game["raised"],
        "truncated": game["truncated"],
        "invalid_seat": game["invalid_pid"],
    }


def _facts_of_turn(turn: GameTurn, game: GameSummary) -> Row:
    seat, rewards = turn["pid"], game["final_rewards"]
    return {
        "seat": seat,
        "role": seat_role(seat),
        "kind": turn["kind"],
        "member": turn["model"],
        "outcome": outcome_of(rewards, seat) if seat in rewards else None,
        "final_reward": rewards.get(seat),
        "observation": turn["observation"],
        "answer": turn["text"],
        "reasoning": turn.get("reasoning", ""),
        "action": turn["action"],
        "well_formed": turn["well_formed"],
        "invalid": turn["invalid"],
    }


def _facts_of_answer(step: Step, rollout: Rollout) -> Row:
    """Return what the turn of a game says too, for a step of another episode."""
    agent = rollout.agents.get(step.role_id)
    return {
        "kind": "policy" if step.policy else "model",
        "member": step.policy or (None if agent is None else agent.model),
        "final_reward": rollout.rewards.get(step.role_id),
        "answer": step.completion_text,
        "reasoning": step.reasoning,
    }


def _facts_of_step(step: Step) -> Row:
    info = step.info
    stages = info["reward_stages"] if isinstance(info.get("reward_stages"), dict) else {}
    return {
        "role": step.role_id,
        "policy": step.policy,
        "policy_version": step.policy_version,
        "temperature": step.temperature,
        "reward": step.reward,
        "reward_final_transformed": stages.get("final_transformed"),
        "reward_step": stages.get("step"),
        "advantage": step.advantage if math.isfinite(step.advantage) else None,
        "prompt": step.prompt,
        "written": step.written,
        "explored": info["explored"] if isinstance(info.get("explored"), bool) else None,
        "finish_reason": _text(info.get("finish_reason")),
        "prompt_token_ids": step.prompt_token_ids,
        "completion_token_ids": step.completion_token_ids,
        "logprobs": step.completion_logprobs,
        "info": _json({name: value for name, value in info.items() if name not in _OWN_COLUMNS}),
    }


def _time(seconds: float | None) -> int | None:
    """Return microseconds."""
    return None if seconds is None else round(seconds * 1e6)


def _text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else _json(value)


def _integer(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
