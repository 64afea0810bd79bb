"""Learners that each keep a part of the base model, compared with learners that keep all of it."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from matrices import first_of
from sparring.core import SparringError, TrainingRecord
from sparring.learn.algorithms import Reinforce, TokenLoss
from sparring.learn.algorithms.ppo import Ppo
from sparring.learn.batch import Batch
from sparring.learn.data_parallel import DataParallel, host_store, reach_store
from sparring.learn.learner import Learner
from tiny_models import ARCHITECTURES, constant, make_record, tiny_policy

ADDRESS = "127.0.0.1"
TIMEOUT_SECONDS = 60
Weights = dict[str, torch.Tensor]


class FailsAtAnyLoss(Reinforce):
    """Fails after its passes, while other learners may still need this one's parts."""

    def update(self, batch: Batch, regulariser_weight: float = 0.0) -> dict[str, float]:
        super().update(batch, regulariser_weight)
        raise ArithmeticError("no loss is good enough")


def make_learner(
    shard_base: bool, algorithm: TokenLoss, architecture: str, dtype: torch.dtype, **options: int
) -> Learner:
    policy = tiny_policy(architecture, dtype=dtype, shard_base=shard_base)
    return Learner(policy, algorithm, constant(max_batch_tokens=48, **options))


def records_of(update: int, long: int = 0) -> list[TrainingRecord]:
    """Return records of which the last ``long`` make the passes of the last shard more than the others'."""
    short = [
        make_record([1, 2, number % 3, update], [4 + number % 2, 7], (-1.0) ** number) for number in range(5)
    ]
    return short + [make_record([200 + number] * 40, [5] * 4, 0.5) for number in range(long)]


def train_together(
    batches: list[list[TrainingRecord]], learners: list[Learner]
) -> list[tuple[Weights, list[str]]]:
    """Return each learner's weights and errors."""
    store = host_store(ADDRESS, TIMEOUT_SECONDS)

    def train_as(rank: int) -> tuple[Weights, list[str]]:
        learner, errors = learners[rank], []
        own_store = store if rank == 0 else reach_store(ADDRESS, store.port, TIMEOUT_SECONDS)
        learner.group = DataParallel(
            rank, len(learners), own_store, timeout_seconds=TIMEOUT_SECONDS, base=learner.policy.sharded
        )
        for records in batches:
            try:
                learner.update(records)
            except (SparringError, ArithmeticError) as error:
                errors.append(str(error))
        learner.group.close()
        return learner.policy.adapter_state(), errors

    with ThreadPoolExecutor(len(learners)) as threads:
        return list(threads.map(train_as, range(len(learners))))


def assert_equal(left: Weights, right: Weights) -> None:
    """Check that weights are the same up to rounding, which a step of the learner exceeds by far.

    A whole base is stored by inputs and a gathered layer by outputs, and some processors round the products
    of the two differently.
    """
    assert left.keys() == right.keys()
    for name, weight in left.items():
        torch.testing.assert_close(weight, right[name], rtol=0, atol=1e-5, msg=name)


@pytest.mark.parametrize("dtype", first_of([torch.bfloat16, torch.float32]))
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("size", first_of([3, 2]))
def test_learners_with_parts_make_the_updates_of_learners_with_the_whole_base(size, architecture, dtype):
    batches = [records_of(0), records_of(1, long=4), [*records_of(2)[:1]]]
    parts, wholes = (
        train_together(
            batches, [make_learner(sharded, Reinforce(), architecture, dtype) for _ in range(size)]
        )
        for sharded in (True, False)
    )
    for (part, errors), (whole, _) in zip(parts, wholes, strict=True):
        assert errors == []
        assert_equal(part, whole)


@pytest.mark.slow  # a step with parts is compared above, mini-batches in test_learn_data_parallel
def test_learners_with_parts_make_all_steps_of_an_update():
    batches = [records_of(0), records_of(1, long=4)]
    parts, wholes = (
        train_together(
            batches,
            [make_learner(sharded, Ppo(), "llama", torch.float32, epochs=2, minibatches=2) for _ in range(2)],
        )
        for sharded in (True, False)
    )
    for (part, errors), (whole, _) in zip(parts, wholes, strict=True):
        assert errors == []
        assert_equal(part, whole)


def test_a_learner_that_fails_gives_its_parts_until_the_others_are_done():
    algorithms = [Reinforce(), FailsAtAnyLoss()]
    learners = [make_learner(True, one, "llama", torch.float32) for one in algorithms]
    before = learners[0].policy.adapter_state()
    (weights, errors), (_, own_errors) = train_together([records_of(0)[:4] + records_of(1, long=2)], learners)
    assert "learner 1 failed: ArithmeticError('no loss is good enough')" in errors[0]
    assert own_errors == ["no loss is good enough"]
    assert_equal(weights, before)


def test_each_learner_keeps_its_share_of_the_adapted_layers():
    learners = [make_learner(True, Reinforce(), "llama", torch.float32) for _ in range(3)]
    whole = learners[0].policy.sharded.nbytes
    adapted = sum(
        weight.nbytes
        for name, weight in tiny_policy().model.named_parameters()
        if name.endswith("base_layer.weight")
    )
    assert whole == adapted
    train_together([records_of(0)], learners)
    assert all(whole / 3 <= learner.policy.sharded.nbytes < whole / 3 * 1.01 for learner in learners)
    left = sum(weight.nbytes for weight in learners[0].policy.model.parameters() if not weight.requires_grad)
    assert left < 0.2 * adapted + tiny_policy().model.get_input_embeddings().weight.nbytes


def test_a_learner_that_has_left_its_group_says_so():
    learners = [make_learner(True, Reinforce(), "llama", torch.float32) for _ in range(2)]
    train_together([records_of(0)], learners)
    learners[0].group = None
    with pytest.raises(RuntimeError, match="left its group"):
        learners[0].update(records_of(0))


def test_another_number_of_learners_is_refused():
    learners = [make_learner(True, Reinforce(), "llama", torch.float32) for _ in range(2)]
    train_together([records_of(0)], learners)  # in an update, neither leaves before the other has joined
    with pytest.raises(ValueError, match="2 parts"):
        train_together([], [learners[0]])


def test_a_learner_without_a_group_uses_the_whole_base():
    part, whole = (make_learner(sharded, Reinforce(), "llama", torch.float32) for sharded in (True, False))
    for learner in (part, whole):
        learner.update(records_of(0, long=2))
    assert_equal(part.policy.adapter_state(), whole.policy.adapter_state())
