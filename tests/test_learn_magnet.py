"""The magnet: what answers are worth, in a batch and in memory, and the gradients and updates made of it."""

import math

import numpy as np
import pytest
import torch

from magnet_records import (
    LEGAL,
    MAYBE,
    NO,
    RECORDS,
    SCALE,
    UNIFORM,
    YES,
    answer_logprobs,
    learned,
    learner_with,
    magnet_of,
    magnet_policy,
    scaled,
)
from sparring.config import load_config
from sparring.config.algorithms import AllActionsSettings, MagnetSettings
from sparring.config.learning import LearningSettings, PolicySettings
from sparring.core import InputError, SparringError
from sparring.core.adapters import reference_of
from sparring.learn.action_values import ActionValues, AnswerMemory, ListedStep, key_of, key_of_prompt
from sparring.learn.algorithms.all_actions import AllActions
from sparring.learn.algorithms.magnet import Magnet
from sparring.learn.legal_answers import LegalAnswers, Position
from sparring.learn.policy import TRAINED, PolicyModel
from sparring.learn.trie import bytes_of
from tiny_models import algorithm_of, make_record

VALUES = {(1, 2, 3): [0.625 / 2.5, -0.9375 / 1.5], (9, 8): [0.0, 0.625 / 1.5, 0.0]}
"""What the answers of the records are worth, times the scale."""


def positions(*given: tuple[list[int], list[list[int]]]) -> LegalAnswers:
    return LegalAnswers.collect([Position(bytes_of(prompt), legal, 1.0) for prompt, legal in given])


def test_an_answer_is_worth_its_mean_advantage_above_the_position_drawn_to_zero():
    # [1, 2, 3] is worth (1 + 0.5 - 0.5 + 0.75) / (3 + 1), and [9, 8] is worth (2 + 0.75) / (1 + 1).
    values = ActionValues.of(RECORDS)
    legal = positions(([1, 2, 3], LEGAL), ([9, 8], [YES, NO, MAYBE]), ([5], LEGAL))
    assert values.scale == pytest.approx(SCALE)
    expected = [*VALUES[1, 2, 3], *VALUES[9, 8], 0.0, 0.0]
    assert values.of_answers(legal) * SCALE == pytest.approx(expected)


def test_corrected_values_are_divided_by_the_chance_that_anybody_gave_the_answer():
    # Two of four steps gave YES, drawn with the chances 0.1 and 0.3; the mean of all four is 0.
    given = [(YES, 2.0, 0.1), (YES, 1.0, 0.3), (NO, -1.0, 0.7), (NO, -2.0, 0.7)]
    records = [
        make_record(
            [1],
            answer,
            advantage,
            logprobs=[math.log(chance), *[0.0] * (len(answer) - 1)],
            alternatives=LEGAL,
        )
        for answer, advantage, chance in given
    ]
    values = ActionValues.of(records, corrected=True).of_answers(positions(([1], LEGAL)))
    scale = math.sqrt((4 + 1 + 1 + 4) / 4)
    yes = 3.0 / (2 * (1 - 0.8**4) + 0.1) / scale
    no = -3.0 / (2 * (1 - 0.3**4) + 0.1) / scale
    assert values == pytest.approx([yes, no])
    for record in records:
        mixed, drawn = 0.2 * 1 / 2, math.exp(sum(record.logprobs))
        record.logprobs = [math.log((drawn - mixed) / 0.8 + 1e-12), *[0.0] * (len(record.logprobs) - 1)]
        record.meta["explore"] = 0.2
    explored = ActionValues.of(records, corrected=True).of_answers(positions(([1], LEGAL)))
    assert explored == pytest.approx(values), "one in five answers was a random one of the two"


@pytest.mark.parametrize("scales", [None, {}])
@pytest.mark.parametrize("advantage", [math.nan, math.inf])
def test_an_advantage_that_is_not_finite_is_an_error(advantage, scales):
    with pytest.raises(SparringError, match="an advantage of this batch is not finite"):
        ActionValues.of([make_record([1], YES, advantage, alternatives=LEGAL)], scales)


def test_a_tracked_scale_is_a_running_mean_and_another_is_that_of_the_batch():
    scales = {}
    loud = [make_record([1], YES, 2.0, alternatives=LEGAL), make_record([1], NO, -2.0, alternatives=LEGAL)]
    quiet, silent = scaled(loud, 0.1), scaled(loud, 0.0)
    assert ActionValues.of(loud, scales).scale == pytest.approx(2.0)
    assert ActionValues.of(quiet, scales).scale == pytest.approx(math.sqrt((4 + 0.04) / 2))
    assert ActionValues.of(silent, scales).scale == pytest.approx(math.sqrt((4 + 0.04) / 2))
    assert ActionValues.of(quiet).scale == pytest.approx(0.2)
    assert ActionValues.of(silent).scale == 1.0


def test_legal_answers_of_equal_worth_have_equal_values_beside_illegal_ones():
    legal = [YES, NO, MAYBE]
    given = [(YES, 0.25)] * 8 + [(NO, 0.25)] + [([1], -0.75)] * 3
    records = [make_record([1], answer, advantage, alternatives=legal) for answer, advantage in given]
    others = [make_record([2], YES, advantage, alternatives=LEGAL) for advantage in (0.75, -0.25)]
    values = ActionValues.of([*records, *others])
    assert values.of_answers(positions(([1], legal))) == pytest.approx([0.0, 0.0, 0.0])
    assert values.of_answers(positions(([2], LEGAL)))[0] == pytest.approx(0.0)
    assert values.scale == pytest.approx(math.sqrt((9 * 0.25**2 + 3 * 0.75**2 + 0.75**2 + 0.25**2) / 14))


def test_values_are_those_of_the_same_temperature_and_position_in_a_conversation():
    later = make_record([1], [2], 0.0)
    later.later = [make_record([3], YES, 3.0, alternatives=LEGAL)]
    later.temperature = 0.5
    other = make_record([6], NO, -3.0, alternatives=LEGAL)
    values = ActionValues.of([later, other])
    same = LegalAnswers.collect([Position(bytes_of([1, 2, 3]), LEGAL, 0.5)])
    assert values.of_answers(same) == pytest.approx([1.5 / 1.5 / 3.0, 0.0])
    assert not values.of_answers(positions(([1, 2, 3], LEGAL))).any()


@pytest.mark.parametrize("advantage", [0.0, -1.4e-17, 1e-9])
def test_a_batch_in_which_nothing_was_gained_has_no_values(advantage):
    records = [make_record([1], YES, advantage, alternatives=LEGAL)]
    assert abs(ActionValues.of(records).of_answers(positions(([1], LEGAL)))).max() < 1e-8
    assert not ActionValues.of([]).of_answers(positions(([1], LEGAL))).any()


def test_the_stakes_of_one_game_do_not_matter_to_another_in_the_same_batch():
    poker = [make_record([1], YES, 13.0, alternatives=LEGAL), make_record([1], NO, -13.0, alternatives=LEGAL)]
    coins = [make_record([2], YES, 1.0, alternatives=LEGAL), make_record([2], NO, -1.0, alternatives=LEGAL)]
    for records, name in ((poker, "poker"), (coins, "coins")):
        for record in records:
            record.meta = {"env_id": name}
    values = ActionValues.of([*poker, *coins])
    found = values.of_answers(positions(([1], LEGAL), ([2], LEGAL)))
    assert found == pytest.approx([1 / 1.5, -1 / 1.5, 1 / 1.5, -1 / 1.5])
    assert values.scale == pytest.approx(7.0)


def test_prompts_count_by_the_root_of_their_answers_and_games_by_their_answers():
    common, rare = (
        [make_record([1], YES, 1.0, alternatives=LEGAL)] * 9,
        make_record([2], NO, 1.0, alternatives=LEGAL),
    )
    coin = make_record([3], YES, 1.0, alternatives=LEGAL)
    coin.meta = {"env_id": "coins"}
    found = ActionValues.of([*common, rare, coin]).emphasis_of(
        positions(([1], LEGAL), ([2], LEGAL), ([3], LEGAL))
    )
    shares = found * [9, 9, 1, 1, 1, 1]
    assert shares[0] / shares[2] == pytest.approx(3.0)
    assert shares[0] + shares[2] == pytest.approx(10.0)
    assert shares[4] == pytest.approx(1.0)


def test_the_probability_of_illegal_answers_is_divided_equally_among_the_legal_ones():
    legal = positions(([1], LEGAL), ([2], [YES, NO, MAYBE]), ([3], LEGAL), ([4], LEGAL))
    given = np.log([0.2, 0.1, 0.5, 0.1, 0.1, 0.7, 0.3, 3e-40, 1e-40])
    assert legal.completed(given) == pytest.approx([0.55, 0.45, 0.6, 0.2, 0.2, 0.7, 0.3, 0.5, 0.5])
    assert legal.completed(given + 1e-6)[5:7] == pytest.approx([0.7, 0.3])  # rounding can exceed 1


def test_gradient_and_loss_equal_the_cross_entropy_from_the_target():
    policy = magnet_policy()
    algorithm = algorithm_of(Magnet, alpha=0.5, uniform=UNIFORM)
    algorithm.initialize(policy, max_generation_len=7)
    algorithm.begin(RECORDS)
    metrics = algorithm.update(algorithm.prepare_batch(RECORDS))
    gradients = [parameter.grad.clone() for parameter in policy.adapter_parameters()]

    loss = torch.zeros(())
    weight = 5 / 6 / (3**0.5 + 2**0.5)  # of six answers, five have legal ones beside them, at two prompts
    for prompt, legal, visits in (([1, 2, 3], LEGAL, 3), ([9, 8], [YES, NO, MAYBE], 2)):
        share = weight * visits**0.5
        with torch.no_grad():
            magnet = magnet_of(answer_logprobs(policy, reference_of(TRAINED), prompt, legal))
        target = torch.softmax(torch.log(magnet) + torch.tensor(VALUES[tuple(prompt)]) / SCALE / 0.5, dim=0)
        loss = loss - share * (target * answer_logprobs(policy, TRAINED, prompt, legal)).sum()
    with policy.adapter(TRAINED):
        expected = torch.autograd.grad(loss, policy.adapter_parameters())
    assert metrics["loss"] == pytest.approx(loss.item(), rel=1e-5)
    for found, other in zip(gradients, expected, strict=True):
        torch.testing.assert_close(found, other, rtol=1e-4, atol=5e-6)


def test_a_step_of_mirror_descent_goes_part_of_the_way_from_the_policy_before_the_update():
    policy, prompt, legal = magnet_policy(), [9, 8], [YES, NO, MAYBE]
    algorithm = algorithm_of(Magnet, alpha=0.5, uniform=UNIFORM, eta=3.0)
    algorithm.initialize(policy, max_generation_len=7)
    records = [
        make_record(prompt, NO, 1.0, alternatives=legal),
        make_record([5], YES, -1.0, alternatives=legal),
    ]
    algorithm.begin(records)
    batch = algorithm.prepare_batch(records)
    with torch.no_grad():
        probabilities = torch.exp(answer_logprobs(policy, TRAINED, prompt, legal))
        before = probabilities + (1 - probabilities.sum()) / 3
        magnet = magnet_of(answer_logprobs(policy, reference_of(TRAINED), prompt, legal))
    # The mean of the prompt's one step, drawn towards that of both, is 1 / 2: Q of NO is (1 - 1 / 2) / 1.5.
    values = torch.tensor([0.0, 0.5 / 1.5, 0.0])
    target = (before * magnet**1.5 * torch.exp(3 * values)) ** (1 / 2.5)
    for _ in range(2):  # the second epoch has the same target, although the policy has changed
        algorithm.compute_others(batch)
        torch.testing.assert_close(
            torch.from_numpy(algorithm.pull(batch)[:3]).float(), target / target.sum(), rtol=1e-4, atol=1e-6
        )
        change(policy)


def change(policy: PolicyModel) -> None:
    with torch.no_grad():
        policy.adapter_parameters()[0].add_(0.1)


def test_a_learner_moves_towards_the_better_answer_and_keeps_the_legal_ones():
    yes, no = learned(algorithm_of(Magnet, alpha=0.5), -1.0)
    assert no > yes + 1
    assert np.exp(yes) + np.exp(no) > 0.7


def test_a_batch_without_legal_answers_is_an_error_and_not_an_update_that_teaches_nothing():
    algorithm = Magnet()
    algorithm.initialize(magnet_policy(), max_generation_len=4)
    unlisted = [make_record([7], [1], 1.0)]
    with pytest.raises(SparringError, match="magnet learns from legal answers, and this batch has none"):
        algorithm.begin(unlisted)


def test_a_later_batch_without_legal_answers_teaches_nothing_and_says_so():
    policy = magnet_policy()
    algorithm = Magnet()
    algorithm.initialize(policy, max_generation_len=4)
    unlisted = [make_record([7], [1], 1.0)]
    for records, share in ((RECORDS, 5 / 6), (unlisted, 0.0)):
        policy.model.zero_grad()
        algorithm.begin(records, version=int(records is unlisted))
        metrics = algorithm.update(algorithm.prepare_batch(records))
        assert metrics["listed_share"] == pytest.approx(share)
    assert not any(parameter.grad.any() for parameter in policy.adapter_parameters())


@pytest.mark.parametrize("algorithm", [MagnetSettings(), AllActionsSettings()])
def test_magnets_see_every_answer(algorithm):
    with pytest.raises(InputError, match=r"is not for learning\.algorithm, which averages"):
        LearningSettings(algorithm=algorithm, skip_zero_advantages=True).check_policies(["default"])
    own = {"solver": PolicySettings(algorithm=algorithm)}
    with pytest.raises(InputError, match=r"is not for learning\.policies\.solver\.algorithm"):
        LearningSettings(policies=own, skip_zero_advantages=True).check_policies(["default", "solver"])
    LearningSettings(algorithm=algorithm).check_policies(["default"])


@pytest.mark.parametrize("algorithm", ["magnet", "all_actions"])
def test_magnets_see_games_of_the_newest_weights_only(algorithm):
    changes = {"collection.max_staleness": "1"}
    with pytest.raises(InputError, match=rf"is not for learning\.algorithm {algorithm}, whose values"):
        load_config("kuhn", changes | {"learning.algorithm": f'{{type = "{algorithm}"}}'})


def test_most_of_an_illegal_answer_is_not_computed_and_changes_nothing():
    found = []
    for illegal in ([1], [1, 2, 6, 7, 8, 9, 3, 4, 5]):
        policy = magnet_policy()
        algorithm = Magnet()
        algorithm.initialize(policy, max_generation_len=4)
        records = [*RECORDS[:4], make_record([9, 8], illegal, -2.0, alternatives=[YES, NO, MAYBE])]
        algorithm.begin(records)
        batch = algorithm.prepare_batch(records)
        algorithm.update(batch)
        gradients = [parameter.grad.clone() for parameter in policy.adapter_parameters()]
        found.append((batch.packed_tokens, batch.num_answers, gradients))
    (tokens, answers, gradients), (other_tokens, other_answers, others) = found
    assert (tokens, answers) == (other_tokens, other_answers)
    assert all(torch.equal(one, other) for one, other in zip(gradients, others, strict=True))


def test_an_illegal_answer_within_a_conversation_stays_in_the_prompt_that_follows():
    first = make_record([1, 2, 3], [5, 5, 5], -1.0, alternatives=LEGAL)
    first.later = [make_record([7, 7], YES, 1.0, alternatives=LEGAL)]
    policy = magnet_policy()
    algorithm = Magnet()
    algorithm.initialize(policy, max_generation_len=4)
    algorithm.begin([first])
    batch = algorithm.prepare_batch([first])
    assert {bytes(one) for one in batch.answers.prompts} == {
        bytes_of([1, 2, 3]),
        bytes_of([1, 2, 3, 5, 5, 5, 7, 7]),
    }
    algorithm.update(batch)


def test_the_mismatch_of_several_epochs_is_that_before_the_first_step():
    once = learner_with(1, max_mismatch=1e6).update(RECORDS)["mismatch"]
    learner = learner_with(3, max_mismatch=once * 1.001)
    before = learner.policy.adapter_state()
    assert learner.update(RECORDS)["mismatch"] == pytest.approx(once, rel=1e-6)
    assert any(not torch.equal(before[key], value) for key, value in learner.policy.adapter_state().items())

    learner = learner_with(3, max_mismatch=once * 0.999)
    with pytest.raises(SparringError, match="engine and learner disagree"):
        learner.update(RECORDS)
    assert all(torch.equal(before[key], value) for key, value in learner.policy.adapter_state().items())


ASKED = key_of_prompt(1.0, b"prompt")


def step(
    drawn: bytes, advantage: float, *, chance: float = 0.5, legal: bool = True, prompt=b"prompt"
) -> ListedStep:
    return ListedStep("kuhn_poker", key_of_prompt(1.0, prompt), key_of(drawn), advantage, legal, chance)


def test_earlier_answers_count_for_a_fifth_less_with_every_batch_and_at_most_for_the_bound():
    memory = AnswerMemory(most=3)
    memory.add([step(b"a", 1.0, chance=0.25), step(b"b", -1.0), step(b"x", -9.0, legal=False)])
    known = memory.add([step(b"a", 2.0)])[ASKED]
    a, b = known.answers[key_of(b"a")], known.answers[key_of(b"b")]
    assert (a.count, a.advantage, a.chance) == pytest.approx((1.8, 2.8, 0.7))
    assert (b.count, b.advantage, b.chance) == pytest.approx((0.8, -0.8, 0.4))
    assert known.steps == pytest.approx(3 * 0.8 + 1)
    known = memory.add([step(b"a", 0.0)] * 3)[ASKED]
    assert known.count == pytest.approx(0.8 * 2.6 + 3)
    known = memory.add([step(b"b", 0.0)])[ASKED]
    assert known.count == pytest.approx(3 + 1)


def test_without_a_memory_the_batch_counts_alone():
    memory = AnswerMemory()
    memory.add([step(b"a", 1.0), step(b"b", 2.0)])
    known = memory.add([step(b"b", -1.0)])
    assert list(known[ASKED].answers) == [key_of(b"b")]
    assert (known[ASKED].steps, known[ASKED].advantage) == (1, -1.0)
    assert not memory.state()


def test_only_prompts_of_the_batch_are_returned_and_the_others_are_forgotten_in_time():
    memory = AnswerMemory(most=16)
    memory.add([step(b"a", 1.0)])
    for batch in range(21):  # 0.8 ** 20 is above 0.01, and 0.8 ** 21 below it
        assert len(memory.state()["prompts"]) == 1 + (batch > 0)
        assert len(memory.add([step(b"a", 1.0, prompt=b"other")])) == 1
    assert len(memory.state()["prompts"]) == 1


def test_values_are_means_over_this_batch_and_the_memory():
    memory = AnswerMemory(most=16)
    ActionValues.of([make_record([1], YES, 2.0, alternatives=LEGAL)], memory=memory)
    records = [make_record([1], NO, 1.0, alternatives=LEGAL), make_record([1], YES, -1.0, alternatives=LEGAL)]
    values = ActionValues.of(records, memory=memory)
    # YES: 0.8 of 2, and -1; NO: 1. The mean of the batch is 0, and its scale 1.
    middle = (0.8 * 2 - 1 + 1 + 0) / (0.8 + 2 + 1)
    yes, no = (0.8 * 2 - 1 - 1.8 * middle) / 2.3, (1 - middle) / 1.5
    legal = LegalAnswers.collect([Position(bytes_of([1]), LEGAL, 1.0)])
    assert values.of_answers(legal) == pytest.approx([yes, no])
    assert values.emphasis_of(legal) == pytest.approx([1.0, 1.0])


def test_an_answer_that_only_earlier_batches_gave_has_a_value():
    memory = AnswerMemory(most=16)
    ActionValues.of([make_record([1], YES, 2.0, alternatives=LEGAL)], memory=memory)
    values = ActionValues.of([make_record([1], NO, -1.0, alternatives=LEGAL)], memory=memory)
    yes, no = values.of_answers(LegalAnswers.collect([Position(bytes_of([1]), LEGAL, 1.0)]))
    assert yes > 0 > no


@pytest.mark.parametrize("algorithm", [Magnet, AllActions])
def test_a_learner_remembers_across_a_restart_and_forgets_where_its_policy_starts_again(algorithm):
    learner = learner_with(1, algorithm(), max_mismatch=1e6)
    untrained = learner.tensors()
    learner.update(RECORDS)
    other = learner_with(1, algorithm(), max_mismatch=1e6)
    other.load_tensors(learner.tensors(), 1, 6)
    few = RECORDS[:1]
    learner.update(few)
    other.update(few)
    after, same = learner.tensors(), other.tensors()
    assert {name for name in after if name.startswith("algorithm.memory.")}
    assert all(torch.equal(after[name], same[name]) for name in after)
    other.start_again(untrained)
    assert not [name for name in other.tensors() if name.startswith("algorithm.")]


@pytest.mark.parametrize(
    ("chance", "steps", "found"),
    [
        *((0.5, 1, 0.42), (0.1, 1, 0.27), (0.01, 1, 0.05)),
        *((0.5, 20, 0.99), (0.1, 20, 0.93), (0.01, 20, 0.63)),
    ],
)
def test_corrected_values_have_the_stated_part_of_a_true_difference(chance, steps, found):
    # YES is worth 1 and NO 0; the step at another prompt makes the mean over the game what it is on average.
    mean = 0.0
    for given in range(steps + 1):
        records = [
            *[make_record([1], YES, 1.0, logprobs=[math.log(chance), 0.0], alternatives=LEGAL)] * given,
            *[make_record([1], NO, 0.0, logprobs=[math.log(1 - chance), 0.0, 0.0], alternatives=LEGAL)]
            * (steps - given),
            make_record([2], YES, (steps + 1) * chance - given, alternatives=LEGAL),
        ]
        values = ActionValues.of(records, corrected=True)
        yes, no = values.of_answers(positions(([1], LEGAL)))
        probability = math.comb(steps, given) * chance**given * (1 - chance) ** (steps - given)
        mean += probability * (yes - no) * values.scale
    assert mean == pytest.approx(found, abs=0.005)


class NotesWhere(Magnet):
    """Notes the weights with which the policy's log-probabilities were kept."""

    def logprobs_of(self, adapter, plans):
        if adapter == self.adapter:
            self.weights.append(self.policy.adapter_state(adapter))
        return super().logprobs_of(adapter, plans)


def test_a_step_of_mirror_descent_begins_at_the_policy_before_the_update_in_every_mini_batch():
    algorithm = algorithm_of(NotesWhere, eta=0.5)
    algorithm.weights = []
    learner = learner_with(2, algorithm, minibatches=2, max_mismatch=1e6)
    before = learner.policy.adapter_state()
    learner.update(RECORDS)
    assert len(algorithm.weights) == 6  # for the anchor in two times two, and kept once in the first two
    assert all(torch.equal(one[key], before[key]) for one in algorithm.weights for key in before)
