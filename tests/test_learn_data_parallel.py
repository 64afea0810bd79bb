"""Several learners on shards of a batch, compared with one learner on the whole batch."""

import itertools
import math
import random
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from matrices import first_of
from sparring.core import SparringError, TrainingRecord, derive_seed
from sparring.core.records import without_zero_advantages
from sparring.learn.algorithms import BaseAlgo, Reinforce
from sparring.learn.algorithms.all_actions import AllActions
from sparring.learn.algorithms.magnet import Magnet
from sparring.learn.algorithms.ppo import Ppo
from sparring.learn.batch import Counts, Tokens, epochs_of
from sparring.learn.data_parallel import DataParallel, PeerLost, Share, host_store, reach_store, shard
from sparring.learn.learner import Learner
from sparring.learn.policy import AVERAGE
from tiny_models import algorithm_of, constant, make_record, tiny_policy
from tree_records import tree_games


class CountsLongAnswers(Reinforce):
    """An algorithm of one's own with a metric of its own."""

    def loss(self, logprobs_S: torch.Tensor, tokens: Tokens) -> torch.Tensor:
        self.add_metric("in_long_answers", tokens.length_S > 1)
        return super().loss(logprobs_S, tokens)


ADDRESS = "127.0.0.1"
TIMEOUT_SECONDS = 60
RATE = 1e-3
Records = list[TrainingRecord]


@dataclass(frozen=True)
class Case:
    """The batches of some updates and the settings of the learner."""

    batches: list[Records]
    regulariser: str | None = None
    kl_weight: float = 0.0
    average_decay: float = 0.0
    max_train_len: int | None = None
    max_mismatch: float = 100.0
    kind: type[BaseAlgo] = Reinforce
    options: dict[str, Any] = field(default_factory=dict)
    epochs: int = 1
    minibatches: int = 1
    skip_zero_advantages: bool = False
    critic: dict[str, Any] | None = None


@dataclass
class Outcome:
    """A learner's reports and its final state, as arrays."""

    metrics: list[dict[str, float]] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    gradients: list[np.ndarray] = field(default_factory=list)
    tensors: dict[str, np.ndarray] = field(default_factory=dict)
    average: dict[str, np.ndarray] = field(default_factory=dict)
    version: int = 0


def make_learner(case: Case) -> Learner:
    weights = {"regulariser_weight": 0.3, "regulariser_weight_end": 0.1} if case.regulariser else {}
    terms = {"regulariser": case.regulariser, "kl_weight": case.kl_weight, **weights}
    options = {name: value for name, value in terms.items() if value} | case.options
    settings = constant(
        RATE,
        steps=10,
        max_train_len=case.max_train_len,
        max_batch_tokens=48,
        grad_clip=0.5,
        average_decay=case.average_decay,
        epochs=case.epochs,
        minibatches=case.minibatches,
        skip_zero_advantages=case.skip_zero_advantages,
        max_mismatch=case.max_mismatch,
        critic=case.critic,
    )
    return Learner(tiny_policy(), algorithm_of(case.kind, **options), settings)


def train(learner: Learner, case: Case, group: DataParallel | None = None) -> Outcome:
    learner.group = group
    outcome = Outcome()
    for records in case.batches:
        try:
            outcome.metrics.append(learner.update(records))
        except (SparringError, IndexError) as error:
            outcome.errors.append(f"{type(error).__name__}: {error}")
    outcome.gradients = [
        np.zeros(p.shape) if p.grad is None else p.grad.numpy() for p in learner.policy.adapter_parameters()
    ]
    outcome.tensors = {name: tensor.numpy() for name, tensor in learner.tensors().items()}
    outcome.average = {k: v.numpy() for k, v in learner.policy.adapter_state(AVERAGE).items()}
    outcome.version = learner.version
    return outcome


def train_as_rank_1(port: int, case: Case) -> Outcome:
    learner = make_learner(case)
    store = reach_store(ADDRESS, port, TIMEOUT_SECONDS)
    group = DataParallel(1, 2, store, timeout_seconds=TIMEOUT_SECONDS)
    outcome = train(learner, case, group)
    group.close()
    return outcome


def join_as_rank_1(port: int) -> DataParallel:
    return DataParallel(1, 2, reach_store(ADDRESS, port, TIMEOUT_SECONDS), timeout_seconds=TIMEOUT_SECONDS)


@pytest.fixture(scope="module")
def other() -> Iterator[ThreadPoolExecutor]:
    """The thread of rank 1. Ranks in processes of their own are in test_cluster_learner_group."""
    with ThreadPoolExecutor(1) as executor:
        yield executor


def train_together(other: ThreadPoolExecutor, case: Case) -> tuple[Outcome, Outcome]:
    learner, store = make_learner(case), host_store(ADDRESS, TIMEOUT_SECONDS)
    future = other.submit(train_as_rank_1, store.port, case)
    group = DataParallel(0, 2, store, timeout_seconds=TIMEOUT_SECONDS)
    outcome = train(learner, case, group)
    group.close()
    return outcome, future.result(TIMEOUT_SECONDS)


def self_play_batch(seed: int, size: int, version: int) -> Records:
    """Return records of games with shared prompts, some without legal answers, some of an older version."""
    draw = random.Random(seed)
    answers = [[[3, 4], [5, 6], [7]], [[5, 6], [8]], []]
    records = []
    for _ in range(size):
        seat = draw.randrange(3)
        completion = draw.choice(answers[seat] or [[9, 9, 9]])
        records.append(
            make_record(
                [1, 2, 3, 4, 10 + seat, *[20 + seat] * draw.randrange(3)],
                completion,
                draw.choice([-1.0, 0.5, 1.0]),
                logprobs=[-draw.random() for _ in completion],
                alternatives=answers[seat],
                policy_version=max(version - draw.randrange(2), 0),
            )
        )
    return records


def conversations(seed: int, size: int) -> Records:
    """Return games of three turns whose prompts begin differently, so that the turns may be on two shards."""
    draw = random.Random(seed)
    return [
        replace(
            make_record([5 + turn, 6, draw.randrange(3)], [draw.randrange(9)], outcome, logprobs=[-1.0]),
            rollout_id=str(game),
            turn=turn,
        )
        for game in range(size)
        for outcome in [draw.choice([-1.0, 1.0])]
        for turn in range(3)
    ]


def with_zero_advantages(size: int) -> Records:
    """Return answers to three prompts: all have an advantage, half of them have one, and none has one."""
    half = size // 2
    prompts = {5: [1.0, -1.0] * half, 6: [0.0] * size + [-0.5, 0.5] * half, 7: [0.0] * size}
    return [
        make_record([4, prompt], [10 + number, 11], advantage, logprobs=[-1.0] * 2)
        for prompt, advantages in prompts.items()
        for number, advantage in enumerate(advantages)
    ]


def batches(*sizes: int) -> list[Records]:
    return [self_play_batch(index, size, index) for index, size in enumerate(sizes)]


def assert_close_weights(left: dict[str, np.ndarray], right: dict[str, np.ndarray]) -> None:
    """AdamW divides a gradient by its size, so the rounding of a gradient near 0 moves its weight."""
    assert left.keys() == right.keys()
    for name in left:
        difference = np.abs(left[name] - right[name])
        assert difference.max() < RATE / 10, name
        assert difference.mean() < RATE / 1000, name


def assert_close_sums(left: np.ndarray, right: np.ndarray) -> None:
    np.testing.assert_allclose(left, right, rtol=1e-3, atol=1e-3 * np.abs(right).max())


def weights_of(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: value for name, value in tensors.items() if name.startswith("weights.")}


def assert_same_learning(outcome: Outcome, alone: Outcome) -> None:
    for metrics, expected in zip(outcome.metrics, alone.metrics, strict=True):
        assert metrics.keys() == expected.keys()
        for name in metrics:
            if name == "packed_tokens":
                assert metrics[name] >= expected[name]
            elif "second" not in name:
                assert metrics[name] == pytest.approx(expected[name], rel=1e-4, abs=1e-7), name
    for gradient, expected_gradient in zip(outcome.gradients, alone.gradients, strict=True):
        assert_close_sums(gradient, expected_gradient)
    assert_close_weights(weights_of(outcome.tensors), weights_of(alone.tensors))
    assert_close_weights(outcome.average, alone.average)
    assert outcome.tensors.keys() == alone.tensors.keys()
    for name in outcome.tensors.keys() - weights_of(outcome.tensors).keys():
        assert_close_sums(outcome.tensors[name], alone.tensors[name])
    assert outcome.errors == alone.errors
    assert outcome.version == alone.version


def assert_identical(left: Outcome, right: Outcome) -> None:
    assert left.tensors.keys() == right.tensors.keys()
    assert all(np.array_equal(left.tensors[name], right.tensors[name]) for name in left.tensors)
    assert left.version == right.version


LONG = [make_record([30] * 12, [5, 6], 1.0), make_record([30] * 13, [5], -1.0)]
CASES = {
    "uniform and averaged": Case(batches(9, 6, 8), regulariser="uniform", average_decay=0.5),
    "following reference": Case(batches(8, 5, 7), regulariser="reference", kl_weight=0.3),
    "one empty": Case([self_play_batch(5, 1, 0)], regulariser="uniform", kl_weight=0.3),
    "too long on one shard only": Case(
        [batch[:1] + LONG for batch in batches(4, 4)], regulariser="uniform", max_train_len=11
    ),
    "token-mean": Case(batches(8, 5), options={"aggregation": "token-mean", "entropy_weight": 0.1}),
    "a metric of one's own": Case(batches(9, 6), kind=CountsLongAnswers),
    "mini-batches without a record on one shard": Case(batches(4, 3), kl_weight=0.3, kind=Ppo, minibatches=3),
    "critic and mini-batches": Case(
        [conversations(n, 5) for n in range(3)],
        kind=Ppo,
        epochs=2,
        minibatches=3,
        average_decay=0.5,
        critic={"gae_lambda": 0.5, "normalize_advantages": True, "value_clip": 0.2},
    ),
    "magnet with a pace": Case(batches(3, 7), kind=Magnet, options={"pace": 0.01}, epochs=2),
    "magnet with a step": Case(batches(3, 7), kind=Magnet, options={"eta": 2.0}, epochs=2),
    "mini-batches without zero advantages": Case(
        [with_zero_advantages(size) for size in (4, 6)],
        kind=Ppo,
        options={"aggregation": "token-mean"},
        epochs=2,
        minibatches=3,
        skip_zero_advantages=True,
    ),
    "values of a tree": Case(
        [tree_games(seed, 7) for seed in range(3)],
        kind=AllActions,
        options={"values": "tree"},
        epochs=2,
        minibatches=2,
    ),
    "neurd and mini-batches": Case(
        batches(9, 7), kind=AllActions, options={"gradient": "neurd", "beta": 1.0}, epochs=2, minibatches=3
    ),
    "uneven": Case(batches(3, 2, 13), regulariser="uniform"),
    "mini-batches": Case(
        batches(9, 7),
        regulariser="uniform",
        average_decay=0.5,
        kind=Ppo,
        options={"aggregation": "token-mean", "correction": "mis"},
        epochs=2,
        minibatches=3,
    ),
    "mini-batches that are too long on one shard": Case(
        [batch[:1] + LONG for batch in batches(4, 4)], max_train_len=11, kind=Ppo, epochs=2, minibatches=2
    ),
    "critic, too long on one shard only": Case(
        [batch[:1] + LONG for batch in batches(4, 4)], max_train_len=11, critic={}
    ),
}


@pytest.mark.parametrize("name", first_of(list(CASES), 9))
def test_two_learners_make_the_same_updates_as_one_learner_on_the_whole_batch(other, name):
    case = CASES[name]
    outcome, of_rank_1 = train_together(other, case)
    assert_same_learning(outcome, train(make_learner(case), case))
    assert_identical(outcome, of_rank_1)
    assert not outcome.errors


def test_three_learners_make_the_same_updates_as_one():
    case = Case(batches(7, 9), regulariser="uniform", average_decay=0.5)
    learners, store = [make_learner(case) for _ in range(3)], host_store(ADDRESS, TIMEOUT_SECONDS)

    def train_as(rank: int) -> Outcome:
        own_store = store if rank == 0 else reach_store(ADDRESS, store.port, TIMEOUT_SECONDS)
        group = DataParallel(rank, 3, own_store, timeout_seconds=TIMEOUT_SECONDS)
        outcome = train(learners[rank], case, group)
        group.close()
        return outcome

    with ThreadPoolExecutor(3) as threads:
        outcomes = list(threads.map(train_as, range(3)))
    assert_same_learning(outcomes[0], train(make_learner(case), case))
    for outcome in outcomes[1:]:
        assert_identical(outcomes[0], outcome)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ([make_record([30, 1], [2], math.nan)], "not finite"),
        ([make_record([30, 1], [2], math.inf)], "not finite"),
        ([make_record([30, 1], [2], logprobs=[-1e4])], "disagree"),
        ([make_record([30, 1], [2], logprobs=[math.nan])], "disagree"),
        ([make_record([30, 1], [2], logprobs=[-1e4], policy_version=-1)], "of older versions"),
    ],
)
def test_bad_records_on_one_shard_stop_all_learners_alike_and_change_no_weights(other, bad, message):
    good = self_play_batch(0, 6, 0)
    outcome, of_rank_1 = train_together(other, Case([[*good, *bad], good]))
    assert message in outcome.errors[0]
    assert outcome.errors == of_rank_1.errors
    assert_same_learning(outcome, train(make_learner(Case([])), Case([[*good, *bad], good])))
    assert_identical(outcome, of_rank_1)
    assert outcome.version == 1


def test_the_mismatch_limit_applies_to_the_mean_over_all_shards(other):
    """The mismatch of one shard alone exceeds the limit; that of the batch does not."""
    records = [make_record([1, 2], [3] * 3, logprobs=[-9.0] * 3), make_record([8], [4], logprobs=[-60.0])]
    of_all = train(make_learner(Case([])), Case([records])).metrics[0]["mismatch"]
    of_one = train(make_learner(Case([])), Case([records[1:]])).metrics[0]["mismatch"]
    assert of_one > of_all + 1
    outcome, _ = train_together(other, Case([records], max_mismatch=of_all + 0.1))
    assert outcome.metrics[0]["mismatch"] == pytest.approx(of_all, rel=1e-5)


def test_a_batch_in_which_no_record_fits_is_rejected_by_all_learners(other):
    case = Case([LONG, []], max_train_len=5)
    outcome, of_rank_1 = train_together(other, case)
    assert len(outcome.errors) == 2
    assert all("max_train_len" in error for error in outcome.errors)
    assert outcome.errors == of_rank_1.errors == train(make_learner(case), case).errors


def test_a_failure_of_one_learner_is_reported_to_the_others(other):
    no_such_token = make_record([40, 10**6], [2])
    good = self_play_batch(0, 4, 0)
    outcome, of_rank_1 = train_together(other, Case([[*good, no_such_token], good]))
    assert of_rank_1.errors[0].startswith("IndexError: ")
    assert outcome.errors[0].startswith("SparringError: learner 1 failed: IndexError(")
    assert outcome.version == of_rank_1.version == 1


def test_a_failure_of_one_learner_between_steps_undoes_the_steps_of_all(other):
    """Only a step finds a loss that is not finite; the mismatch is measured before the first one."""
    good, bad = self_play_batch(0, 6, 0), [make_record([30, 1], [2], math.inf)]
    case = Case([[*good, *bad]], kind=Ppo, epochs=2, minibatches=3, average_decay=0.5)
    first = epochs_of(case.batches[0], 2, 3, derive_seed(0, "update", 0), None)[0][0]
    assert bad[0] not in first.records
    outcome, of_rank_1 = train_together(other, case)
    assert "not finite" in outcome.errors[0]
    assert outcome.errors == of_rank_1.errors
    before = make_learner(case)
    for name, tensor in before.tensors().items():
        assert np.array_equal(outcome.tensors[name], tensor.numpy())
    assert_identical(outcome, of_rank_1)
    assert outcome.version == 0


def test_a_learner_whose_peer_has_left_reports_it_and_keeps_its_weights(other):
    learner, store = make_learner(Case([])), host_store(ADDRESS, TIMEOUT_SECONDS)
    future = other.submit(join_as_rank_1, store.port)
    group = DataParallel(0, 2, store, timeout_seconds=TIMEOUT_SECONDS)
    # Only now: a peer that leaves while the group is being made would be lost to the constructor already.
    future.result(TIMEOUT_SECONDS).close()
    before = learner.tensors()
    learner.group = group
    with pytest.raises(PeerLost, match="lost"):
        learner.update(self_play_batch(0, 4, 0))
    group.close()
    assert all(np.array_equal(tensor, before[name]) for name, tensor in learner.tensors().items())
    assert learner.version == 0


def test_a_learner_without_peers_does_not_wait_forever_for_them():
    with pytest.raises(PeerLost, match="timeout"):
        DataParallel(0, 2, host_store(ADDRESS, TIMEOUT_SECONDS), timeout_seconds=0.2)


token_lists = st.lists(st.integers(0, 2), min_size=1, max_size=4)
record_lists = st.lists(st.builds(make_record, token_lists, token_lists), max_size=9)


def tokens_of(record: TrainingRecord) -> tuple[list[int], list[int]]:
    return record.prompt_token_ids, record.completion_token_ids


def run_cost(run: Records) -> int:
    """Count the tokens of a run's first record, and those of the others beyond the prefix shared with the
    previous record.
    """
    cost = 0
    for before, record in zip([None, *run], run, strict=False):
        ids = record.input_ids
        earlier = before.input_ids if before is not None else []
        alike = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(earlier, ids, strict=False))
        cost += len(ids) - sum(1 for _ in alike)
    return cost


@given(record_lists, st.integers(1, 5))
def test_shards_hold_every_record_once_in_order_and_none_is_empty_unless_necessary(records, count):
    shards = shard(records, count)
    assert len(shards) == count
    joined = [record for part in shards for record in part]
    assert sorted(map(id, joined)) == sorted(map(id, records))
    order = [(record.input_ids, len(record.prompt_token_ids)) for record in joined]
    assert order == sorted(order)
    assert sum(1 for part in shards if part) == min(count, len(records))


@given(record_lists.flatmap(st.permutations), st.integers(1, 4), st.randoms(use_true_random=False))
def test_shards_do_not_depend_on_the_order_of_records(records, count, generator):
    shuffled = generator.sample(records, len(records))
    by_tokens = [[tokens_of(record) for record in part] for part in shard(records, count)]
    assert by_tokens == [[tokens_of(record) for record in part] for part in shard(shuffled, count)]


@given(record_lists.filter(lambda records: len(records) >= 3))
def test_the_largest_shard_is_as_small_as_possible(records):
    shards = shard(records, 3)
    joined = [record for part in shards for record in part]
    best = min(
        max(run_cost(joined[:i]), run_cost(joined[i:j]), run_cost(joined[j:]))
        for i, j in itertools.combinations(range(1, len(joined)), 2)
    )
    assert max(map(run_cost, shards)) == best


@pytest.mark.parametrize("loopback", [ADDRESS, "::1"])
def test_a_group_on_one_machine_listens_only_to_that_machine(loopback):
    if loopback == "::1" and not has_ipv6():
        pytest.skip("this machine has no IPv6")
    before = listening()
    store = host_store(loopback, TIMEOUT_SECONDS)

    def records_of(rank: int) -> float:
        own_store = store if rank == 0 else reach_store(loopback, store.port, TIMEOUT_SECONDS)
        group = DataParallel(rank, 2, own_store, timeout_seconds=TIMEOUT_SECONDS)
        ours[rank] = listening() - before
        share = group.shares(self_play_batch(0, 5, 0), count)[1]
        group.close()
        return share.metrics["loss"]

    def count(records: Records) -> Share:
        return Share({"loss": float(len(records))}, Counts(len(records), 0, 0, 0))

    ours: dict[int, set] = {}
    with ThreadPoolExecutor(2) as threads:
        first, second = threads.map(records_of, range(2))
    assert first == second
    assert {address.ip for found in ours.values() for address in found} == {loopback}


def has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


def listening() -> set:
    connections = psutil.Process().net_connections("tcp")
    return {one.laddr for one in connections if one.status == psutil.CONN_LISTEN}


def test_the_cases_are_what_their_names_say():
    """Otherwise a change of the sharding could turn them into ordinary cases."""
    first, second = shard(CASES["too long on one shard only"].batches[0], 2)
    lengths = [[len(r.prompt_token_ids) for r in part] for part in (first, second)]
    assert max(lengths[0]) < 11 <= min(lengths[1])
    assert sorted(map(len, shard(CASES["one empty"].batches[0], 2))) == [0, 1]
    kept = without_zero_advantages(CASES["mini-batches without zero advantages"].batches[0])
    assert kept == CASES["mini-batches without zero advantages"].batches[0][:12]
    assert any(without_zero_advantages(part) != part for part in shard(kept, 2))
    games = [
        {record.rollout_id for record in part}
        for part in shard(CASES["critic and mini-batches"].batches[0], 2)
    ]
    assert games[0] & games[1]


def test_records_with_a_common_prefix_stay_in_one_shard():
    rules = [[1] * 50, [2] * 50]
    records = [make_record([*rules[game % 2], move], [3]) for game in range(8) for move in range(game)]
    for part in shard(records, 2):
        assert len({record.prompt_token_ids[0] for record in part}) == 1
