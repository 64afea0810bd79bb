"""Measures a finished game for one player, as plain numbers that can be sent to a tracker anywhere."""

from collections.abc import Mapping

from sparring.core import Trajectory

Values = dict[str, list[float]]
"""Measurements by the full name of their metric."""


def trajectory_values(traj: Trajectory, player_id: int, env_id: str) -> Values:
    """Measure a finished training game for one trained seat; names begin with ``collection-{env_id}/``.

    Outcomes and invalid moves give one number per game, format success and lengths one per answer. The
    observation is the prompt's last message. Lengths in tokens are left out for answers without ids.
    """
    feedbacks = traj.format_feedbacks
    drawn = [step.completion_token_ids for step in traj.steps]
    measured: dict[str, list[float]] = {
        "Game Length": [traj.num_turns],
        "Invalid Move Rate": [any(feedback.get("invalid_move") for feedback in feedbacks)],
        "Format Success Rate": [
            one["correct_answer_format"] for one in feedbacks if "correct_answer_format" in one
        ],
        "Response Length (char)": [len(step.completion_text) for step in traj.steps],
        "Observation Length (char)": [len(step.prompt[-1]["content"]) for step in traj.steps if step.prompt],
        "Response Length (tokens)": [len(ids) for ids in drawn if ids is not None],
    }
    rewards = traj.final_rewards or {player_id: traj.final_reward}
    return _named(f"collection-{env_id}", _outcome(rewards, player_id) | measured)


def eval_values(rewards: Mapping[int, float], player_id: int, env_id: str) -> Values:
    """Measure an evaluation game for the seat ``player_id``; names begin with ``evaluation-{env_id}/``."""
    return _named(f"evaluation-{env_id}", _outcome(rewards, player_id))


def _outcome(rewards: Mapping[int, float], player_id: int) -> dict[str, list[float]]:
    """Return a game's result for one seat, which wins if its reward exceeds that of every other seat.

    A seat that shares the best reward draws. A lone player wins with a reward of at least 1 (solved) and
    loses otherwise.
    """
    reward = rewards[player_id]
    others = [value for pid, value in rewards.items() if pid != player_id]
    won = reward > max(others) if others else reward >= 1
    drawn = bool(others) and reward == max(others)
    return {
        "Reward": [reward],
        f"Reward (pid={player_id})": [reward],
        "Win Rate": [won],
        "Draw Rate": [drawn],
        "Loss Rate": [not won and not drawn],
    }


def _named(prefix: str, measured: dict[str, list[float]]) -> Values:
    """Return the measurements under their full names, without those that have no values."""
    return {
        f"{prefix}/{name}": [float(value) for value in values] for name, values in measured.items() if values
    }
