"""Learners in separate processes, some of which are killed, compared with a single undisturbed learner."""

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
import torch

from matrices import first_of
from sparring.cluster.learner_group import LearnerGroup
from sparring.config.algorithms import CorrectedSettings
from sparring.config.learning import CriticSettings
from sparring.core import InputError, SparringError, TrainingRecord
from sparring.learn.algorithms import Reinforce
from sparring.learn.batch import Batch
from sparring.learn.checkpoints import canary_tokens
from sparring.learn.learner import Learner
from sparring.learn.logprobs import plan_logprobs
from sparring.learn.trie import build_plan
from tiny_models import constant, make_record, tiny_policy

RATE = 1e-3
TIMEOUT_SECONDS = 120
WITH_GRADIENTS = "with gradients"
BEFORE_THE_STEP = "before the step"
NAMES = {"loss", "grad_norm", "legal_mass", "kl_to_base", "mismatch", "records", "samples_seen", "value_loss"}
TOLD, PID = "told.npz", "process id"


@dataclass(frozen=True)
class Fate:
    """Kills a process once, when a file in ``orders`` says so; one process is never killed.

    Every other process writes its id and its learner's state into a file.
    """

    orders: Path
    survivor: int

    def strike(self, when: str) -> None:
        order = self.orders / when
        if os.getpid() != self.survivor and order.exists():
            order.unlink()
            os.kill(os.getpid(), signal.SIGKILL)

    def tell(self, learner: Learner) -> None:
        """Write this process's id and its learner's state, unless it is the survivor."""
        if os.getpid() != self.survivor:
            tensors = {name: tensor.numpy() for name, tensor in learner.tensors().items()}
            with (self.orders / "partial").open("wb") as file:
                np.savez(file, **tensors, **{PID: os.getpid()})
            (self.orders / "partial").rename(self.orders / TOLD)

    def told(self) -> dict[str, np.ndarray]:
        """Return what the other process wrote last."""
        with np.load(self.orders / TOLD) as told:
            return dict(told)


class Mortal(Reinforce):
    """May be killed after it has computed its gradients and before it has sent them."""

    def __init__(self, fate: Fate) -> None:
        terms = {"regulariser": "uniform", "regulariser_weight": 0.3, "regulariser_weight_end": 0.1}
        super().__init__(CorrectedSettings(kl_weight=0.1, **terms))
        self.fate = fate

    def update(self, batch: Batch, regulariser_weight: float = 0.0) -> dict[str, float]:
        metrics = super().update(batch, regulariser_weight)
        self.fate.strike(WITH_GRADIENTS)
        return metrics


def build_learners(fate: Fate, shard_base: bool = False, with_critic: bool = False) -> dict[str, Learner]:
    critic = CriticSettings() if with_critic else None
    settings = constant(RATE, steps=10, average_decay=0.5, critic=critic)
    learner = Learner(tiny_policy(shard_base=shard_base), Mortal(fate), settings)
    learner.optimizer.register_step_pre_hook(lambda *_: fate.strike(BEFORE_THE_STEP))
    learner.optimizer.register_step_post_hook(lambda *_: fate.tell(learner))
    fate.tell(learner)
    return {"default": learner}


def refuse_elsewhere(fate: Fate) -> dict[str, Learner]:
    if os.getpid() != fate.survivor:
        raise InputError("model", "it is not on this machine", "Put it there.")
    return build_learners(fate)


def batch_of(update: int) -> list[TrainingRecord]:
    return [
        make_record(
            [1, 2, 3, 10 + number % 3, 20 + update],
            [4 + number % 2, 7],
            (-1.0) ** number,
            logprobs=[-1.0, -0.5],
            alternatives=[[4, 7], [5, 7]],
            policy_version=update,
        )
        for number in range(5 + update)
    ]


@dataclass
class Pair:
    """A group of two, the learner that it must equal, and the fate of the group's other process."""

    group: LearnerGroup
    alone: LearnerGroup
    fate: Fate

    def update_both(self) -> None:
        records = batch_of(self.alone.learners["default"].version)
        metrics, expected = self.group.update(records), self.alone.update(records)
        assert metrics.keys() == expected.keys()
        for name in NAMES & metrics.keys():
            assert metrics[name] == pytest.approx(expected[name], rel=1e-3, abs=1e-6), name
        ours, theirs = self.group.learners["default"], self.alone.learners["default"]
        assert ours.version == theirs.version
        for name in ("default", "average"):
            left, right = (learner.policy.adapter_state(name) for learner in (ours, theirs))
            assert all(float((left[key] - right[key]).abs().max()) < RATE / 10 for key in left)

    def order(self, when: str) -> Path:
        path = self.fate.orders / when
        path.touch()
        return path

    def other_process(self) -> int:
        return int(self.fate.told()[PID])

    def check_that_both_processes_have_one_state(self) -> None:
        ours, theirs = self.group.learners["default"].tensors(), self.fate.told()
        assert theirs.keys() == {*ours, PID}
        assert all(np.array_equal(theirs[name], tensor) for name, tensor in ours.items())


@pytest.fixture(scope="module", params=first_of(["sharded base and critic", "whole base"]))
def pair(
    joined: str, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Pair]:
    fate, nobodys = (Fate(tmp_path_factory.mktemp("orders"), os.getpid()) for _ in range(2))
    second = request.param == "sharded base and critic"
    group, alone = (
        LearnerGroup(
            partial(build_learners, one, shard_base, second),
            size,
            cpus=1,
            gpus=0,
            timeout_seconds=TIMEOUT_SECONDS,
        )
        for one, size, shard_base in (
            (fate, 2, second),
            (nobodys, 1, False),
        )
    )
    group.start()
    alone.start()
    yield Pair(group, alone, fate)
    group.close()
    alone.close()
    assert list(nobodys.orders.iterdir()) == [], "a group of one has no other process"


def test_a_group_of_two_learns_the_same_as_one_learner(pair):
    for _ in range(2):
        pair.update_both()
    pair.check_that_both_processes_have_one_state()
    assert pair.alone.learners["default"].group is None


def test_a_worker_killed_during_an_update_changes_nothing(pair):
    order, killed = pair.order(WITH_GRADIENTS), pair.other_process()
    pair.update_both()
    assert not order.exists()
    assert pair.other_process() != killed
    pair.check_that_both_processes_have_one_state()


def canary_of(learner: Learner) -> list[float]:
    plan = build_plan([canary_tokens(learner.policy)], [[]])
    with torch.no_grad(), learner.policy.adapter("default"):
        return plan_logprobs(learner.policy, plan).tolist()


@pytest.mark.slow  # a worker is killed by default above
def test_rank_0_computes_alone_also_when_a_worker_was_killed_after_it_had_sent_its_gradients(pair):
    ours, theirs = pair.group.learners["default"], pair.alone.learners["default"]
    assert pair.group.compute(partial(canary_of, ours)) == pytest.approx(canary_of(theirs), abs=1e-3)
    order, killed = pair.order(BEFORE_THE_STEP), pair.other_process()
    pair.update_both()
    assert not order.exists()
    assert pair.group.compute(partial(canary_of, ours)) == pytest.approx(canary_of(theirs), abs=1e-3)
    pair.update_both()
    assert pair.other_process() != killed
    pair.check_that_both_processes_have_one_state()


def test_an_error_of_the_learner_is_raised_and_the_group_continues(pair):
    version = pair.group.learners["default"].version
    with pytest.raises(SparringError, match="not finite"):
        pair.group.update([*batch_of(version), make_record([9], [4, 7], float("nan"))])
    with pytest.raises(ZeroDivisionError):
        pair.group.compute(lambda: 1 / 0)
    pair.update_both()


def refusing_worker(group: LearnerGroup, rank: int) -> Any:
    """Start a worker without torch, as the group starts one of its own, which cannot be built."""

    class Refusing:  # here, because Ray pickles it by value: the worker cannot import this module
        def __init__(self) -> None:
            raise InputError("model", "it is not on this machine", "Put it there.")

        def ready(self) -> None:
            pass

    return ray.remote(Refusing).options(max_restarts=-1).remote()


@pytest.mark.parametrize("real", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["light", "real"])
def test_workers_that_cannot_be_built_end_the_group_in_one_line(joined, tmp_path, monkeypatch, real):
    if not real:
        monkeypatch.setattr(LearnerGroup, "_worker", refusing_worker)
    build = partial(refuse_elsewhere, Fate(tmp_path, os.getpid()))
    group = LearnerGroup(build, 2, cpus=1, gpus=0, timeout_seconds=TIMEOUT_SECONDS)
    with pytest.raises(SparringError, match="model: it is not on this machine") as raised:
        group.start()
    assert "\n" not in str(raised.value)
    group.close()
