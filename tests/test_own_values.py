"""What a user's own code hands over is checked field by field; numbers of other libraries become Python's."""

import gc
import shlex
import sys
import threading
from dataclasses import fields

import numpy as np
import pytest
import torch

from failing_code import Credit, Program, Talk
from sparring.cli.main import main, run
from sparring.collection import SamplingRewardTransform, StepBuffer, StepRewardTransform
from sparring.core import GenerateResult, MockInferenceClient, Rollout, SparringError, Step, Trajectory
from sparring.core.credit.assigners import assigned
from sparring.core.played import check_played
from sparring.learn.algorithms import BaseAlgo, Reinforce
from sparring.learn.learner import Learner
from tiny_models import constant, tiny_policy

ANYTHING = {"artifact"}
"""Fields that may hold anything."""
FIELDS = [(kind, one.name) for kind in (Step, Rollout, GenerateResult) for one in fields(kind)]
WRONG = {"an object": object(), "a coloured key": {"\ud800": object()}, "a list": [object()]}


class Changed(Talk):
    """Its results have one field with another value."""

    def __init__(self, kind: type, name: str, value: object) -> None:
        super().__init__(max_turns=2)
        self.change = kind, name, value

    async def generate(self, arena, artifact, meta=None):
        kind, name, value = self.change
        result = await super().generate(arena, artifact, meta)
        for step in result.rollout.steps:
            step.completion_token_ids, step.completion_logprobs = [7, 8], [-1.0, -2.0]
        owners = {Step: result.rollout.steps, Rollout: [result.rollout], GenerateResult: [result]}
        for owner in owners[kind]:
            setattr(owner, name, value)
        return result


def program(kind: type, name: str, value: object) -> Program:
    arena = Program(MockInferenceClient())
    arena.add_episode("talk", Changed(kind, name, value))
    return arena


@pytest.mark.parametrize(("kind", "name"), [one for one in FIELDS if one[1] not in ANYTHING])
async def test_a_field_of_another_kind_costs_its_episode(kind, name):
    for value in WRONG.values():
        arena = program(kind, name, value)
        failing, *others = await arena.generate_rollouts(arena.get_batch())
        assert [one.rollout.error for one in others] == [None, None]
        assert failing.rollout.error_type == "EpisodeError"
        assert failing.rollout.error.isprintable()


NUMBERS = {
    (Step, "pid"): np.int64(1),
    (Step, "policy_version"): np.int32(3),
    (Step, "temperature"): np.float64(0.5),
    (Step, "reward"): np.float32(1.5),
    (Step, "prompt_token_ids"): [np.int64(7)],
    (Step, "completion_token_ids"): [np.int64(7), 8],
    (Step, "completion_logprobs"): [np.float64(-1.0), np.float32(-2.0)],
    (Rollout, "rewards"): {"A": np.float64(1.0), "B": True},
    (Rollout, "metrics"): {"m": np.float32(1.5)},
    (GenerateResult, "is_trainable"): np.bool_(True),
}


def parts(value: object) -> list[object]:
    """Return the value, or the values in it."""
    if isinstance(value, dict):
        return [*value.values()]
    return [*value] if isinstance(value, list) else [value]


@pytest.mark.parametrize(("kind", "name"), NUMBERS)
async def test_a_number_of_another_library_becomes_pythons(kind, name):
    arena = program(kind, name, NUMBERS[kind, name])
    result = (await arena.generate_rollouts(arena.get_batch()))[0]
    owner = {Step: result.rollout.steps[0], Rollout: result.rollout, GenerateResult: result}[kind]
    assert result.rollout.error is None
    assert parts(getattr(owner, name)) == parts(NUMBERS[kind, name])
    assert {type(one) for one in parts(getattr(owner, name))} <= {int, float, bool}


class OfNumpy(Credit):
    def compute(self, results):
        return {key: np.float64(weight) for key, weight in super().compute(results).items()}


async def test_advantages_of_another_library_become_pythons():
    arena = Program(MockInferenceClient())
    results = await arena.generate_rollouts(arena.get_batch())
    assert {type(weight) for weight in assigned(OfNumpy(), results).values()} == {float}


async def test_what_a_sub_episode_hands_over_is_checked_too():
    class Nested(Talk):
        async def generate(self, arena, artifact, meta=None):
            result = await super().generate(arena, artifact, meta)
            child = await Talk(max_turns=2).generate(arena, artifact, meta)
            child.rollout.extras["said"] = "half a pair: \ud800"
            result.children.append(child)
            return result

    arena = Program(MockInferenceClient())
    arena.add_episode("talk", Nested(max_turns=2))
    failing, *others = await arena.generate_rollouts(arena.get_batch())
    assert [one.rollout.error for one in others] == [None, None]
    assert "get_extras" in failing.rollout.error


async def test_an_episode_type_that_is_no_text_is_named():
    class Untyped(Talk):
        episode_type = None

    arena = Program(MockInferenceClient())
    arena.add_episode("talk", Untyped(max_turns=2))
    (failing, *_) = await arena.generate_rollouts(arena.get_batch())
    assert failing.rollout.error == "Untyped.episode_type returned None, not a str"


async def test_answers_to_one_prompt_share_its_ids():
    prompt = [1, 2, 3]
    steps = [Step("A", [], [], prompt_token_ids=prompt) for _ in range(2)]
    check_played(Rollout(episode_type="talk", steps=steps, rewards={"A": 1.0}))
    assert all(step.prompt_token_ids is prompt for step in steps)


async def test_an_error_without_words_is_named_by_its_class():
    class Silent(Talk):
        def get_extras(self, state):
            raise SparringError

    arena = Program(MockInferenceClient())
    arena.add_episode("talk", Silent(max_turns=2))
    (failing, *_) = await arena.generate_rollouts(arena.get_batch())
    assert failing.rollout.error == "SparringError"


def stored(buffer: StepBuffer) -> list[Step]:
    ids = {"prompt_token_ids": [1], "completion_token_ids": [2], "completion_logprobs": [-1.0]}
    step = Step("player_0", [], [], **ids)
    buffer.add_player_trajectory(Trajectory(0, "g", final_reward=1.0, steps=[step]), "g")
    return buffer.get_batch(1)


@pytest.mark.parametrize("name", [one.name for one in fields(Step)])
def test_a_transform_that_breaks_a_field_of_a_step_ends_the_run_in_a_line(name):
    class Later(StepRewardTransform):
        def __call__(self, trajectory, step_index, base_reward):
            setattr(trajectory.steps[step_index], name, object())
            return base_reward

    class Drawn(SamplingRewardTransform):
        def __call__(self, steps):
            for step in steps:
                setattr(step, name, object())
            return steps

    for buffer in (StepBuffer(9, None, None, Later(), None), StepBuffer(9, None, None, None, Drawn())):
        with pytest.raises(SparringError):
            stored(buffer)


class NoState(Reinforce):
    kept: object = None

    def state(self):
        return self.kept


class NotBegun(BaseAlgo):
    def initialize(self, *args, **kwargs):
        pass

    def loss(self, logprobs_S, tokens):
        return logprobs_S.sum()


def learner(algorithm: BaseAlgo) -> Learner:
    return Learner(tiny_policy(), algorithm, constant(max_mismatch=0.2))


@pytest.mark.parametrize(
    "kept",
    [
        None,
        5,
        {"a": 1.0},
        {1: torch.zeros(1)},
        {"a": torch.eye(2).to_sparse()},
        {"a": torch.zeros(1).to("meta")},
    ],
    ids=str,
)
def test_an_algorithm_whose_state_is_none_is_named(kept):
    algorithm = NoState()
    algorithm.kept = kept
    with pytest.raises(SparringError, match=r"NoState\.state returned"):
        learner(algorithm).tensors()


def test_an_algorithm_that_is_not_initialized_is_named():
    with pytest.raises(SparringError, match=r"NotBegun\.initialize does not initialize the algorithm"):
        learner(NotBegun())


WRONG_PROGRAM = """
import threading
from failing_code import Program, Talk

class Odd:
    def __del__(self):
        1 / 0

class Wrong(Program):
    def __init__(self, client, *, seed=0):
        super().__init__(client, seed=seed)
        {body}
"""
DRY = "train {file} --dry-run"


def written(directory, body: str) -> str:
    (directory / "wrong.py").write_text(WRONG_PROGRAM.format(body=body))
    file = directory / "run.toml"
    file.write_text('[program]\ntype = "python"\npath = "wrong.py:Wrong"\n')
    return DRY.format(file=file)


@pytest.mark.parametrize("body", ["self.roles = {'A': 1.0}", "self.episodes = 'x'", "self.frozen = None"])
def test_whatever_own_code_leaves_behind_ends_in_one_line(body, tmp_path, capfd):
    assert main(shlex.split(written(tmp_path, body))) in (1, 2)
    said = capfd.readouterr().err.strip()
    assert said.startswith("error: ")
    assert "\n" not in said


@pytest.mark.parametrize(
    ("body", "line"),
    [
        (
            "t = threading.Thread(target=lambda: 1 / 0); t.start(); t.join(); self.episodes = 'x'",
            "a thread failed",
        ),
        ("Odd(); self.episodes = 'x'", "an error that nobody can catch"),
    ],
)
def test_an_error_beside_the_run_is_one_line(body, line, tmp_path, capfd, monkeypatch):
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)
    monkeypatch.setattr(sys, "argv", ["sparring", *shlex.split(written(tmp_path, body))])
    with pytest.raises(SystemExit):
        run()
    gc.collect()
    said = capfd.readouterr().err
    assert f"note: {line}: ZeroDivisionError('division by zero') in wrong.py" in said
    assert "Traceback" not in said
