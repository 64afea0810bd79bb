import gzip
import json
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from sparring.collection import (
    BatchLog,
    ComposeFinalRewardTransforms,
    ComposeSamplingRewardTransforms,
    ComposeStepRewardTransforms,
    EpisodeBuffer,
    NormalizeRewardsByEnv,
    PenaltyForInvalidMove,
    RewardForFormat,
    RoleAdvantageByEnvFormatter,
    SamplingRewardTransform,
    StepBuffer,
    StepRewardTransform,
    WinDrawLossFormatter,
)
from sparring.collection.rollout_log import reward_stages
from sparring.core import InputError, SparringError, Step, Trajectory

BUFFERS = [StepBuffer, EpisodeBuffer]


def make_trajectory(name, length=1, reward=1.0, pid=0, version=0, feedback=None):
    steps = [
        Step(
            role_id=f"player-{pid}",
            prompt=[{"role": "user", "content": f"prompt {name}.{index}"}],
            completion=[{"role": "assistant", "content": "[check]"}],
            prompt_token_ids=[1, 2, 3],
            completion_token_ids=[4, 0],
            completion_logprobs=[-0.1 / 3, -1e-7],
            info={"format_feedback": feedback or {"correct_answer_format": True}},
            pid=pid,
            env_id="from the game",
            policy_version=version,
        )
        for index in range(length)
    ]
    return Trajectory(pid, "from the game", reward, steps, rollout_id=name)


def shipped_transforms():
    return {
        "final_reward_transformation": ComposeFinalRewardTransforms([RoleAdvantageByEnvFormatter()]),
        "step_reward_transformation": ComposeStepRewardTransforms(
            [RewardForFormat(1.5), PenaltyForInvalidMove(1.0, -1.0)]
        ),
        "sampling_reward_transformation": ComposeSamplingRewardTransforms([NormalizeRewardsByEnv(True)]),
    }


def flat(batch):
    return [step for entry in batch for step in (entry if isinstance(entry, list) else [entry])]


def places(batch):
    return [(step.info["rollout_id"], step.info["step_index"]) for step in flat(batch)]


@pytest.mark.parametrize("cls", BUFFERS)
def test_rewards_pass_through_all_three_stages_and_each_is_kept(cls):
    buffer = cls(
        100,
        None,
        ComposeFinalRewardTransforms([WinDrawLossFormatter(win_reward=2.0, loss_reward=-2.0)]),
        ComposeStepRewardTransforms([PenaltyForInvalidMove(0.75, -0.25)]),
        ComposeSamplingRewardTransforms([NormalizeRewardsByEnv(False)]),
    )
    buffer.add_player_trajectory(make_trajectory("won", reward=7.0), "Kuhn")
    buffer.add_player_trajectory(
        make_trajectory("lost", reward=-7.0, pid=1, feedback={"invalid_move": True}), "Kuhn"
    )
    stages = {step.info["rollout_id"]: step for step in flat(buffer.get_batch(2))}
    wanted = {"won": (7.0, 2.0, 2.75, 2.5), "lost": (-7.0, -2.0, -2.25, -2.5)}
    names = ("final", "final_transformed", "step", "sampled")
    assert {name: reward_stages(step) for name, step in stages.items()} == {
        name: dict(zip(names, values, strict=True)) for name, values in wanted.items()
    }
    assert (stages["won"].reward, stages["won"].advantage) == (2.75, 2.5)
    assert stages["won"].env_id == "Kuhn"


@pytest.mark.parametrize("cls", BUFFERS)
def test_the_trajectory_that_was_handed_in_is_not_changed(cls):
    trajectory = make_trajectory("a", length=2, reward=3.0)
    before = [replace(step, info=dict(step.info)) for step in trajectory.steps]
    buffer = cls(10, None, None, None, ComposeSamplingRewardTransforms([NormalizeRewardsByEnv()]))
    buffer.add_player_trajectory(trajectory, "Kuhn")
    buffer.get_batch(1)
    assert trajectory.steps == before


@pytest.mark.parametrize("cls", BUFFERS)
def test_stop_ends_collection_and_keeps_data_and_clear_does_the_reverse(cls):
    buffer = cls(10, None)
    buffer.add_player_trajectory(make_trajectory("a", 3), "Kuhn")
    assert buffer.continue_collection()
    buffer.stop()
    assert buffer.continue_collection() is False
    assert buffer.size() == 3
    buffer.clear()
    assert buffer.size() == 0
    assert buffer.counts()["cleared"] == 3


@pytest.mark.parametrize("cls", BUFFERS)
def test_asking_for_more_than_is_stored_is_a_clear_error_and_takes_nothing(cls):
    buffer = cls(10, None)
    buffer.add_player_trajectory(make_trajectory("a"), "Kuhn")
    with pytest.raises(SparringError, match=r"batch of 2 .* holds 1"):
        buffer.get_batch(2)
    with pytest.raises(InputError, match="batch_size"):
        buffer.get_batch(0)
    assert buffer.size() == 1


@pytest.mark.parametrize("cls", BUFFERS)
def test_bad_construction_is_rejected(cls):
    with pytest.raises(InputError, match="buffer_strategy: 'newest' is unknown"):
        cls(10, None, buffer_strategy="newest")
    with pytest.raises(InputError, match="max_buffer_size"):
        cls(0, None)
    cls(1, None)


@pytest.mark.parametrize("cls", BUFFERS)
def test_the_seed_decides_what_is_drawn(cls):
    def draws(seed):
        buffer = cls(100, None, seed=seed)
        for number in range(50):
            buffer.add_player_trajectory(make_trajectory(str(number)), "Kuhn")
        return places(buffer.get_batch(20))

    assert draws(3) == draws(3) != draws(4)


class Breaks(StepRewardTransform):
    def __call__(self, trajectory, step_index, base_reward):
        return float("nan") if step_index == 1 else base_reward


@pytest.mark.parametrize("cls", BUFFERS)
def test_a_reward_that_is_not_finite_is_refused_and_nothing_is_stored(cls):
    buffer = cls(10, None, None, ComposeStepRewardTransforms([Breaks()]))
    with pytest.raises(SparringError, match="step 1 of player 0 in Kuhn became nan"):
        buffer.add_player_trajectory(make_trajectory("a", 3), "Kuhn")
    assert buffer.counts()["added"] == buffer.size() == 0


def test_step_buffer_over_its_size_drops_single_steps():
    buffer = StepBuffer(5, None)
    for name in "abcd":
        buffer.add_player_trajectory(make_trajectory(name, 3), "Kuhn")
    assert buffer.size() == 5
    assert buffer.counts()["evicted"] == 7


def test_episode_buffer_over_its_size_drops_whole_episodes():
    buffer = EpisodeBuffer(7, None)
    for name in "abcd":
        buffer.add_player_trajectory(make_trajectory(name, 3), "Kuhn")
    assert buffer.size() == 6
    batch = buffer.get_batch(2)
    assert [places([episode]) for episode in batch] == [
        [(episode[0].info["rollout_id"], index) for index in range(3)] for episode in batch
    ]


def test_an_episode_longer_than_the_buffer_is_evicted_and_counted():
    buffer = EpisodeBuffer(2, None)
    buffer.add_player_trajectory(make_trajectory("a", 3), "Kuhn")
    assert buffer.counts() == {
        "added": 3,
        "stored": 0,
        "evicted": 3,
        "dropped_stale": 0,
        "sampled": 0,
        "cleared": 0,
    }


def test_draws_are_uniform_over_stored_entries():
    firsts = Counter()
    for seed in range(2000):
        buffer = StepBuffer(10, None, seed=seed)
        for name in "abcde":
            buffer.add_player_trajectory(make_trajectory(name), "Kuhn")
        firsts[buffer.get_batch(1)[0].info["rollout_id"]] += 1
    assert set(firsts) == set("abcde")
    assert all(abs(count - 400) < 80 for count in firsts.values())


def test_the_sampling_transform_sees_all_steps_of_an_episode_batch_together():
    buffer = EpisodeBuffer(10, None, None, None, ComposeSamplingRewardTransforms([NormalizeRewardsByEnv()]))
    buffer.add_player_trajectory(make_trajectory("a", 3, reward=1.0), "Kuhn")
    buffer.add_player_trajectory(make_trajectory("b", 1, reward=-1.0), "Kuhn")
    rewards = {
        episode[0].info["rollout_id"]: [s.advantage for s in episode] for episode in buffer.get_batch(2)
    }
    assert rewards == {"a": [0.5] * 3, "b": [-1.5]}


class KeepWins(SamplingRewardTransform):
    def __call__(self, steps):
        return [step for step in steps if step.reward > 0]


class Copies(SamplingRewardTransform):
    def __call__(self, steps):
        return [replace(step) for step in steps]


def test_a_sampling_transform_may_leave_out_episodes_but_not_replace_them():
    buffer = EpisodeBuffer(10, None, None, None, ComposeSamplingRewardTransforms([KeepWins()]))
    buffer.add_player_trajectory(make_trajectory("a", 2, reward=1.0), "Kuhn")
    buffer.add_player_trajectory(make_trajectory("b", 2, reward=-1.0), "Kuhn")
    assert places(buffer.get_batch(2)) == [("a", 0), ("a", 1)]
    copying = EpisodeBuffer(10, None, None, None, ComposeSamplingRewardTransforms([Copies()]))
    copying.add_player_trajectory(make_trajectory("a"), "Kuhn")
    with pytest.raises(SparringError, match="not copies"):
        copying.get_batch(1)


def test_a_batch_of_which_nothing_is_left_reports_no_mean_rewards():
    tracker = RecordingTracker()
    buffer = EpisodeBuffer(10, tracker, None, None, ComposeSamplingRewardTransforms([KeepWins()]))
    buffer.add_player_trajectory(make_trajectory("a", 2, reward=-1.0), "Kuhn")
    assert buffer.get_batch(1) == []
    (metrics,) = tracker.logged
    assert metrics["buffer/sampled"] == 2
    assert not [name for name in metrics if "reward" in name]


@pytest.mark.parametrize("cls", BUFFERS)
def test_drop_stale_removes_the_steps_that_are_too_old_and_no_others(cls):
    mixed = make_trajectory("mixed", 2, version=4)
    mixed.steps[1].policy_version = 5
    buffer = cls(10, None)
    buffer.add_player_trajectory(make_trajectory("fresh", version=6), "Kuhn")
    buffer.add_player_trajectory(make_trajectory("old", version=4), "Kuhn")
    buffer.add_player_trajectory(mixed, "Kuhn")
    assert buffer.drop_stale(current_version=6, max_staleness=2) == 0
    assert buffer.drop_stale(current_version=6, max_staleness=1) == 2
    assert buffer.counts()["dropped_stale"] == 2
    assert (buffer.size(), buffer.entries()) == (2, 2)
    assert sorted(places(buffer.get_batch(2))) == [("fresh", 0), ("mixed", 1)]


@pytest.mark.parametrize("cls", BUFFERS)
def test_steps_are_as_old_as_the_version_of_their_own_policy_says(cls):
    buffer = cls(10, None)
    for policy, version in (("first", 6), ("second", 4), ("second", 3)):
        trajectory = make_trajectory(f"{policy} {version}", version=version)
        for step in trajectory.steps:
            step.policy = policy
        buffer.add_player_trajectory(trajectory, "Kuhn")
    assert buffer.drop_stale(current_version=6, max_staleness=0, versions={"second": 4}) == 1
    assert sorted(places(buffer.get_batch(2))) == [("first 6", 0), ("second 4", 0)]


class RecordingTracker:
    def __init__(self):
        self.logged = []

    def log(self, name_value_dict):
        self.logged.append(name_value_dict)


def test_every_batch_is_reported_to_the_tracker():
    tracker = RecordingTracker()
    buffer = StepBuffer(10, tracker, **shipped_transforms())
    buffer.add_player_trajectory(make_trajectory("a", 3, reward=-1.0), "Kuhn")
    buffer.get_batch(2)
    (metrics,) = tracker.logged
    assert metrics["buffer/stored"] == 1
    assert metrics["buffer/sampled"] == 2
    assert metrics["buffer/reward_final"] == -1.0
    assert metrics["buffer/reward_step"] == 1.5
    assert metrics["buffer/reward_sampled"] == 0.0


def test_stale_steps_are_reported_by_game_length():
    def with_games():
        buffer = StepBuffer(100, tracker)
        long, short = make_trajectory("long", 9, version=1), make_trajectory("short", 2, version=2)
        for step in long.steps[6:]:
            step.policy_version = 2
        long.num_turns, short.num_turns = 18, 3
        buffer.add_player_trajectory(long, "Kuhn")
        buffer.add_player_trajectory(short, "Kuhn")
        return buffer

    def shares():
        return {name: value for name, value in tracker.logged[-1].items() if "turns" in name}

    tracker = RecordingTracker()
    with_games().get_batch(1)
    assert shares() == {}, "nothing was stale"
    buffer = with_games()
    buffer.drop_stale(current_version=2, max_staleness=0)
    restored = StepBuffer(100, tracker)
    restored.load_state_dict(json.loads(json.dumps(buffer.state_dict())))
    restored.get_batch(1)
    assert shares() == {
        "buffer/stale share, games of 16-31 turns": 6 / 9,
        "buffer/stale share, games of 2-3 turns": 0.0,
    }
    restored.add_player_trajectory(make_trajectory("one turn"), "Kuhn")
    restored.get_batch(1)
    assert shares()["buffer/stale share, games of 1 turns"] == 0.0


def forgiven(name, reward):
    """Three steps, of which the second is an invalid move that was forgiven."""
    trajectory = make_trajectory(name, 3, reward)
    trajectory.steps[1].info["invalid_rewards"] = [-1.0]
    return trajectory


@pytest.mark.parametrize("cls", BUFFERS)
@pytest.mark.parametrize(("final", "of_invalid"), [(1.0, -1.0), (0.0, -1.0), (-1.0, -1.0), (-2.0, -2.0)])
def test_a_forgiven_invalid_move_is_rewarded_as_if_it_had_ended_the_game(cls, final, of_invalid):
    buffer = cls(10, None, None, ComposeStepRewardTransforms([PenaltyForInvalidMove(0.25)]))
    buffer.add_player_trajectory(forgiven("a", final), "Kuhn")
    steps = sorted(flat(buffer.get_batch(3 if cls is StepBuffer else 1)), key=lambda s: s.info["step_index"])
    assert [step.reward - 0.25 for step in steps] == [final, of_invalid, final]
    assert [step.info["reward_stages"]["final"] for step in steps] == [final] * 3


def test_baselines_of_final_transforms_do_not_see_forgiven_moves():
    transform = RoleAdvantageByEnvFormatter(tau=0.5)
    buffer = StepBuffer(10, None, ComposeFinalRewardTransforms([WinDrawLossFormatter(2.0), transform]))
    for name in ("first", "second"):
        buffer.add_player_trajectory(forgiven(name, 7.0), "Kuhn")
    rewards = {(s.info["rollout_id"], s.info["step_index"]): s.reward for s in buffer.get_batch(6)}
    assert transform.role_advantage == {("Kuhn", 0): 1.5}
    assert [rewards["first", index] for index in range(3)] == [2.0, -1.0, 2.0]
    assert [rewards["second", index] for index in range(3)] == [1.0, -2.0, 1.0]


def test_batches_can_be_looked_at_afterwards(tmp_path):
    log = BatchLog(tmp_path / "a run" / "batches")
    buffer = EpisodeBuffer(10, None, batch_log=log)
    buffer.add_player_trajectory(make_trajectory("a", 2, reward=2.0, pid=1, version=3), "Kuhn")
    buffer.get_batch(1)
    lines = log.read(1)
    assert [line["step_index"] for line in lines] == [0, 1]
    assert lines[0] == {
        "schema_version": 1,
        "role_id": "player-1",
        "pid": 1,
        "env_id": "Kuhn",
        "rollout_id": "a",
        "step_index": 0,
        "policy_version": 3,
        "obs": "prompt a.0",
        "act": "[check]",
        "rewards": {"final": 2.0, "final_transformed": 2.0, "step": 2.0, "sampled": 2.0},
    }
    (path,) = log.directory.iterdir()
    assert path.name == "batch-000001.jsonl.gz"
    assert path.read_bytes()[4:8] == bytes(4), "no time, so the files of equal batches are equal"
    buffer.add_player_trajectory(make_trajectory("b"), "Kuhn")
    buffer.get_batch(1)
    assert [line["rollout_id"] for line in log.read(2)] == ["b"]


@pytest.mark.parametrize("noted", [None, False, True, "a program's own"])
def test_a_batch_says_which_answers_were_random_legal_ones(tmp_path, noted):
    log = BatchLog(tmp_path)
    buffer = EpisodeBuffer(10, None, batch_log=log)
    trajectory = make_trajectory("a")
    trajectory.steps[0].info |= {} if noted is None else {"explored": noted}
    buffer.add_player_trajectory(trajectory, "Kuhn")
    buffer.get_batch(1)
    (line,) = log.read(1)
    assert line.get("explored") == (noted if isinstance(noted, bool) else None)


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: b"",
        lambda content: b"no archive",
        lambda content: content[:-9],
        lambda content: content[:30] + b"x" + content[31:],
        lambda content: gzip.compress(gzip.decompress(content)[:-9]),
        lambda content: gzip.compress(b"[1]"),
        lambda content: gzip.compress(b"[" * 100_000),
        lambda content: gzip.compress(b'{"act": "\xff"}'),
    ],
)
def test_a_batch_that_is_damaged_or_missing_is_one_line(tmp_path, damage):
    log = BatchLog(tmp_path)
    log.write(1, make_trajectory("a", 2).steps)
    with pytest.raises(InputError, match="there is no batch 2"):
        log.read(2)
    (path,) = tmp_path.iterdir()
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(InputError, match="damaged") as raised:
        log.read(1)
    assert "\n" not in str(raised.value)


@given(
    cls=st.sampled_from(BUFFERS),
    seed=st.integers(0, 1000),
    games=st.lists(
        st.tuples(st.integers(1, 4), st.sampled_from([1, -1.0, 0.1]), st.integers(0, 1)),
        min_size=1,
        max_size=12,
    ),
    cut=st.integers(0, 12),
)
def test_a_restored_buffer_gives_the_identical_following_batches(cls, seed, games, cut):
    def add(buffer, number):
        length, reward, pid = games[number]
        buffer.add_player_trajectory(make_trajectory(str(number), length, reward, pid), f"env-{pid}")

    def drain(buffer):
        batches = []
        while buffer.size():
            batches.append(buffer.get_batch(1))
        return batches

    original = cls(15, None, **shipped_transforms(), seed=seed)
    for number in range(min(cut, len(games))):
        add(original, number)
        if number % 3 == 2 and original.size():
            original.get_batch(1)
    restored = cls(15, None, **shipped_transforms(), seed=seed + 1)
    restored.load_state_dict(json.loads(json.dumps(original.state_dict())))
    assert restored.counts() == original.counts()
    for number in range(cut, len(games)):
        add(original, number)
        add(restored, number)
    assert drain(restored) == drain(original)
    assert restored.state_dict() == original.state_dict()


@pytest.mark.parametrize("cls", BUFFERS)
def test_the_state_is_what_json_makes_of_it(cls):
    trajectory = make_trajectory("a")
    trajectory.steps[0].info["scores"] = {0: 1.5, 1: -1.5}
    buffer = cls(10, None)
    buffer.add_player_trajectory(trajectory, "Kuhn")
    state = buffer.state_dict()
    assert state == json.loads(json.dumps(state))


def test_a_state_saved_with_a_transform_is_refused_by_a_buffer_without_it():
    state = StepBuffer(10, None, ComposeFinalRewardTransforms([])).state_dict()
    with pytest.raises(InputError, match="final_reward_transformation: the checkpoint was saved with one"):
        StepBuffer(10, None).load_state_dict(state)
    state = StepBuffer(10, None).state_dict()
    with pytest.raises(InputError, match="final_reward_transformation: the checkpoint was saved without one"):
        StepBuffer(10, None, ComposeFinalRewardTransforms([])).load_state_dict(state)


class BufferMachine(RuleBasedStateMachine):
    """No step is ever lost, seen twice or stored above the cap, whatever is done in whatever order."""

    cls = StepBuffer
    cap = 9

    def __init__(self):
        super().__init__()
        self.buffer = self.cls(self.cap, None)
        self.names = 0
        self.version = 0
        self.added = set()
        self.drawn = set()

    @rule(length=st.integers(0, 5))
    def add(self, length):
        self.names += 1
        trajectory = make_trajectory(str(self.names), length, version=self.version)
        self.buffer.add_player_trajectory(trajectory, "Kuhn")
        self.added |= {(str(self.names), index) for index in range(length)}

    @rule(count=st.integers(1, 4))
    def draw(self, count):
        if count > self.buffer.entries():
            with pytest.raises(SparringError):
                self.buffer.get_batch(count)
            return
        batch = self.buffer.get_batch(count)
        assert len(batch) == count
        drawn = places(batch)
        assert len(set(drawn)) == len(drawn)
        assert not self.drawn & set(drawn)
        assert set(drawn) <= self.added
        self.drawn |= set(drawn)

    @rule(staleness=st.integers(0, 2))
    def learn(self, staleness):
        self.version += 1
        fresh = [place for place in self.stored() if place[-1] >= self.version - staleness]
        stale = self.buffer.size() - len(fresh)
        assert self.buffer.drop_stale(self.version, staleness) == stale
        assert self.stored() == fresh

    def stored(self):
        """Return name, index and version of every stored step, in order."""
        steps = [step for group in self.buffer.state_dict()["groups"] for step in group]
        return [(s["info"]["rollout_id"], s["info"]["step_index"], s["policy_version"]) for s in steps]

    @rule()
    def clear(self):
        self.buffer.clear()

    @rule()
    def save_and_load(self):
        state = json.loads(json.dumps(self.buffer.state_dict()))
        self.buffer = self.cls(self.cap, None, seed=99)
        self.buffer.load_state_dict(state)

    @invariant()
    def accounts_add_up(self):
        counts = self.buffer.counts()
        assert counts.pop("added") == len(self.added) == sum(counts.values())
        assert counts["sampled"] == len(self.drawn)
        assert self.buffer.size() <= self.cap


class EpisodeBufferMachine(BufferMachine):
    cls = EpisodeBuffer


TestStepBufferAccounts = BufferMachine.TestCase
TestEpisodeBufferAccounts = EpisodeBufferMachine.TestCase
TestStepBufferAccounts.settings = TestEpisodeBufferAccounts.settings = settings(stateful_step_count=25)
