"""AnswerMemory: what earlier batches say of answers, by hand; its state; learners that remember."""

import pytest
import torch

from magnet_records import LEGAL, NO, RECORDS, YES, learner_with
from sparring.learn.action_values import ActionValues, AnswerMemory, ListedStep, key_of, key_of_prompt
from sparring.learn.algorithms.all_actions import AllActions
from sparring.learn.algorithms.magnet import Magnet
from sparring.learn.legal_answers import LegalAnswers, Position
from sparring.learn.trie import bytes_of
from tiny_models import make_record

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
