"""Steps of a class of one's own keep it, with their fields, on their way through a buffer."""

import asyncio
import json
from dataclasses import dataclass, replace

import pytest

from sparring.collection import (
    ComposeSamplingRewardTransforms,
    EpisodeBuffer,
    NormalizeRewards,
    SamplingRewardTransform,
    StepBuffer,
)
from sparring.collection.buffer import BufferService
from sparring.collection.buffer_state import Demand, FinishedGame
from sparring.core import GenerateResult, InputError, Rollout, Step, Trajectory
from sparring.core.play import trajectories_of_roles

BUFFERS = [StepBuffer, EpisodeBuffer]


@dataclass
class CuriosityStep(Step):
    """A field with a default, as in the documentation of UnstableBaselines."""

    curiosity: float = 0.0


@dataclass
class Marked(CuriosityStep):
    """A subclass of a subclass, whose class alone tells something."""


@dataclass(slots=True)
class Slotted(Step):
    tags: tuple[str, ...] = ()


class RewardCuriosity(SamplingRewardTransform):
    def __call__(self, steps):
        for step in steps:
            if isinstance(step, CuriosityStep):
                step.advantage += step.curiosity
        return steps


TRANSFORMS = ComposeSamplingRewardTransforms([RewardCuriosity(), NormalizeRewards()])
STEPS = [
    Step("player_0", [], [], reward=9.0),
    CuriosityStep("player_0", [], [], curiosity=0.25),
    Marked("player_0", [], [], curiosity=0.5),
    Slotted("player_0", [], [], tags=("a", "b")),
]


def flat(batch):
    return [step for entry in batch for step in (entry if isinstance(entry, list) else [entry])]


def filled(cls):
    buffer = cls(
        10, None, None, None, ComposeSamplingRewardTransforms([RewardCuriosity(), NormalizeRewards()])
    )
    buffer.add_player_trajectory(Trajectory(0, "kuhn", 1.0, STEPS), "kuhn")
    return buffer


def drawn(buffer):
    steps = flat(buffer.get_batch(buffer.entries()))
    return sorted(steps, key=lambda step: step.info["step_index"])


@pytest.mark.parametrize("cls", BUFFERS)
def test_steps_keep_their_class_and_fields_through_a_buffer(cls):
    steps = drawn(filled(cls))
    assert [type(step) for step in steps] == [Step, CuriosityStep, Marked, Slotted]
    assert [step.curiosity for step in steps[1:3]] == [0.25, 0.5]
    assert steps[3].tags == ("a", "b")
    assert [step.advantage for step in steps] == [-0.1875, 0.0625, 0.3125, -0.1875]
    assert [step.reward for step in STEPS] == [9.0, 0.0, 0.0, 0.0]


@pytest.mark.parametrize("cls", BUFFERS)
def test_steps_keep_their_class_and_fields_through_a_checkpoint(cls):
    state = json.loads(json.dumps(filled(cls).state_dict()))
    restored = cls(
        10, None, None, None, ComposeSamplingRewardTransforms([RewardCuriosity(), NormalizeRewards()])
    )
    restored.load_state_dict(state)
    again, before = drawn(restored), drawn(filled(cls))
    assert again == before
    assert [type(step) for step in again] == [type(step) for step in before]


def test_a_class_that_the_program_does_not_define_is_refused_and_not_imported():
    state = json.loads(json.dumps(filled(StepBuffer).state_dict()).replace("Marked", "Unknown"))
    buffer = StepBuffer(
        10, None, None, None, ComposeSamplingRewardTransforms([RewardCuriosity(), NormalizeRewards()])
    )
    with pytest.raises(
        InputError, match=r"steps of test_collection_step_classes\.Unknown, which this program does"
    ):
        buffer.load_state_dict(state)


def test_a_buffer_of_a_cluster_keeps_what_is_in_the_info_of_steps(tmp_path):
    def service():
        return BufferService(StepBuffer(10), directory=str(tmp_path))

    told = [replace(step, info={"curious": index}) for index, step in enumerate(STEPS)]
    service().add_games([FinishedGame(0, [Trajectory(0, "kuhn", 1.0, told)])])
    drawn = asyncio.run(service().draw(1, Demand(games=1), wait=0.0))
    assert sorted(step.info["curious"] for step in drawn.steps) == [0, 1, 2, 3]


def test_steps_of_a_program_keep_their_class_on_their_way_to_a_buffer():
    rollout = Rollout(episode_type="kuhn", steps=STEPS, rewards={"player_0": 2.0})
    (found,) = trajectories_of_roles(GenerateResult(rollout), {"player_0": 0})
    assert [type(step) for step in found.steps] == [Step, CuriosityStep, Marked, Slotted]
    assert found.steps[1].curiosity == 0.25
