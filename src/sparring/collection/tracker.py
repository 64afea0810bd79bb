"""Tracker: collects every number of a run and sends them out as one metrics object per step."""

import math
import time
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from typing import Any

from sparring.collection.sinks import Metrics, Sink, WandbSink
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
        "Response Length (char)": [len(step.written) for step in traj.steps],
        "Observation Length (char)": [len(step.prompt[-1]["content"]) for step in traj.steps if step.prompt],
        "Response Length (tokens)": [len(ids) for ids in drawn if ids is not None],
    }
    rewards = traj.final_rewards or {player_id: traj.final_reward}
    return _named(f"collection-{env_id}", _outcome(rewards, player_id) | measured)


def eval_values(rewards: Mapping[int, float], player_id: int, env_id: str) -> Values:
    """Measure an evaluation game for one seat; names begin with ``evaluation-{env_id}/``."""
    return _named(f"evaluation-{env_id}", _outcome(rewards, player_id))


def _outcome(rewards: Mapping[int, float], player_id: int) -> dict[str, list[float]]:
    """Return a game's result for a seat: it wins with more than every other, and draws if it shares the best.

    A lone player wins with a reward of at least 1 (solved) and loses otherwise.
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
    return {
        f"{prefix}/{name}": [float(value) for value in values] for name, values in measured.items() if values
    }


WALL_CLOCK_SUFFIXES = ("_seconds", "_per_second", "_idle_share", "/idle_share", "/tok_s")


def is_wall_clock(name: str) -> bool:
    """Return whether a metric measures this machine's time and so differs between two equal runs."""
    return name == "wall_time" or name.startswith(("time/", "store/")) or name.endswith(WALL_CLOCK_SUFFIXES)


class Tracker:
    """Collects scalars, averages them over rolling windows and sends them to sinks.

    **Windowed** values (games, evaluation games, inference statistics) are averaged over their last
    ``window`` entries. **Exact** values (``log``, ``log_learner``, ratings) are sent as last given. Either
    kind appears in a flush only if something new arrived since the previous one. Except for ``is_wall_clock``
    names, the output is a function of the calls made and of nothing else.

    Names: ``collection-{env}/...``, ``evaluation-{env}/...``, ``inference/{actor}/...``, ``learner/...``,
    ``model-pool/{uid}/...``, ``exploration/{env}/...``.

    Args:
        run_name: the name shown by sinks and dashboards.
        wandb_project: also send everything to this Weights & Biases project.
        sinks: receive the flushed metrics, in order.
        window: the number of entries in a rolling mean.
    """

    def __init__(
        self,
        run_name: str,
        wandb_project: str | None = None,
        *,
        sinks: list[Sink] | None = None,
        window: int = 512,
    ) -> None:
        self.run_name = run_name
        self.use_wandb = wandb_project is not None
        self.sinks: list[Sink] = list(sinks or [])
        if wandb_project is not None:
            self.sinks.append(WandbSink(wandb_project, run_name))
        self.window = window
        self._windows: dict[str, deque[float]] = {}
        self._fresh: set[str] = set()
        self._exact: dict[str, float] = {}
        self._counts: defaultdict[str, int] = defaultdict(int)
        self._pool: dict[str, dict[str, float]] = {}
        self._match_counts: dict[tuple[str, str], int] = {}
        self._exploration: dict[str, dict[str, float]] = {}
        self._inference: dict[str, dict[str, Any]] = {}
        self._last_metrics: Metrics = {}

    def add_trajectory(self, traj: Trajectory, player_id: int, env_id: str) -> None:
        """Record one trained seat of a finished training game."""
        self.put(trajectory_values(traj, player_id, env_id), {f"collection-{env_id}": 1})

    def add_eval_episode(self, rewards: Mapping[int, float], player_id: int, env_id: str) -> None:
        """Record one evaluation game of the seat ``player_id``."""
        self.put(eval_values(rewards, player_id, env_id), {f"evaluation-{env_id}": 1})

    def put(self, values: Mapping[str, Sequence[float]], games: Mapping[str, int]) -> None:
        """Record windowed values under their full names, and count their games.

        ``games`` has the number of new games by prefix; the total so far is the exact ``{prefix}/Games``.
        """
        for name, new in values.items():
            self._put(name, *new)
        for prefix, count in games.items():
            self._counts[prefix] += count
            self.log({f"{prefix}/Games": self._counts[prefix]})

    def log_inference(self, actor: str, gpu_ids: list[int], stats: Mapping[str, float]) -> None:
        """Record an engine's statistics (``queued``, ``running``, ``tok_s``, ...) as rolling means."""
        self._inference[actor] = {"gpu_ids": list(gpu_ids), **stats}
        for name, value in stats.items():
            self._put(f"inference/{actor}/{name}", value)

    def log_learner(self, info: Mapping[str, float]) -> None:
        """Record one learner step's figures under ``learner/`` as exact values."""
        self.log({f"learner/{name}": value for name, value in info.items()})

    def log_model_pool(
        self,
        match_counts: Mapping[tuple[str, str], int],
        ts_dict: Mapping[str, Mapping[str, float]],
        exploration: Mapping[str, Mapping[str, float]],
    ) -> None:
        """Record the model pool's state; only changes since the last call are sent.

        Args:
            match_counts: games so far, by pair of uids.
            ts_dict: ``{"mu": mean, "sigma": standard deviation}`` by uid, in TrueSkill's units, and other
                figures.
            exploration: measures of the variety of play by environment, such as ``Pct. Unique Action
                2-gram``.
        """
        self._match_counts = dict(match_counts)
        games: defaultdict[str, int] = defaultdict(int)
        for pair, count in match_counts.items():
            for uid in set(pair):
                games[uid] += count
        for uid, rating in ts_dict.items():
            state = {**{name: float(value) for name, value in rating.items()}, "games": games[uid]}
            known = self._pool.get(uid, {})
            changed = {name: value for name, value in state.items() if known.get(name) != value}
            self.log({f"model-pool/{uid}/{name}": value for name, value in changed.items()})
            self._pool[uid] = state
        for env_id, measures in exploration.items():
            self._exploration[env_id] = dict(measures)
            self.log({f"exploration/{env_id}/{name}": value for name, value in measures.items()})

    def log(self, name_value_dict: Mapping[str, float]) -> None:
        """Record exact values under their full names; the last value before a flush is sent."""
        for name, value in name_value_dict.items():
            self._exact[name] = int(value) if isinstance(value, int) else float(value)

    def add(self, values: Mapping[str, float]) -> None:
        """Record exact values that are summed until the next flush, such as seconds."""
        self.log({name: self._exact.get(name, 0.0) + value for name, value in values.items()})

    def flush(self, step: int) -> Metrics:
        """Send everything that arrived since the last flush to every sink as one object, and return it.

        Keys are sorted; ``step`` and ``wall_time`` (seconds since 1970) come first.
        """
        values: dict[str, float] = dict(self._exact)
        for name in self._fresh:
            window = self._windows[name]
            values[name] = math.fsum(window) / len(window)
        metrics: Metrics = {"step": step, "wall_time": time.time()}
        metrics.update(sorted(values.items()))
        for sink in self.sinks:
            sink.write(metrics)
        self._exact = {}
        self._fresh = set()
        self._last_metrics = metrics
        return metrics

    def get_interface_info(self) -> dict[str, Any]:
        """Return the data for a terminal interface: the latest statistics, ratings and metrics."""
        return {
            "run_name": self.run_name,
            "inference": {actor: dict(stats) for actor, stats in self._inference.items()},
            "ratings": {uid: dict(state) for uid, state in self._pool.items()},
            "match_counts": dict(self._match_counts),
            "exploration": {env_id: dict(measures) for env_id, measures in self._exploration.items()},
            "metrics": dict(self._last_metrics),
        }

    def close(self) -> None:
        """Close every sink."""
        for sink in self.sinks:
            sink.close()

    def state_dict(self) -> dict[str, Any]:
        """Return everything that later flushes depend on, as plain JSON values."""
        return {
            "windows": {name: list(window) for name, window in self._windows.items()},
            "fresh": sorted(self._fresh),
            "exact": dict(self._exact),
            "counts": dict(self._counts),
            "pool": {uid: dict(state) for uid, state in self._pool.items()},
            "match_counts": [[first, second, count] for (first, second), count in self._match_counts.items()],
            "exploration": {env_id: dict(measures) for env_id, measures in self._exploration.items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state, after which the same calls give the same flushes."""
        self._windows = {name: deque(values, maxlen=self.window) for name, values in state["windows"].items()}
        self._fresh = set(state["fresh"])
        self._exact = dict(state["exact"])
        self._counts = defaultdict(int, state["counts"])
        self._pool = {uid: dict(values) for uid, values in state["pool"].items()}
        self._match_counts = {(first, second): count for first, second, count in state["match_counts"]}
        self._exploration = {env_id: dict(measures) for env_id, measures in state["exploration"].items()}

    def _put(self, name: str, *values: float) -> None:
        if not values:
            return
        window = self._windows.get(name)
        if window is None:
            window = self._windows[name] = deque(maxlen=self.window)
        window.extend(map(float, values))
        self._fresh.add(name)
