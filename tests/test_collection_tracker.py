"""The tracker: rolling means, exact values, what a flush sends, and a state that continues exactly."""

import json
import math
import random
from statistics import mean
from types import SimpleNamespace

import pytest

from sparring.collection import Tracker, is_wall_clock
from sparring.collection.metrics_log import MetricsLog
from sparring.core import InputError, Step, Trajectory
from sparring.run.metrics import RunMetrics


class ListSink:
    """Keeps the metrics it receives."""

    def __init__(self) -> None:
        self.lines: list[dict[str, float]] = []
        self.closed = False

    def write(self, metrics):
        self.lines.append(dict(metrics))

    def close(self):
        self.closed = True


def make_step(text: str = "call", *, well_formed: bool = True, invalid: bool = False, tokens=(5, 2)) -> Step:
    return Step(
        role_id="player_0",
        prompt=[{"role": "user", "content": "Your card: K."}],
        completion=[{"role": "assistant", "content": text}],
        completion_token_ids=None if tokens is None else list(tokens),
        info={"format_feedback": {"correct_answer_format": well_formed, "invalid_move": invalid}},
    )


def make_trajectory(rewards: dict[int, float], pid: int = 0, steps: list[Step] | None = None) -> Trajectory:
    return Trajectory(
        pid=pid,
        env_id="kuhn_poker",
        final_reward=rewards[pid],
        steps=[make_step()] if steps is None else steps,
        final_rewards=rewards,
        num_turns=3,
    )


def measures(metrics: dict[str, float]) -> dict[str, float]:
    """Return the metrics without wall-clock fields."""
    return {name: value for name, value in metrics.items() if not is_wall_clock(name)}


def test_a_trajectory_gives_its_seats_reward_outcome_lengths_and_format():
    tracker = Tracker("run")
    steps = [make_step("check"), make_step("I call!", well_formed=False, tokens=(1, 2, 3, 4))]
    tracker.add_trajectory(make_trajectory({0: -2.0, 1: 2.0}, pid=1, steps=steps), 1, "kuhn_poker")
    assert measures(tracker.flush(7)) == {
        "step": 7,
        "collection-kuhn_poker/Draw Rate": 0.0,
        "collection-kuhn_poker/Format Success Rate": 0.5,
        "collection-kuhn_poker/Game Length": 3.0,
        "collection-kuhn_poker/Games": 1,
        "collection-kuhn_poker/Invalid Move Rate": 0.0,
        "collection-kuhn_poker/Loss Rate": 0.0,
        "collection-kuhn_poker/Observation Length (char)": 13.0,
        "collection-kuhn_poker/Response Length (char)": 6.0,
        "collection-kuhn_poker/Response Length (tokens)": 3.0,
        "collection-kuhn_poker/Reward": 2.0,
        "collection-kuhn_poker/Reward (pid=1)": 2.0,
        "collection-kuhn_poker/Win Rate": 1.0,
    }


def test_an_invalid_move_counts_once_for_the_game_not_for_each_answer():
    tracker = Tracker("run")
    steps = [make_step(), make_step(), make_step("zzz", invalid=True)]
    tracker.add_trajectory(make_trajectory({0: -1.0, 1: 1.0}, steps=steps), 0, "kuhn_poker")
    tracker.add_trajectory(make_trajectory({0: 1.0, 1: -1.0}), 0, "kuhn_poker")
    assert tracker.flush(1)["collection-kuhn_poker/Invalid Move Rate"] == 0.5


def test_answers_without_token_ids_leave_the_token_length_out():
    tracker = Tracker("run")
    steps = [make_step(tokens=None)]
    tracker.add_trajectory(make_trajectory({0: 1.0, 1: -1.0}, steps=steps), 0, "kuhn_poker")
    assert "collection-kuhn_poker/Response Length (tokens)" not in tracker.flush(1)


@pytest.mark.parametrize(
    ("rewards", "outcome"),
    [
        ({0: 2.0, 1: -2.0}, "Win"),
        ({0: 0.0, 1: 0.0}, "Draw"),
        ({0: -0.5, 1: 0.5}, "Loss"),
        ({0: 1.0, 1: 1.0, 2: -2.0}, "Draw"),
        ({0: 1.0, 1: 3.0, 2: -4.0}, "Loss"),
        ({0: 1.0}, "Win"),
        ({0: 0.7}, "Loss"),
    ],
)
def test_a_seat_wins_with_more_than_every_other_and_draws_when_it_shares_the_best(rewards, outcome):
    tracker = Tracker("run")
    tracker.add_eval_episode(rewards, 0, "game")
    metrics = tracker.flush(0)
    rates = {name: metrics[f"evaluation-game/{name} Rate"] for name in ("Win", "Draw", "Loss")}
    assert rates == {name: float(name == outcome) for name in rates}


def test_windows_drop_values_older_than_their_length():
    tracker = Tracker("run", window=4)
    values = [random.Random(0).uniform(-1, 1) for _ in range(3)] + [0.25, -0.5, 1.0, 0.125]
    for value in values:
        tracker.add_eval_episode({0: value, 1: -value}, 0, "game")
    assert tracker.flush(0)["evaluation-game/Reward"] == mean(values[-4:])


def test_the_default_window_is_512():
    tracker = Tracker("run")
    for number in range(600):
        tracker.add_eval_episode({0: float(number)}, 0, "game")
    metrics = tracker.flush(0)
    assert metrics["evaluation-game/Reward"] == mean(range(88, 600))
    assert metrics["evaluation-game/Games"] == 600


def test_exact_values_keep_the_last_value_and_integers():
    tracker = Tracker("run")
    tracker.log_learner({"loss": 3.0, "tokens": 10})
    tracker.log_learner({"loss": 1.0})
    tracker.log({"buffer/size": 12})
    metrics = tracker.flush(1)
    assert (metrics["learner/loss"], metrics["learner/tokens"], metrics["buffer/size"]) == (1.0, 10, 12)
    assert isinstance(metrics["buffer/size"], int)


def test_added_values_are_summed_until_the_flush():
    tracker = Tracker("run", sinks=[])
    tracker.add({"seconds": 2.0})
    tracker.add({"seconds": 3.0, "others": 1.0})
    first = tracker.flush(1)
    tracker.add({"seconds": 4.0})
    assert (first["seconds"], first["others"], tracker.flush(2)["seconds"]) == (5.0, 1.0, 4.0)


def test_a_flush_sends_one_sorted_object_to_every_sink_and_nothing_stale_after_it():
    sinks = [ListSink(), ListSink()]
    tracker = Tracker("run", sinks=sinks)
    tracker.log({"b": 1.0, "a": 2.0})
    tracker.add_eval_episode({0: 1.0}, 0, "game")
    first = tracker.flush(1)
    second = tracker.flush(2)
    assert list(first)[:4] == ["step", "wall_time", "a", "b"]
    assert measures(second) == {"step": 2}
    assert [line["step"] for line in sinks[0].lines] == [1, 2]
    assert sinks[0].lines == sinks[1].lines
    tracker.close()
    assert all(sink.closed for sink in sinks)


def test_the_model_pool_sends_ratings_and_games_that_changed():
    tracker = Tracker("run")
    ratings = {"ckpt-1": {"mu": 25.0, "sigma": 8.0}, "fixed-a/b": {"mu": 20.0, "sigma": 2.0}}
    counts = {("ckpt-1", "fixed-a/b"): 3, ("ckpt-1", "ckpt-1"): 2}
    tracker.log_model_pool(counts, ratings, {"game": {"Pct. Unique Action 1-gram": 0.5}})
    assert measures(tracker.flush(1)) == {
        "step": 1,
        "exploration/game/Pct. Unique Action 1-gram": 0.5,
        "model-pool/ckpt-1/games": 5,
        "model-pool/ckpt-1/mu": 25.0,
        "model-pool/ckpt-1/sigma": 8.0,
        "model-pool/fixed-a/b/games": 3,
        "model-pool/fixed-a/b/mu": 20.0,
        "model-pool/fixed-a/b/sigma": 2.0,
    }
    ratings["ckpt-1"] = {"mu": 26.0, "sigma": 8.0}
    tracker.log_model_pool(counts, ratings, {})
    assert measures(tracker.flush(2)) == {"step": 2, "model-pool/ckpt-1/mu": 26.0}


def test_the_interface_gets_the_latest_of_everything():
    tracker = Tracker("run")
    tracker.log_inference("engine", [0, 1], {"queued": 4, "tok_s": 100.0})
    tracker.log_inference("engine", [0, 1], {"queued": 2, "tok_s": 300.0})
    tracker.log_model_pool({("a", "b"): 1}, {"a": {"mu": 1.0, "sigma": 2.0}}, {})
    metrics = tracker.flush(3)
    info = tracker.get_interface_info()
    assert metrics["inference/engine/tok_s"] == 200.0
    assert info["inference"] == {"engine": {"gpu_ids": [0, 1], "queued": 2, "tok_s": 300.0}}
    assert info["ratings"] == {"a": {"mu": 1.0, "sigma": 2.0, "games": 1}}
    assert info["match_counts"] == {("a", "b"): 1}
    assert info["metrics"] == metrics


def play_on(tracker: Tracker, rng: random.Random, steps: range) -> list[dict[str, float]]:
    """Feed a tracker as a run does and return its flushes without wall-clock fields."""
    flushed = []
    for step in steps:
        for _ in range(rng.randrange(1, 5)):
            reward = rng.choice([-2.0, -1.0, 0.0, 1.0, 2.0]) / 3
            tracker.add_trajectory(make_trajectory({0: reward, 1: -reward}), 0, "kuhn_poker")
        tracker.log_learner({"loss": rng.random()})
        ratings = {"a": {"mu": rng.choice([1.0, 2.0]), "sigma": 1.0}}
        tracker.log_model_pool({("a", "b"): step}, ratings, {"g": {"x": 0.5}})
        flushed.append(measures(tracker.flush(step)))
    return flushed


def test_a_restored_tracker_flushes_exactly_what_the_first_would_have():
    rng = random.Random(5)
    tracker = Tracker("run", window=6)
    play_on(tracker, rng, range(1, 5))
    tracker.log({"pending": 1.5})
    tracker.add_eval_episode({0: 1.0}, 0, "game")
    saved = json.loads(json.dumps(tracker.state_dict()))
    future = rng.getstate()
    expected = play_on(tracker, rng, range(5, 12))

    restored = Tracker("run", window=6)
    restored.load_state_dict(saved)
    rng.setstate(future)
    assert play_on(restored, rng, range(5, 12)) == expected
    assert expected[0]["pending"] == 1.5


def test_names_of_wall_clock_figures():
    timed = ["wall_time", "time/play", "learner/step_seconds", "inference/e/tok_s", "a/tokens_per_second"]
    assert all(is_wall_clock(name) for name in timed)
    assert not any(is_wall_clock(name) for name in ["step", "learner/loss", "runtime/x", "seconds/x"])


def test_the_line_of_a_step_is_written_once_and_a_resume_continues_after_the_checkpoint(tmp_path):
    lines = tmp_path / "metrics.jsonl"
    log = MetricsLog("run", lines)
    log.tracker.put({"length": [1.0, 3.0]}, {})
    first = log.flush(1, {"loss": math.nan})
    assert log.flush(1, {"loss": 0.5}) is first
    state = json.loads(json.dumps(log.checkpoint()))
    kept = lines.read_bytes()
    log.flush(2, {"loss": 0.5})
    again = MetricsLog("run", lines)
    assert again.resume(1, state)
    assert lines.read_bytes() == kept
    again.tracker.put({"length": [5.0]}, {})
    assert again.flush(2)["length"] == 3.0
    assert not MetricsLog("run", lines).resume(0, {})
    assert lines.read_bytes() == b""


@pytest.mark.parametrize("damage", [b"{", b"7", b"[" * 100_000, b"\xff", b"{}", b'{"step":""}'])
def test_damaged_lines_after_the_checkpoint_are_cut_off_and_earlier_ones_are_refused(tmp_path, damage):
    lines = tmp_path / "metrics.jsonl"
    log = MetricsLog("run", lines)
    log.flush(1, {"loss": 0.5})
    state = json.loads(json.dumps(log.checkpoint()))
    kept = lines.read_bytes()
    lines.write_bytes(kept + damage + b"\n" + kept)
    assert MetricsLog("run", lines).resume(1, state)
    assert lines.read_bytes() == kept
    lines.write_bytes(damage.ljust(len(kept) - 1)[: len(kept) - 1] + b"\n")
    with pytest.raises(InputError, match="line 1: is not a JSON object with a step"):
        MetricsLog("run", lines).resume(1, state)


async def test_figures_logged_while_a_line_is_sent_are_in_the_next():
    class Slow:
        """A tracker whose caller logs more before it has written a line."""

        def __init__(self) -> None:
            self.flush = SimpleNamespace(remote=self.write)

        async def write(self, step, figures):
            metrics.log({"late": float(step)})
            metrics.add({"seconds": 2.0})
            return figures

    metrics = RunMetrics(Slow())
    metrics.log({"loss": 0.5})
    metrics.add({"seconds": 1.0})
    assert await metrics.flush(1) == {"loss": 0.5, "seconds": 1.0}
    assert await metrics.flush(2) == {"late": 1.0, "seconds": 2.0}
